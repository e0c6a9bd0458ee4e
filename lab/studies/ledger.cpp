#include "lab/studies/ledger.h"

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "lab/studies/folder.h"

namespace lms::studies {
namespace {

constexpr std::string_view kEnding = ".json";

bool is_managed(const std::string& method) { return method.starts_with("lms"); }

}  // namespace

Ledger::Ledger(std::string out, Values settings, bool again)
    : out_(std::move(out)), settings_(std::move(settings)), again_(again) {}

std::string Ledger::folder(const Item& item) const {
  return out_ + "/" + item.recipe->study + "/" + item.series->name;
}

std::string Ledger::file(const Item& item, std::int64_t size) const {
  return folder(item) + "/" + try_key(item.tries.method, size, item.tries.link) +
         std::string(kEnding);
}

std::optional<std::int64_t> Ledger::side_of(const Item& item) const {
  for (const RecipeSeries& series : item.recipe->series) {
    if (series.name != item.series->side_of) continue;
    const auto base = largest_in_memory(*item.recipe, series);
    if (!base) return std::nullopt;
    const double side = static_cast<double>(*base) * item.series->side_factor;
    const auto steps = static_cast<std::int64_t>(side / static_cast<double>(series.step) + 1e-9);
    return std::max<std::int64_t>(1, steps) * series.step;
  }
  return std::nullopt;
}

std::optional<TrySpec> Ledger::spec_for(const Item& item, std::int64_t size) const {
  Values values = item.series->settings;
  for (const auto& [name, value] : item.tries.settings) values[name] = value;
  for (const auto& [name, value] : settings_) values[name] = value;
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

bool Ledger::stands(const Record& record, const TrySpec& spec, const std::string& path) const {
  if (again_) return made_.contains(path);
  const std::string other = other_setting(record, spec);
  if (!other.empty()) {
    throw BadSetting(path + " is of other settings: " + other +
                     ". Name another folder with --out, or delete it, or make it --again");
  }
  return record.batch == static_cast<double>(spec.batch) &&
         std::ranges::equal(record.sides, spec.sides);
}

std::vector<std::int64_t> Ledger::sizes(const Item& item) const {
  std::vector<std::int64_t> all;
  for (const std::string& name : names_in(folder(item))) {
    if (!name.ends_with(kEnding)) continue;
    const std::string key = name.substr(0, name.size() - kEnding.size());
    const auto size = size_in_key(key, item.tries.method, item.tries.link);
    if (size) all.push_back(*size);
  }
  return all;
}

std::map<std::int64_t, Record> Ledger::records(const Item& item) const {
  std::map<std::int64_t, Record> found;
  for (const std::int64_t size : sizes(item)) {
    const std::string path = file(item, size);
    auto record = records::read_record(path);
    if (!record) continue;
    const auto spec = spec_for(item, size);
    if (spec && stands(*record, *spec, path)) found.emplace(size, std::move(*record));
  }
  return found;
}

bool Ledger::known(const Item& item, std::int64_t size) const {
  const std::string path = file(item, size);
  if (made_.contains(path)) return true;
  if (again_) return false;
  const auto record = records::read_record(path);
  const auto spec = spec_for(item, size);
  return record && spec && stands(*record, *spec, path) && record->outcome != Outcome::kFailed;
}

std::map<std::int64_t, Tried> Ledger::tried(const Item& item) const {
  std::map<std::int64_t, Tried> all;
  for (const auto& [size, record] : records(item)) {
    Tried& each = all[size];
    each.outcome = record.outcome;
    // LMS fills what it is given: its peak says nothing of the size that would just fit.
    if (record.peak_reserved && record.cap && !is_managed(item.tries.method)) {
      each.used = *record.peak_reserved / *record.cap;
    }
  }
  return all;
}

std::optional<std::int64_t> Ledger::largest_in_memory(const Recipe& recipe,
                                                      const RecipeSeries& series) const {
  if (series.base > 0) return series.base;
  const Item item = search_in_memory(recipe, series);
  auto all = tried(item);
  std::erase_if(all, [](const auto& each) { return each.second.outcome == Outcome::kFailed; });
  if (next_size(all, search_options(item))) return std::nullopt;
  const Edge edge = edge_of(all);
  // What took too long may well have fitted.
  const bool by_time =
      edge.smallest_failed && all.at(*edge.smallest_failed).outcome == Outcome::kTimeout;
  return by_time ? std::nullopt : edge.largest_ok;
}

SearchOptions Ledger::search_options(const Item& item) const {
  const RecipeSeries& series = *item.series;
  const int sides = dimensions(series.settings);
  SearchOptions options{.start = series.start > 0 ? series.start : series.base,
                        .step = series.step,
                        .power = series.over == "side" ? static_cast<double>(sides) : 1};
  if (item.tries.start_multiple > 0) {
    if (const auto base = largest_in_memory(*item.recipe, series)) {
      options.start = scaled(*base, item.tries.start_multiple, series.over, sides, series.step);
    }
  }
  return options;
}

std::optional<std::int64_t> Ledger::size_of(const Item& item) const {
  if (item.value > 0) return item.value;
  const auto base = largest_in_memory(*item.recipe, *item.series);
  if (!base) return std::nullopt;
  return scaled(*base, item.multiple, item.series->over, dimensions(item.series->settings),
                item.series->step);
}

std::optional<std::int64_t> Ledger::next_of(const Item& item) const {
  auto all = tried(item);
  // What failed says nothing, until it has failed again.
  std::erase_if(all, [&](const auto& each) {
    return each.second.outcome == Outcome::kFailed && !made_.contains(file(item, each.first));
  });
  if (item.tries.most > 0 && std::cmp_greater_equal(all.size(), item.tries.most)) {
    return std::nullopt;
  }
  return next_size(all, search_options(item));
}

double Ledger::longest(const Item& item) const {
  double most = 0;
  for (const std::int64_t size : sizes(item)) {
    const auto record = records::read_record(file(item, size));
    if (record) most = std::max(most, record->wall.value_or(0));
  }
  return most;
}

void Ledger::write_boundary(const Item& item) const {
  if (!item.tries.link.empty()) return;
  const auto all = records(item);
  if (all.empty()) return;
  records::Boundary boundary;
  boundary.study = item.recipe->study;
  boundary.series = item.series->name;
  boundary.method = item.tries.method;
  boundary.over = item.series->over;
  boundary.model = all.begin()->second.model;
  boundary.cap = all.begin()->second.cap;
  std::map<std::int64_t, Tried> telling;
  for (const auto& [size, record] : all) {
    boundary.tries.emplace_back(size, record.outcome);
    if (record.outcome != Outcome::kFailed) telling[size].outcome = record.outcome;
  }
  const Edge edge = edge_of(telling);
  boundary.largest_ok = edge.largest_ok;
  boundary.smallest_failed = edge.smallest_failed;
  if (edge.smallest_failed) boundary.why = all.at(*edge.smallest_failed).outcome;
  records::write_json(folder(item) + "/boundary." + item.tries.method + std::string(kEnding),
                      to_json(boundary));
}

void Ledger::remove_older(const Item& item) const {
  for (const std::int64_t size : sizes(item)) {
    const std::string path = file(item, size);
    if (!made_.contains(path)) std::remove(path.c_str());
  }
}

}  // namespace lms::studies
