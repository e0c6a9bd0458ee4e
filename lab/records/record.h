#pragma once

// What is known of one try, and of the search for the largest size (docs/studies.md). Bytes,
// seconds, rates a second. What was not measured is absent, text that was not given is empty.

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lms::records {

inline constexpr const char* kRecordSchema = "lms-bench/1";
inline constexpr const char* kBoundarySchema = "lms-bench-boundary/1";

/// How a try ended: kOk trains; kOom the device was full; kHost the host was; kTimeout it took too
/// long; kFailed something else, which says nothing of the size.
struct Outcome {
  static constexpr const char* kOk = "ok";
  static constexpr const char* kOom = "oom";
  static constexpr const char* kHost = "host";
  static constexpr const char* kTimeout = "timeout";
  static constexpr const char* kFailed = "failed";
};

/// Begin and end, from the first thing that the device did in the step.
struct Interval {
  double from = 0;
  double to = 0;
  auto operator<=>(const Interval&) const = default;
};

/// A time in which the device computed nothing.
struct Gap {
  double at = 0;
  double length = 0;
  std::string before;  ///< the kernel that ended it
};

/// One step on the device, from idle to idle.
struct Timeline {
  double step = 0;
  std::vector<Interval> kernels;  ///< merged
  std::vector<Interval> to_host;
  std::vector<Interval> to_device;
  std::vector<Gap> gaps;  ///< the longest, the longest first
};

/// What an operator that found no room on the device said that it needs.
struct Need {
  std::string name;                   ///< "convolution_backward"
  double bytes = 0;                   ///< on the device at one time
  std::optional<double> least_limit;  ///< with what cannot leave the device meanwhile
};

/// Sides, steps, cap and limit are above 0. Its fields in files: fields.h.
struct Record {
  std::string file;  ///< that it was read from; no field

  std::string study;
  std::string series;
  std::string model;
  std::optional<double> batch;
  std::vector<double> sides;
  std::int64_t classes = 0;
  std::string precision;
  std::string method;
  std::optional<double> cap;
  /// What else was set that changes the figures: variants of the model, training, device, …
  std::optional<std::map<std::string, std::string>> settings;
  std::optional<double> limit;
  std::string link;  ///< emulated; empty: the machine's own
  std::string outcome = Outcome::kFailed;
  std::string message;       ///< for people
  std::optional<Need> need;  ///< of LMS, where it was out of memory

  std::string unit;                ///< of the samples: MP, MV, images
  std::optional<double> per_step;  ///< samples
  std::int64_t warmup = 0;
  std::vector<double> steps;
  std::optional<double> rate_mean;  ///< all samples by all the time
  std::optional<double> rate_median;
  std::optional<double> rate_spread;  ///< (largest − smallest) / median
  std::vector<double> losses;
  std::string weights;

  std::optional<double> bytes_to_host;  ///< a step
  std::optional<double> bytes_to_device;
  std::optional<double> to_host_rate;  ///< of the best copy of this run
  std::optional<double> to_device_rate;
  std::optional<double> to_host_use;  ///< of that rate, over the whole step
  std::optional<double> to_device_use;

  std::optional<double> gpu_busy;
  std::optional<Timeline> timeline;
  std::map<std::string, std::int64_t> allocations;
  std::optional<double> peak_allocated;
  std::optional<double> peak_reserved;
  std::optional<double> peak_host;  ///< pinned, whether in use or not
  std::optional<double> largest_operator;
  std::optional<double> bound;
  std::optional<double> predicted;
  std::map<std::string, std::int64_t> stats;
  std::map<std::string, std::string> machine;  ///< gpu, host, pytorch, …
  std::string commit;
  std::string date;
  std::optional<double> wall;  ///< of the process, with its start
  std::string trace;           ///< the step that LMS learnt: a file beside the record
  bool partial = false;  ///< the process ended after the timed steps, before all else was told

  [[nodiscard]] bool ok() const { return outcome == Outcome::kOk; }
  /// Whether a failure was one of the size: of memory or time, and no crash.
  [[nodiscard]] bool too_large() const;
  /// Whether one operator, with what cannot leave the device meanwhile, needs more than there was:
  /// what no plan helps against.
  [[nodiscard]] bool operator_too_large() const;
  /// Whether the link to emulate is faster than the machine's own, at whose rate this ran.
  [[nodiscard]] bool link_too_slow() const;
  /// Pixels or voxels of a whole batch; absent where sides or batch are.
  [[nodiscard]] std::optional<double> amount() const;
  /// The side of a square or cube as large as one sample.
  [[nodiscard]] std::optional<double> side() const;
  /// Samples a second: median, else mean, else from the steps.
  [[nodiscard]] std::optional<double> rate() const;
  /// Median seconds of a step, else what the rate makes of it.
  [[nodiscard]] std::optional<double> step() const;
  /// A fact of the machine; empty where not known.
  [[nodiscard]] std::string of_machine(const std::string& fact) const;
  /// The most that LMS might hold on the host.
  [[nodiscard]] std::optional<double> host_limit() const;

  /// Fills in what follows from steps, samples and bytes: rates, and the use of the link.
  void conclude();
};

/// The end of a search.
struct Boundary {
  std::string file;  ///< as of a record

  std::string study;
  std::string series;
  std::string model;
  std::string method;
  std::optional<double> cap;
  std::string over;  ///< "side" or "batch"
  std::optional<double> largest_ok;
  std::optional<double> smallest_failed;
  std::string why;  ///< the outcome of the smallest that failed
  std::vector<std::pair<std::int64_t, std::string>> tries;  ///< written, not read
};

/// Bytes a second each way of a link that can be emulated, as measured with copies of the time.
std::optional<double> link_rate(const std::string& link);

}  // namespace lms::records
