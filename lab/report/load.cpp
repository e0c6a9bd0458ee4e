#include "lab/report/load.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "lab/report/text.h"

namespace lms::report {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::string_view kRecord = "lms-bench/1";
constexpr std::string_view kBoundary = "lms-bench-boundary/1";
constexpr std::string_view kPublished = "lms-published/1";
constexpr int kStep = 2;
constexpr int kDeepest = 64;
constexpr double kLongest = 120;  ///< of what is quoted, in units of a letter

void take(const Json& json, const std::string& file, bool named, Input& input) {
  const auto schema = json.is_object() ? json.find("schema") : json.end();
  if (!json.is_object() || schema == json.end()) {
    if (!named) {
      input.passed_over.push_back(file);
      return;
    }
    input.problems.push_back({file, json.is_object()
                                        ? "this is no record: there is no \"schema\" in it"
                                        : std::string("this is no record: it is a JSON ") +
                                              json.type_name() + ", not an object"});
    return;
  }
  const bool is_step = schema->is_number_integer() && json.contains("step");
  if (is_step && schema->get<double>() <= kStep) {
    if (auto step = read_step(json, file, input.problems)) input.steps.push_back(std::move(*step));
  } else if (*schema == kRecord) {
    if (auto record = read_record(json, file, input.problems)) {
      input.records.push_back(std::move(*record));
    }
  } else if (*schema == kBoundary) {
    if (auto boundary = read_boundary(json, file, input.problems)) {
      input.boundaries.push_back(std::move(*boundary));
    }
  } else if (*schema == kPublished) {
    input.published = read_published(json, file, input.problems);
  } else {
    std::string shown = schema->dump(-1, ' ', false, Json::error_handler_t::replace);
    input.problems.push_back({file, "unknown schema " + shorten(shown, 1, kLongest) +
                                        "; known are \"" + std::string(kRecord) + "\", \"" +
                                        std::string(kBoundary) +
                                        "\", and 2, that of lab/bench/run.py"});
  }
}

void read_file(const fs::path& path, bool named, Input& input) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || file.bad()) {
    input.problems.push_back({path.string(), "it cannot be read"});
    return;
  }
  load_text(std::move(text).str(), path.string(), named, input);
}

/// All *.json below a folder, in the order of their paths. Folders that cannot be read become
/// problems, and do not end the search.
std::vector<fs::path> files_below(const std::string& folder, Input& input) {
  std::vector<fs::path> files;
  std::vector<fs::path> folders = {folder};
  while (!folders.empty()) {
    const fs::path at = std::move(folders.back());
    folders.pop_back();
    std::error_code error;
    for (fs::directory_iterator entry(at, error), end; !error && entry != end;
         entry.increment(error)) {
      std::error_code ignored;
      if (entry->is_directory(ignored) && !entry->is_symlink(ignored)) {
        folders.push_back(entry->path());
      } else if (entry->path().extension() == ".json" && entry->is_regular_file(ignored)) {
        files.push_back(entry->path());
      }
    }
    if (error) input.problems.push_back({at.string(), "it cannot be read: " + error.message()});
  }
  std::ranges::sort(files);
  return files;
}

/// A search is shown with the runs of its series alone.
void name_lonely_searches(Input& input) {
  for (const Boundary& boundary : input.boundaries) {
    const bool has_runs = std::ranges::any_of(input.records, [&](const Record& record) {
      return record.study == boundary.study && record.series == boundary.series &&
             record.cap == boundary.cap;
    });
    if (!has_runs) {
      input.problems.push_back({boundary.file, "no run of this search is here; it is not shown"});
    }
  }
}

}  // namespace

void load_text(std::string_view text, const std::string& file, bool named, Input& input) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    input.problems.push_back({file, "it is empty"});
    return;
  }
  // Nested without end, a text would take the parser's stack, and that of everyone who reads it.
  const Json::parser_callback_t shallow = [](int depth, Json::parse_event_t, Json&) {
    if (depth > kDeepest) throw std::runtime_error("it is nested too deeply");
    return true;
  };
  try {
    const Json json = Json::parse(text, shallow);
    if (json.is_array() && !json.empty() && json[0].is_object() && json[0].contains("schema")) {
      for (const Json& each : json) take(each, file, named, input);
    } else {
      take(json, file, named, input);
    }
  } catch (const Json::parse_error& error) {
    std::string why = error.what();
    const std::size_t start = why.find("] ");
    if (start != std::string::npos) why = why.substr(start + 2);
    // Ends with what was read last, which may be the whole file.
    input.problems.push_back({file, "this is no JSON: " + shorten(why, 1, kLongest)});
  } catch (const std::exception& error) {
    input.problems.push_back({file, shorten(error.what(), 1, kLongest)});
  }
}

Input load(const std::vector<std::string>& runs) {
  Input input;
  load_text(published_text(), "the published figures", true, input);
  std::set<fs::path> seen;
  const auto once = [&](const fs::path& path) {
    std::error_code error;
    const fs::path whole = fs::weakly_canonical(path, error);
    return seen.insert(error ? path : whole).second;
  };
  for (const std::string& run : runs) {
    std::error_code error;
    if (!fs::is_directory(run, error)) {
      if (!fs::exists(run, error)) {
        input.problems.push_back({run, "there is no such file or folder"});
      } else if (once(run)) {
        read_file(run, true, input);
      }
      continue;
    }
    for (const fs::path& file : files_below(run, input)) {
      if (once(file)) read_file(file, false, input);
    }
  }
  name_lonely_searches(input);
  return input;
}

}  // namespace lms::report
