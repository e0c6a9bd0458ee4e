#include "lab/studies/bounds.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "bound/bound.h"
#include "bound/forecast.h"
#include "lab/records/files.h"
#include "lab/studies/folder.h"
#include "trace/trace_io.h"

namespace lms::studies {
namespace {

namespace fs = std::filesystem;

/// While both lanes are busy each has a little less, as measured on PCIe.
constexpr double kBothShare = 0.917;

LinkModel link_of(const Record& record) {
  LinkModel link;
  if (record.to_host_rate) link.out_bytes_per_ms = *record.to_host_rate / 1e3;
  if (record.to_device_rate) link.in_bytes_per_ms = *record.to_device_rate / 1e3;
  link.both_bytes_per_ms = kBothShare * std::min(link.out_bytes_per_ms, link.in_bytes_per_ms);
  return link;
}

/// <out>/<study>/<series>/<key>.json, from whichever of these folders on.
void collect(const std::string& folder, int depth, std::vector<std::string>& files) {
  for (const std::string& name : names_in(folder)) {
    const std::string path = folder + "/" + name;
    if (name.ends_with(".json")) {
      files.push_back(path);
    } else if (depth > 0) {
      collect(path, depth - 1, files);
    }
  }
}

}  // namespace

void add_bound(Record& record, const std::string& trace_file) {
  const Trace trace = load_trace(trace_file);
  record.largest_operator = static_cast<double>(least_limit(trace).bytes);
  record.bound.reset();
  // Until there is a plan operators are timed with what they wait for, or not at all.
  if (!record.predicted) return;
  const auto budget = static_cast<Bytes>(record.limit.value_or(record.cap.value_or(0)));
  const Bound answer =
      bound(trace, budget, link_of(record), {.recompute = record.method != "lms-swap"});
  if (answer.feasible) record.bound = answer.step_ms / 1e3;
}

int add_bounds(const std::string& folder, bool again, std::FILE* log) {
  std::vector<std::string> files;
  collect(folder, 2, files);
  int done = 0;
  for (const std::string& file : files) {
    auto record = records::read_record(file);
    if (!record || record->trace.empty() || (record->bound && !again)) continue;
    const auto begin = std::chrono::steady_clock::now();
    try {
      add_bound(*record, (fs::path(file).parent_path() / record->trace).string());
    } catch (const Error& failure) {
      std::fprintf(log, "%s: %s\n", file.c_str(), failure.what());
    }
    if (record->largest_operator) records::write_json(file, to_json(*record));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (record->bound) {
      std::fprintf(log, "%s: at least %.4f s a step (%.1f s)\n", file.c_str(), *record->bound,
                   took.count());
      ++done;
    } else if (record->largest_operator) {
      std::fprintf(log, "%s: the largest operator needs %lld bytes\n", file.c_str(),
                   static_cast<long long>(*record->largest_operator));
    }
    std::fflush(log);
  }
  return done;
}

}  // namespace lms::studies
