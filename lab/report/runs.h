#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lab/records/record.h"

namespace lms::report {

using records::Boundary;
using records::Gap;
using records::Interval;
using records::Need;
using records::Record;
using records::Timeline;

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

/// "6000²", "128³", "2048 × 1024"; "" where not known.
std::string size_text(const Record& record);

/// What was set besides; see setting_text().
std::map<std::string, std::string> settings_of(const Record& record);

/// "slack 2 GiB", "training.lr 0.001".
std::string setting_text(const std::pair<std::string, std::string>& setting);

}  // namespace lms::report
