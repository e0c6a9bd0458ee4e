#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/report/runs.h"

namespace lms::report {

/// A published result, and what is to be reached instead.
struct Goal {
  enum class Measure {
    kFactor,    ///< times the most that fits in memory
    kRate,      ///< change of the data rate against the last rate in memory
    kOverhead,  ///< time per sample over that in memory, less one
  };
  Measure measure = Measure::kFactor;
  std::string over;  ///< "side" or "batch"
  /// Multiples of the in-memory maximum between which a rate or overhead was published.
  std::optional<double> from;
  std::optional<double> to;
  std::optional<double> judge_at;  ///< where ours counts; none: at the largest
  std::optional<double> published_least;
  std::optional<double> published_most;
  std::optional<double> target;
  std::string where;
};

struct PublishedOverhead {
  std::string size;
  std::string link;
  double value = 0;
};
struct PublishedLinks {
  std::string fast;
  std::string slow;
  double value = 0;
  std::string where;
};
struct PublishedOperator {
  std::string size;
  double bytes = 0;
};
struct PublishedTraffic {
  std::string size;
  double to_device = 0;
  double batches = 1;
};
struct PublishedUse {
  std::string size;
  double at = 0;  ///< that size as multiple of the in-memory maximum
  double link = 0;
  double link_rate = 0;
  double gpu = 0;
};

/// One study as it was published.
struct Published {
  std::string study;
  std::string title;
  std::string subject;
  std::string setting;
  std::string hardware;
  std::vector<Goal> goals;
  std::vector<PublishedOverhead> overheads;
  std::vector<PublishedLinks> links;
  std::vector<PublishedOperator> operators;
  std::vector<PublishedTraffic> traffic;
  std::optional<PublishedUse> use;
  std::vector<std::string> facts;
};

/// All studies of an object of schema "lms-published/1". What is wrong in it becomes problems.
std::vector<Published> read_published(const nlohmann::json& json, const std::string& file,
                                      std::vector<Problem>& problems);

/// The text of lab/recipes/studies/published.json when this was built.
std::string_view published_text();

}  // namespace lms::report
