#include "lab/studies/driver.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "lab/studies/child.h"
#include "lab/studies/item.h"
#include "lab/studies/ledger.h"

namespace lms::studies {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr double kLeastTimeout = 20;
/// Of the time left, for ending a try and writing what is known.
constexpr double kMargin = 4;

/// Seconds of a try with its start, before any is known.
double usual_seconds(const std::string& method) {
  if (method == "plain") return 15;
  if (method == "checkpoint") return 18;
  if (method == "save_on_cpu") return 35;
  return 45;
}

std::string multiple_text(double multiple) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4gx", multiple);
  return text;
}

class Driver {
 public:
  Driver(const std::vector<Recipe>& recipes, const DriverOptions& options, std::FILE* log,
         const std::function<bool()>& stop)
      : options_(options),
        log_(log),
        stop_(stop),
        ledger_(options.out, options.settings, options.again) {
    for (const Recipe& recipe : recipes) add(recipe);
    std::ranges::stable_sort(items_, {}, [](const Item& item) { return item.tries.priority; });
  }

  DriverResult run() {
    if (options_.list) return list();
    for (const Item& item : items_) {
      if (out_of_time_) {
        result_.left += remaining(item);
        continue;
      }
      if (item.search) {
        search(item);
      } else {
        one(item);
      }
    }
    say("%d tries made, %d of them failed, %d left for another run, %d that cannot be made",
        result_.tries, result_.failed, result_.left, result_.skipped);
    if (const int others = of_other_commits(); others > 0) {
      say("%d records are of other commits; --again makes them again", others);
    }
    return result_;
  }

 private:
  void add(const Recipe& recipe) {
    for (const RecipeSeries& series : recipe.series) {
      for (const RecipeTries& tries : series.tries) {
        if (tries.priority > options_.most_priority) continue;
        if (!wanted(recipe, series, tries)) continue;
        Item item{.recipe = &recipe, .series = &series, .tries = tries};
        if (tries.search) {
          item.search = true;
          items_.push_back(item);
          item.search = false;
        }
        for (const double multiple : tries.multiples) {
          item.multiple = multiple;
          items_.push_back(item);
        }
        item.multiple = 0;
        for (const std::int64_t value : tries.values) {
          item.value = value;
          items_.push_back(item);
        }
      }
    }
  }

  bool wanted(const Recipe& recipe, const RecipeSeries& series, const RecipeTries& tries) const {
    if (options_.only.empty()) return true;
    const std::string name = recipe.study + "/" + series.name + "/" + tries.method +
                             (tries.link.empty() ? "" : "." + tries.link);
    return std::ranges::any_of(options_.only, [&](const std::string& part) {
      return name.find(part) != std::string::npos;
    });
  }

  double estimate(const Item& item) const {
    const double longest = ledger_.longest(item);
    if (longest <= 0) return usual_seconds(item.tries.method);
    return std::min(1.15 * longest, options_.timeout);
  }

  double time_left() const {
    if (options_.budget <= 0) return 1e9;
    return options_.budget - std::chrono::duration<double>(Clock::now() - begin_).count();
  }

  void search(const Item& item) {
    while (const auto size = ledger_.next_of(item)) {
      if (!make(item, *size)) return;
    }
    // Sizes that this search did not come to would be taken for its own by the next run.
    if (options_.again) ledger_.remove_older(item);
  }

  void one(const Item& item) {
    auto size = ledger_.size_of(item);
    if (!size) {
      // The search in memory may have been left out by --only.
      if (searched_.insert({item.recipe->study, item.series->name}).second) {
        search(search_in_memory(*item.recipe, *item.series));
      }
      if (out_of_time_) {
        ++result_.left;
        return;
      }
      size = ledger_.size_of(item);
    }
    if (!size) {
      say("%s cannot be made: the largest in memory is not known", name_of(item, 0).c_str());
      ++result_.skipped;
      return;
    }
    if (!ledger_.known(item, *size)) make(item, *size);
  }

  /// False where the time has run out, or what the try rests on is not known.
  bool make(const Item& item, std::int64_t size) {
    const auto spec = ledger_.spec_for(item, size);
    if (!spec) {
      say("%s %s: the side of series %s is not known", item.recipe->study.c_str(),
          item.series->name.c_str(), item.series->side_of.c_str());
      ++result_.skipped;
      return false;
    }
    const double left = time_left() - kMargin;
    if ((stop_ && stop_()) || left < std::max(kLeastTimeout, estimate(item))) {
      out_of_time_ = true;
      ++result_.left;
      return false;
    }
    fs::create_directories(fs::path(spec->out).parent_path());
    // The record that is there afterwards is this try's.
    std::error_code error;
    const std::string stem = spec->out.substr(0, spec->out.size() - 5);
    fs::remove(spec->out, error);
    fs::remove(stem + ".trace.json.gz", error);
    std::vector<std::string> arguments = options_.worker;
    for (const auto& [name, value] : values_of(*spec)) arguments.push_back(name + "=" + value);
    const std::string output = stem + ".log";
    const double timeout = std::min(options_.timeout, left);
    const ChildResult child = run_child(arguments, output, timeout, stop_);
    ++result_.tries;
    auto record = records::read_record(spec->out);
    const bool cut_short = child.stopped || (child.timed_out && timeout < options_.timeout);
    if (cut_short && (!record || record->partial)) {
      fs::remove(spec->out, error);
      out_of_time_ = true;
      ++result_.left;
      say("%s: stopped after %.0f s, to be made again", name_of(item, size).c_str(), child.seconds);
      return false;
    }
    if (!record) record = without_record(*spec, child, output);
    record->wall = child.seconds;
    records::write_json(spec->out, to_json(*record));
    ledger_.add_made(spec->out);
    if (record->outcome == Outcome::kFailed) ++result_.failed;
    report(item, size, *record);
    ledger_.write_boundary(item);
    return true;
  }

