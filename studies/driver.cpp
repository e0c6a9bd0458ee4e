#include "studies/driver.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "studies/child.h"
#include "studies/search.h"

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

/// A size that is wanted of a series, or a search in it.
struct Item {
  const Recipe* recipe = nullptr;
  const RecipeSeries* series = nullptr;
  RecipeTries tries;
  double multiple = 0;     ///< of the largest in memory
  std::int64_t value = 0;  ///< or as given
  bool search = false;
};

std::string multiple_text(double multiple) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4gx", multiple);
  return text;
}

class Driver {
 public:
  Driver(const std::vector<Recipe>& recipes, const DriverOptions& options, std::FILE* log,
         const std::function<bool()>& stop)
      : options_(options), log_(log), stop_(stop) {
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

  [[nodiscard]] std::string folder(const Recipe& recipe, const RecipeSeries& series) const {
    return options_.out + "/" + recipe.study + "/" + series.name;
  }

  [[nodiscard]] std::string file(const Item& item, std::int64_t size) const {
    return folder(*item.recipe, *item.series) + "/" +
           try_key(item.tries.method, size, item.tries.link) + ".json";
  }

  /// Every size of a method in a series that has a record, by the files.
  std::map<std::int64_t, Record> records(const Recipe& recipe, const RecipeSeries& series,
                                         const std::string& method, const std::string& link) const {
    std::map<std::int64_t, Record> found;
    for (const std::string& name : names_in(folder(recipe, series))) {
      if (!name.ends_with(".json") || name.starts_with("boundary.")) continue;
      auto record = read_record(folder(recipe, series) + "/" + name);
      if (!record || record->method != method || record->link_emulated.value_or("") != link) {
        continue;
      }
      const std::int64_t size =
          series.over == "batch" ? record->batch : (record->sides.empty() ? 0 : record->sides[0]);
      found.emplace(size, std::move(*record));
    }
    return found;
  }

  std::map<std::int64_t, Tried> tried(const Recipe& recipe, const RecipeSeries& series,
                                      const std::string& method, const std::string& link) const {
    std::map<std::int64_t, Tried> all;
    for (const auto& [size, record] : records(recipe, series, method, link)) {
      Tried& each = all[size];
      each.outcome = record.outcome;
      // LMS fills what it is given: its peak says nothing of the size that would just fit.
      if (record.peak_reserved && record.cap > 0 && !method.starts_with("lms")) {
        each.used = static_cast<double>(*record.peak_reserved) / static_cast<double>(record.cap);
      }
    }
    return all;
  }

  /// The largest that trains in memory, as far as it is known.
  std::optional<std::int64_t> base_of(const Recipe& recipe, const RecipeSeries& series) const {
    if (series.base > 0) return series.base;
    return edge_of(tried(recipe, series, "plain", "")).largest_ok;
  }

  [[nodiscard]] SearchOptions search_options(const Item& item) const {
    const RecipeSeries& series = *item.series;
    SearchOptions options{.start = series.start > 0 ? series.start : series.base,
                          .step = series.step,
                          .power = series.over == "side" ? double(dimensions(series.settings)) : 1};
    if (item.tries.start_multiple > 0) {
      if (const auto base = base_of(*item.recipe, series)) {
        options.start = scaled(*base, item.tries.start_multiple, series.over,
                               dimensions(series.settings), series.step);
      }
    }
    return options;
  }

  /// The size of an item that is no search; nothing where it is not known yet.
  std::optional<std::int64_t> size_of(const Item& item) const {
    if (item.value > 0) return item.value;
    const auto base = base_of(*item.recipe, *item.series);
    if (!base) return std::nullopt;
    return scaled(*base, item.multiple, item.series->over, dimensions(item.series->settings),
                  item.series->step);
  }

  /// Has this try a record that stands?
  bool known(const Item& item, std::int64_t size) const {
    const std::string path = file(item, size);
    if (made_.contains(path)) return true;
    if (options_.again) return false;
    const auto record = read_record(path);
    return record && record->outcome != Outcome::kFailed;
  }

  /// The sides of a series over batches that take them from another series.
  std::optional<std::int64_t> side_of(const Item& item) const {
    for (const RecipeSeries& series : item.recipe->series) {
      if (series.name != item.series->side_of) continue;
      const auto base = base_of(*item.recipe, series);
      if (!base) return std::nullopt;
      const double side = static_cast<double>(*base) * item.series->side_factor;
      const auto steps = static_cast<std::int64_t>(side / static_cast<double>(series.step) + 1e-9);
      return std::max<std::int64_t>(1, steps) * series.step;
    }
    return std::nullopt;
  }

  /// Nothing where what it rests on is not known.
  std::optional<TrySpec> spec_for(const Item& item, std::int64_t size) const {
    Values values = item.series->settings;
    for (const auto& [name, value] : item.tries.settings) values[name] = value;
    for (const auto& [name, value] : options_.settings) values[name] = value;
    TrySpec spec = spec_of(values);
    spec.study = item.recipe->study;
    spec.series = item.series->name;
    spec.method = item.tries.method;
    spec.link = item.tries.link;
    const auto sides = static_cast<std::size_t>(dimensions(item.series->settings));
    if (item.series->over == "batch") {
      spec.batch = size;
      if (!item.series->side_of.empty()) {
        const auto side = side_of(item);
        if (!side) return std::nullopt;
        spec.sides.assign(sides, *side);
      }
      if (spec.sides.size() == 1) spec.sides.assign(sides, spec.sides[0]);
    } else {
      spec.sides.assign(sides, size);
    }
    spec.out = file(item, size);
    return spec;
  }

  double estimate(const Item& item) const {
    double most = 0;
    for (const auto& [size, record] :
         records(*item.recipe, *item.series, item.tries.method, item.tries.link)) {
      most = std::max(most, record.wall.value_or(0));
    }
    return most > 0 ? 1.15 * most : usual_seconds(item.tries.method);
  }

  double time_left() const {
    if (options_.budget <= 0) return 1e9;
    return options_.budget - std::chrono::duration<double>(Clock::now() - begin_).count();
  }

  void search(const Item& item) {
    std::set<std::int64_t> now;
    std::int64_t made = 0;
    for (;;) {
      auto all = tried(*item.recipe, *item.series, item.tries.method, item.tries.link);
      // What failed says nothing, until it has failed again.
      std::erase_if(all, [&](const auto& each) {
        return !now.contains(each.first) &&
               (each.second.outcome == Outcome::kFailed || options_.again);
      });
      const auto size = next_size(all, search_options(item));
      if (!size) break;
      if (item.tries.most > 0 && made >= item.tries.most) break;
      if (!make(item, *size)) return;
      now.insert(*size);
      ++made;
    }
  }

  void one(const Item& item) {
    auto size = size_of(item);
    if (!size) {
      // The search in memory may have been left out by --only.
      Item base = item;
      base.tries.method = "plain";
      base.tries.link.clear();
      base.tries.settings.clear();
      base.tries.start_multiple = 0;
      base.tries.most = 0;
      if (!bases_.insert({item.recipe->study, item.series->name}).second) {
        ++result_.skipped;
        return;
      }
      search(base);
      if (out_of_time_) {
        ++result_.left;
        return;
      }
      size = size_of(item);
      if (!size) {
        say("%s %s: nothing trains in memory, so that there are no multiples of it",
            item.recipe->study.c_str(), item.series->name.c_str());
        ++result_.skipped;
        return;
      }
    }
    if (!known(item, *size)) make(item, *size);
  }

  /// False where the time has run out, or what the try rests on is not known.
  bool make(const Item& item, std::int64_t size) {
    const auto spec = spec_for(item, size);
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
    fs::remove(spec->out, error);
    std::vector<std::string> arguments = options_.worker;
    for (const auto& [name, value] : values_of(*spec)) arguments.push_back(name + "=" + value);
    const std::string output = spec->out.substr(0, spec->out.size() - 5) + ".log";
    const double timeout = std::min(options_.timeout, left);
    const ChildResult child = run_child(arguments, output, timeout, stop_);
    ++result_.tries;
    auto record = read_record(spec->out);
    const bool cut_short = child.stopped || (child.timed_out && timeout < options_.timeout);
    if (cut_short && !record) {
      out_of_time_ = true;
      ++result_.left;
      say("%s: stopped after %.0f s, to be made again", name_of(item, size).c_str(), child.seconds);
      return false;
    }
    if (!record) record = without_record(*spec, child, output);
    record->wall = child.seconds;
    write_json(spec->out, to_json(*record));
    made_.insert(spec->out);
    if (record->outcome == Outcome::kFailed) ++result_.failed;
    report(item, size, *record);
    write_boundary(item);
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

  void write_boundary(const Item& item) const {
    if (!item.tries.link.empty()) return;
    const auto all = tried(*item.recipe, *item.series, item.tries.method, "");
    if (all.empty()) return;
    Boundary boundary;
    boundary.study = item.recipe->study;
    boundary.series = item.series->name;
    boundary.method = item.tries.method;
    boundary.over = item.series->over;
    const auto found = records(*item.recipe, *item.series, item.tries.method, "");
    boundary.model = found.begin()->second.model;
    boundary.cap = found.begin()->second.cap;
    std::map<std::int64_t, Tried> telling;
    for (const auto& [size, result] : all) {
      boundary.tries.emplace_back(size, result.outcome);
      if (result.outcome != Outcome::kFailed) telling.emplace(size, result);
    }
    const Edge edge = edge_of(telling);
    boundary.largest_ok = edge.largest_ok;
    boundary.smallest_failed = edge.smallest_failed;
    if (edge.smallest_failed) boundary.why = outcome_name(all.at(*edge.smallest_failed).outcome);
    write_json(folder(*item.recipe, *item.series) + "/boundary." + item.tries.method + ".json",
               to_json(boundary));
  }

  DriverResult list() {
    double seconds = 0;
    for (const Item& item : items_) {
      const auto size = item.search ? std::nullopt : size_of(item);
      if (item.search) {
        auto all = tried(*item.recipe, *item.series, item.tries.method, item.tries.link);
        std::erase_if(all,
                      [](const auto& each) { return each.second.outcome == Outcome::kFailed; });
        const auto next = next_size(all, search_options(item));
        if (!next) continue;
        seconds += 3 * estimate(item);
        say_plain("%2d  %s, a search: next %lld, about 3 x %.0f s\n", item.tries.priority,
                  name_of(item, 0).c_str(), static_cast<long long>(*next), estimate(item));
        result_.left += 3;
        continue;
      }
      if (size && known(item, *size)) continue;
      seconds += estimate(item);
      ++result_.left;
      say_plain("%2d  %s, %.0f s\n", item.tries.priority, name_of(item, size.value_or(0)).c_str(),
                estimate(item));
    }
    say_plain("%d tries, about %.0f s\n", result_.left, seconds);
    return result_;
  }

  int remaining(const Item& item) const {
    if (item.search) {
      auto all = tried(*item.recipe, *item.series, item.tries.method, item.tries.link);
      return next_size(all, search_options(item)) ? 1 : 0;
    }
    const auto size = size_of(item);
    return size && known(item, *size) ? 0 : 1;
  }

  std::string name_of(const Item& item, std::int64_t size) const {
    std::string name = item.recipe->study + " " + item.series->name + " " + item.tries.method;
    if (!item.tries.link.empty()) name += " over " + item.tries.link;
    if (size > 0) name += " " + item.series->over + " " + std::to_string(size);
    if (item.multiple > 0) name += " (" + multiple_text(item.multiple) + ")";
    return name;
  }

  void report(const Item& item, std::int64_t size, const Record& record) {
    std::string text = name_of(item, size) + ": " + outcome_name(record.outcome);
    char part[128];
    if (const auto rate = rate_of(record)) {
      std::snprintf(part, sizeof part, ", %.3f s a step, %.4g %s/s", record.per_step / rate->median,
                    rate->median, record.unit.c_str());
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
  std::set<std::string> made_;
  std::set<std::pair<std::string, std::string>> bases_;
  DriverResult result_;
  bool out_of_time_ = false;
};

}  // namespace

std::string try_key(const std::string& method, std::int64_t size, const std::string& link) {
  return method + "." + std::to_string(size) + (link.empty() ? "" : "." + link);
}

DriverResult run_studies(const std::vector<Recipe>& recipes, const DriverOptions& options,
                         std::FILE* log, const std::function<bool()>& stop) {
  return Driver(recipes, options, log, stop).run();
}

}  // namespace lms::studies
