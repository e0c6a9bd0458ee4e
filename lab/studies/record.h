#pragma once

// What is known of one try, and of the search for the largest size: the files that lms bench writes
// and lms report reads. Sizes are bytes, times seconds; what is absent was not measured. See
// docs/studies.md.

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lms::studies {

inline constexpr const char* kRecordSchema = "lms-bench/1";
inline constexpr const char* kBoundarySchema = "lms-bench-boundary/1";

/// How a try ended: kOk trains; kOom the device was full; kHost the host was; kTimeout it took too
/// long; kFailed something else, which says nothing of the size.
enum class Outcome { kOk, kOom, kHost, kTimeout, kFailed };

const char* outcome_name(Outcome outcome);
/// Throws lms::Error for a name that is none.
Outcome outcome_of(const std::string& name);

/// Begin and end, from the first thing that the device did in the step.
using Span = std::pair<double, double>;

struct Gap {
  double at = 0;
  double length = 0;
  std::string before;  ///< the kernel that ends it
};

/// One step on the device.
struct Timeline {
  double step = 0;            ///< from an idle device to an idle device
  std::vector<Span> kernels;  ///< merged, at most 2000
  std::vector<Span> to_host;
  std::vector<Span> to_device;
  std::vector<Gap> gaps;  ///< between kernels, the longest 20
};

struct Record {
  std::string study;
  std::string series;
  std::string model;
  std::int64_t batch = 0;
  std::vector<std::int64_t> sides;
  std::int64_t classes = 0;
  std::string precision;
  std::string method;
  std::int64_t cap = 0;
  /// What else was set that changes the figures: variants of the model, training, device, …
  std::optional<std::map<std::string, std::string>> settings;
  std::optional<std::int64_t> limit;
  std::optional<std::string> link_emulated;
  Outcome outcome = Outcome::kFailed;
  std::string message;

  std::string unit;
  double per_step = 0;
  std::int64_t warmup = 0;
  std::vector<double> steps;
  std::vector<double> losses;
  std::optional<std::string> weights;

  std::optional<std::int64_t> bytes_to_host;  ///< a step
  std::optional<std::int64_t> bytes_to_device;
  std::optional<double> to_host_rate;  ///< bytes a second, of the best copy of this run
  std::optional<double> to_device_rate;

  std::optional<double> gpu_busy;
  std::optional<Timeline> timeline;
  std::map<std::string, std::int64_t> allocations;
  std::optional<std::int64_t> peak_allocated;
  std::optional<std::int64_t> peak_reserved;
  std::optional<std::int64_t> peak_host;  ///< pinned, whether in use or not
  std::optional<std::int64_t> largest_operator;
  std::optional<double> bound;
  std::optional<double> predicted;
  std::map<std::string, std::int64_t> stats;
  std::map<std::string, std::string> machine;
  std::string commit;
  std::string date;
  std::optional<double> wall;        ///< of the process, with its start
  std::optional<std::string> trace;  ///< the step that LMS learnt: a file beside the record
  bool partial =
      false;  ///< the process ended between the timed steps and what is told of them besides
};

struct Rate {
  double mean = 0;  ///< all samples by all the time
  double median = 0;
  double spread = 0;  ///< (largest − smallest) / median
};

/// Samples a second over the timed steps; nothing where there are none.
std::optional<Rate> rate_of(const Record& record);

nlohmann::ordered_json to_json(const Record& record);
/// Throws lms::Error for JSON that is no record of this schema.
Record record_from_json(const nlohmann::ordered_json& json);

struct Boundary {
  std::string study;
  std::string series;
  std::string model;
  std::string method;
  std::int64_t cap = 0;
  std::string over;  ///< "side" or "batch"
  std::optional<std::int64_t> largest_ok;
  std::optional<std::int64_t> smallest_failed;
  std::string why;  ///< the outcome of the smallest that failed
  std::vector<std::pair<std::int64_t, Outcome>> tries;
};

nlohmann::ordered_json to_json(const Boundary& boundary);

/// The names in a folder, sorted; empty where there is none. (PyTorch's libraries export parts of
/// another libstdc++'s <filesystem>, so its iterators are not to be trusted in programs with them.)
std::vector<std::string> names_in(const std::string& folder);

/// The file is whole or as it was, even if the machine fails. Throws lms::Error.
void write_json(const std::string& path, const nlohmann::ordered_json& json);
/// Throws lms::Error for a file that is not there, or no JSON.
nlohmann::ordered_json read_json(const std::string& path);
/// The record of a file; nothing where there is none, or it is not one.
std::optional<Record> read_record(const std::string& path);

}  // namespace lms::studies
