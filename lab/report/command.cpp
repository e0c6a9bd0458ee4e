#include "lab/report/command.h"

#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "lab/report/browser.h"
#include "lab/report/page.h"

namespace lms::report {
namespace {

namespace fs = std::filesystem;

/// As a whole, or not at all.
void write(const fs::path& path, const std::string& text) {
  if (path.has_parent_path()) fs::create_directories(path.parent_path());
  const fs::path partial = path.string() + ".partial";
  std::ofstream file(partial, std::ios::binary);
  file << text;
  file.close();
  std::error_code error;
  if (file) fs::rename(partial, path, error);
  if (file && !error) return;
  std::error_code ignored;
  fs::remove(partial, ignored);
  throw std::runtime_error(path.string() + " cannot be written" +
                           (error ? ": " + error.message() : std::string()));
}

/// The number after `name` in the root element of one of our own pictures.
int attribute(const std::string& svg, const std::string& name) {
  const std::size_t at = svg.find(" " + name + "=\"");
  return at == std::string::npos ? 0
                                 : static_cast<int>(std::stod(svg.substr(at + name.size() + 3)));
}

bool write_png(const Request& request, const std::vector<Picture>& all, std::FILE* out,
               std::FILE* err) {
  const auto chromium = find_chromium();
  if (!chromium) {
    std::fputs(
        "lms: no PNG was written: there is no Chromium. Install it (Debian: chromium), or "
        "name one in LMS_CHROMIUM.\n",
        err);
    return false;
  }
  fs::create_directories(request.png);
  std::size_t count = 0;
  for (const Picture& picture : all) {
    const fs::path svg = fs::path(request.png) / (picture.name + ".partial.svg");
    const fs::path png = fs::path(request.png) / (picture.name + ".png");
    const fs::path partial = fs::path(request.png) / (picture.name + ".partial.png");
    write(svg, picture.svg);
    const std::string problem =
        render(*chromium, svg.string(), partial.string(), attribute(picture.svg, "width"),
               attribute(picture.svg, "height") + 1);
    fs::remove(svg);
    if (problem.empty()) fs::rename(partial, png);
    if (!problem.empty()) {
      std::fprintf(err, "lms: %s: %s\n", png.string().c_str(), problem.c_str());
      return false;
    }
    ++count;
  }
  std::fprintf(out, "%zu charts in %s\n", count, request.png.c_str());
  return true;
}

}  // namespace

bool make_report(const Request& request, std::FILE* out, std::FILE* err) {
  try {
    const Input input = load(request.runs);
    for (const Problem& problem : input.problems) {
      std::fprintf(err, "lms: %s: %s\n", problem.file.c_str(), problem.what.c_str());
    }
    if (input.records.empty() && input.steps.empty()) {
      std::fputs(
          "lms: there is no record to report on; `lms bench` and lab/bench/run.py write them\n",
          err);
      return false;
    }
    const std::string html = page(input, request.title);
    write(request.page, html);
    std::fprintf(out, "%s: %zu records, %zu searches, %zu single steps\n", request.page.c_str(),
                 input.records.size(), input.boundaries.size(), input.steps.size());
    if (request.svg.empty() && request.png.empty()) return true;
    const std::vector<Picture> all = pictures(input);
    if (!request.svg.empty()) {
      for (const Picture& picture : all) {
        write(fs::path(request.svg) / (picture.name + ".svg"), picture.svg);
      }
      std::fprintf(out, "%zu charts in %s\n", all.size(), request.svg.c_str());
    }
    return request.png.empty() || write_png(request, all, out, err);
  } catch (const std::exception& error) {
    std::fprintf(err, "lms: %s\n", error.what());
    return false;
  }
}

}  // namespace lms::report
