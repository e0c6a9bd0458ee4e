#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lms::report {

/// From one time to a later one, in seconds.
struct Interval {
  double from = 0;
  double to = 0;
};

/// A time in which the device computed nothing.
struct Gap {
  double at = 0;
  double length = 0;
  std::string before;  ///< the kernel that ended it
};

struct Timeline {
  double step = 0;  ///< seconds
  std::vector<Interval> kernels;
  std::vector<Interval> to_host;
  std::vector<Interval> to_device;
  std::vector<Gap> gaps;  ///< the longest, the longest first
};

/// What an operator that found no room on the device said that it needs.
struct OperatorNeed {
  std::string name;                   ///< "convolution_backward"
  double bytes = 0;                   ///< on the device at one time
  std::optional<double> least_limit;  ///< with what cannot leave the device meanwhile
};

/// One try of a study: schema "lms-bench/1". Bytes, seconds, rates per second; what was not
/// measured is absent, text that was not given is empty. Sides, steps, cap and limit are above 0.
struct Record {
  std::string file;
  std::string study;
  std::string series;
  std::string model;
  std::string precision;
  std::string method;
  std::string link;  ///< emulated; empty: the machine's own
  std::string outcome;
  std::string message;
  std::string unit;      ///< of the samples: MP, MV, images
  bool partial = false;  ///< it ended after the timed steps, before all else was told
  std::optional<double> batch;
  std::vector<double> sides;
  /// What no other field tells, by name: "slack" and 2147483648.
  std::vector<std::pair<std::string, std::string>> settings;
  std::optional<double> cap;
  std::optional<double> limit;
  std::optional<double> per_step;  ///< samples
  std::vector<double> steps;
  std::optional<double> rate_mean;
  std::optional<double> rate_median;
  std::optional<double> rate_spread;
  std::vector<double> losses;
  std::string weights;
  std::optional<double> bytes_to_host;
  std::optional<double> bytes_to_device;
  std::optional<double> to_host_rate;
  std::optional<double> to_device_rate;
  std::optional<double> to_host_use;
  std::optional<double> to_device_use;
  std::optional<double> gpu_busy;
  std::optional<Timeline> timeline;
  std::vector<std::pair<std::string, double>> allocations;
  std::optional<double> peak_allocated;
  std::optional<double> peak_reserved;
  std::optional<double> peak_host;
  std::optional<double> host_limit;  ///< the most that LMS might hold there
  std::optional<double> largest_operator;
  std::optional<OperatorNeed> need;
  std::optional<double> bound;
  std::optional<double> predicted;
  std::string gpu;
  std::string host;
  std::string pytorch;
  std::string commit;
  std::string date;

  [[nodiscard]] bool ok() const { return outcome == "ok"; }
  /// Whether a failure was one of the size: of memory or time, and no crash.
  [[nodiscard]] bool too_large() const {
    return outcome == "oom" || outcome == "host" || outcome == "timeout";
  }
  /// Whether one operator, with what cannot leave the device meanwhile, needs more than there was:
  /// what no plan helps against.
  [[nodiscard]] bool operator_too_large() const;
  /// Whether the link to emulate is faster than the machine's own, at whose rate this ran.
  [[nodiscard]] bool link_too_slow() const;
  /// Pixels or voxels of a whole batch; absent where sides or batch are.
  [[nodiscard]] std::optional<double> amount() const;
  /// The side of a square or cube as large as one sample.
  [[nodiscard]] std::optional<double> side() const;
  /// "6000²", "128³", "2048 × 1024"; "" where not known.
  [[nodiscard]] std::string size() const;
  /// Samples per second: median, else mean, else from the steps.
  [[nodiscard]] std::optional<double> rate() const;
  /// Median seconds of a step, else what the rate makes of it.
  [[nodiscard]] std::optional<double> step() const;
};

/// The end of a search: schema "lms-bench-boundary/1".
struct Boundary {
  std::string file;
  std::string study;
  std::string series;
  std::string model;
  std::string method;
  std::string over;  ///< "side" or "batch"
  std::string why;
  std::optional<double> cap;
  std::optional<double> largest_ok;
  std::optional<double> smallest_failed;
};

/// A training step of the Python benchmark (`lab/bench/run.py`, schema 2).
struct StepRecord {
  std::string file;
  std::string step;
  std::string method;
  std::string error;
  std::string gpu;
  std::string commit;
  std::optional<double> ratio;  ///< peak in memory over the limit
  std::optional<double> limit;
  std::optional<double> seconds;
  std::optional<double> overhead;
  std::optional<double> predicted;
  std::optional<double> bound_copies;
  std::optional<double> bound_recompute;
  std::optional<double> allocated;
  std::optional<double> to_host;
  std::optional<double> to_device;
  std::optional<double> recomputed;
  std::optional<bool> bit_identical;

  /// What no plan of this method could beat.
  [[nodiscard]] std::optional<double> bound() const;
};

/// Something that could not be used, and why.
struct Problem {
  std::string file;
  std::string what;
};

/// Fields of the JSON object; those of a wrong type become problems of `file` and count as absent.
/// Nothing is returned, and a problem is added, where the fields that every record has are missing.
std::optional<Record> read_record(const nlohmann::json& json, const std::string& file,
                                  std::vector<Problem>& problems);
std::optional<Boundary> read_boundary(const nlohmann::json& json, const std::string& file,
                                      std::vector<Problem>& problems);
std::optional<StepRecord> read_step(const nlohmann::json& json, const std::string& file,
                                    std::vector<Problem>& problems);

/// "oom" as people say it: "out of device memory".
std::string outcome_text(const std::string& outcome);

/// "NVLink 2" for "nvlink2"; "this machine" for none.
std::string link_text(const std::string& link);

/// Bytes a second each way of a link that can be emulated.
std::optional<double> link_rate(const std::string& link);

/// "slack 2 GiB", "training.lr 0.001".
std::string setting_text(const std::pair<std::string, std::string>& setting);

}  // namespace lms::report