  /// Of a process that has left no record.
  static Record without_record(const TrySpec& spec, const ChildResult& child,
                               const std::string& output) {
    Record record = begun_record(spec);
    if (child.timed_out) {
      record.outcome = Outcome::kTimeout;
      record.message = "not done after " + std::to_string(std::lround(child.seconds)) + " s";
    } else if (child.status == 128 + SIGKILL) {
      // Nobody else kills with that: the system, for its memory.
      record.outcome = Outcome::kHost;
      record.message = "killed by the system, as when its memory is full";
    } else {
      record.outcome = Outcome::kFailed;
      record.message = "ended with status " + std::to_string(child.status) + ": " + tail_of(output);
    }
    return record;
  }

  DriverResult list() {
    double seconds = 0;
    for (const Item& item : items_) {
      if (item.search) {
        const auto next = ledger_.next_of(item);
        if (!next) continue;
        seconds += 3 * estimate(item);
        say_plain("%2d  %s, a search: next %lld, about 3 x %.0f s\n", item.tries.priority,
                  name_of(item, 0).c_str(), static_cast<long long>(*next), estimate(item));
        result_.left += 3;
        continue;
      }
      const auto size = ledger_.size_of(item);
      if (size && ledger_.known(item, *size)) continue;
      seconds += estimate(item);
      ++result_.left;
      say_plain("%2d  %s, %.0f s\n", item.tries.priority, name_of(item, size.value_or(0)).c_str(),
                estimate(item));
    }
    say_plain("%d tries, about %.0f s\n", result_.left, seconds);
    return result_;
  }

  int remaining(const Item& item) const {
    if (item.search) return ledger_.next_of(item) ? 1 : 0;
    const auto size = ledger_.size_of(item);
    return size && ledger_.known(item, *size) ? 0 : 1;
  }

  /// Records that stand, and were made by another state of this project.
  int of_other_commits() const {
    const auto commit = options_.settings.find("commit");
    if (commit == options_.settings.end()) return 0;
    std::set<std::string> others;
    for (const Item& item : items_) {
      for (const auto& [size, record] : ledger_.records(item)) {
        if (record.commit != commit->second) others.insert(ledger_.file(item, size));
      }
    }
    return static_cast<int>(others.size());
  }

  std::string name_of(const Item& item, std::int64_t size) const {
    std::string name = item.recipe->study + " " + item.series->name + " " + item.tries.method;
    if (!item.tries.link.empty()) name += " over " + item.tries.link;
    if (size > 0) name += " " + item.series->over + " " + std::to_string(size);
    if (item.multiple > 0) name += " (" + multiple_text(item.multiple) + ")";
    return name;
  }

  void report(const Item& item, std::int64_t size, const Record& record) {
    std::string text = name_of(item, size) + ": " + record.outcome;
    char part[128];
    if (const auto rate = record.rate()) {
      std::snprintf(part, sizeof part, ", %.3f s a step, %.4g %s/s", *record.step(), *rate,
                    record.unit.c_str());
      text += part;
    }
    if (record.predicted) {
      std::snprintf(part, sizeof part, ", predicted %.3f s", *record.predicted);
      text += part;
    }
    if (!record.message.empty()) text += ", " + record.message.substr(0, 200);
    say("%s (%.0f s)", text.c_str(), record.wall.value_or(0));
  }

  template <typename... Arguments>
  void say(const char* format, Arguments... arguments) {
    std::fprintf(log_, "[%5.0f s] ", std::chrono::duration<double>(Clock::now() - begin_).count());
    std::fprintf(log_, format, arguments...);
    std::fputc('\n', log_);
    std::fflush(log_);
  }

  template <typename... Arguments>
  void say_plain(const char* format, Arguments... arguments) {
    std::fprintf(log_, format, arguments...);
  }

  const DriverOptions& options_;
  std::FILE* log_;
  const std::function<bool()>& stop_;
  Clock::time_point begin_ = Clock::now();
  std::vector<Item> items_;
  Ledger ledger_;
  std::set<std::pair<std::string, std::string>> searched_;  ///< study and series
  DriverResult result_;
  bool out_of_time_ = false;
};

}  // namespace

DriverResult run_studies(const std::vector<Recipe>& recipes, const DriverOptions& options,
                         std::FILE* log, const std::function<bool()>& stop) {
  return Driver(recipes, options, log, stop).run();
}

}  // namespace lms::studies
