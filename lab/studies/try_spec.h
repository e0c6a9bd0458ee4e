#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lab/records/record.h"

namespace lms::studies {

using records::Outcome;
using records::Record;

/// Settings by name, as recipes and key=value arguments give them.
using Values = std::map<std::string, std::string>;

/// One try: what is trained, how, under which cap, and how long it is watched.
struct TrySpec {
  std::string study;
  std::string series;
  std::string model;
  std::int64_t batch = 1;
  std::vector<std::int64_t> sides;
  std::int64_t classes = 0;  ///< 0: the model's own
  std::string precision = "tf32";
  std::string method = "plain";
  std::int64_t cap = 0;  ///< bytes; 0: none
  std::string link;      ///< "": as it is; pcie3, pcie4, nvlink2
  std::string unit;      ///< MP, MV, images; "": by the model
  std::string device = "cuda";
  Values variants;  ///< the model's own options
  Values training;  ///< over the model's published settings of its optimizer (lr, optimizer, …)

  std::int64_t reserve = 0;      ///< of the cap, that LMS leaves alone
  std::int64_t slack = -1;       ///< device memory left free beside the cap; -1: all there is
  std::int64_t host_budget = 0;  ///< bytes; 0: 100 GiB, or 85 % of the machine's
  std::int64_t min_block = 0;    ///< 0: LMS's own
  double plan_seconds = 2;       ///< of search for a plan
  std::int64_t warmup = 3;       ///< steps before the timed ones; of LMS: under a settled plan
  std::int64_t settle = 14;      ///< most steps until LMS has settled
  double settle_seconds = 60;    ///< likewise, from the first on
  std::int64_t steps = 5;        ///< timed
  double step_seconds = 12;      ///< timed steps end when they have taken that long, after two
  std::int64_t threads = 0;      ///< of PyTorch on the CPU; 0: its own choice
  std::int64_t seed = 1;
  bool deterministic = false;
  bool timeline = true;  ///< one more step under the profiler
  bool trace = true;     ///< LMS's learnt step is written beside the record
  bool weights = true;   ///< a fingerprint of the weights afterwards
  std::string commit;
  std::string out;  ///< the record's file
};

/// Throws BadSetting for an unknown name, naming the nearest, or a value that cannot be.
void set_value(TrySpec& spec, const std::string& name, const std::string& value);
TrySpec spec_of(const Values& values);
/// What spec_of() reads back alike.
Values values_of(const TrySpec& spec);

/// plain, lms, lms-swap, save_on_cpu, checkpoint.
const std::vector<std::string>& method_names();

/// What of a record was made otherwise than a try would be, as "precision tf32, not fp32"; "" where
/// nothing was. Sizes are left out, and what only says how long a try is watched.
std::string other_setting(const Record& record, const TrySpec& spec);

/// The record's first fields; kFailed until a try has ended.
Record begun_record(const TrySpec& spec);

}  // namespace lms::studies
