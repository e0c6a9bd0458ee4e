#include "lab/studies/try_spec.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/quantity.h"
#include "lab/train/settings.h"

namespace lms::studies {
namespace {

using Set = std::function<void(TrySpec&, const std::string&)>;
using Get = std::function<std::string(const TrySpec&)>;

struct Key {
  std::string name;
  Set set;
  Get get;
};

template <typename Number>
Number number(const std::string& text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw BadSetting("'" + text + "' is no number");
  }
  return value;
}

std::string text_of(double value) {
  char buffer[32];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
}

std::int64_t at_least(std::int64_t least, std::int64_t value) {
  if (value < least) {
    throw BadSetting(std::to_string(value) + " is below " + std::to_string(least));
  }
  return value;
}

/// "32x48" or "32,48", above 0.
std::vector<std::int64_t> numbers(const std::string& text) {
  std::vector<std::int64_t> all;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of(",x", at), text.size());
    all.push_back(at_least(1, number<std::int64_t>(text.substr(at, end - at))));
    at = end + 1;
  }
  if (!text.empty() && (text.back() == 'x' || text.back() == ',')) {
    throw BadSetting("'" + text + "' ends in the middle");
  }
  return all;
}

std::string one_of(const std::string& text, const std::vector<std::string>& names) {
  if (std::ranges::find(names, text) != names.end()) return text;
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  throw BadSetting("'" + text + "' is none of " + all);
}

Key text_key(const std::string& name, std::string TrySpec::*field,
             std::vector<std::string> names = {}) {
  return {name,
          [field, names](TrySpec& spec, const std::string& text) {
            spec.*field = names.empty() || text.empty() ? text : one_of(text, names);
          },
          [field](const TrySpec& spec) { return spec.*field; }};
}

Key count_key(const std::string& name, std::int64_t TrySpec::*field, std::int64_t least) {
  return {name,
          [field, least](TrySpec& spec, const std::string& text) {
            spec.*field = at_least(least, number<std::int64_t>(text));
          },
          [field](const TrySpec& spec) { return std::to_string(spec.*field); }};
}

Key bytes_key(const std::string& name, std::int64_t TrySpec::*field, std::int64_t least = 0) {
  return {name,
          [field, least](TrySpec& spec, const std::string& text) {
            const bool plain = text.find_first_not_of("-0123456789") == std::string::npos;
            spec.*field = at_least(least, plain ? number<std::int64_t>(text) : parse_bytes(text));
          },
          [field](const TrySpec& spec) { return std::to_string(spec.*field); }};
}

Key real_key(const std::string& name, double TrySpec::*field) {
  return {name,
          [field](TrySpec& spec, const std::string& text) {
            const auto value = number<double>(text);
            if (!std::isfinite(value) || value < 0) throw BadSetting("'" + text + "' cannot be");
            spec.*field = value;
          },
          [field](const TrySpec& spec) { return text_of(spec.*field); }};
}

Key flag_key(const std::string& name, bool TrySpec::*field) {
  return {name,
          [field](TrySpec& spec, const std::string& text) {
            spec.*field = one_of(text, {"true", "false"}) == "true";
          },
          [field](const TrySpec& spec) { return spec.*field ? "true" : "false"; }};
}

const std::vector<Key>& keys() {
  static const std::vector<Key> kKeys = {
      text_key("study", &TrySpec::study),
      text_key("series", &TrySpec::series),
      text_key("model", &TrySpec::model),
      count_key("batch", &TrySpec::batch, 1),
      {"sides", [](TrySpec& spec, const std::string& text) { spec.sides = numbers(text); },
       [](const TrySpec& spec) {
         std::string text;
         for (const std::int64_t side : spec.sides) {
           text += (text.empty() ? "" : "x") + std::to_string(side);
         }
         return text;
       }},
      count_key("classes", &TrySpec::classes, 0),
      text_key("precision", &TrySpec::precision, {"fp32", "tf32", "bf16", "fp16"}),
      text_key("method", &TrySpec::method, method_names()),
      bytes_key("cap", &TrySpec::cap),
      text_key("link", &TrySpec::link, {"pcie3", "pcie4", "nvlink2"}),
      text_key("unit", &TrySpec::unit, {"MP", "MV", "images"}),
      text_key("device", &TrySpec::device),
      bytes_key("reserve", &TrySpec::reserve),
      bytes_key("slack", &TrySpec::slack, -1),
      bytes_key("host_budget", &TrySpec::host_budget),
      bytes_key("min_block", &TrySpec::min_block),
      real_key("plan_seconds", &TrySpec::plan_seconds),
      count_key("warmup", &TrySpec::warmup, 0),
      count_key("settle", &TrySpec::settle, 1),
      real_key("settle_seconds", &TrySpec::settle_seconds),
      count_key("steps", &TrySpec::steps, 1),
      real_key("step_seconds", &TrySpec::step_seconds),
      count_key("threads", &TrySpec::threads, 0),
      count_key("seed", &TrySpec::seed, 0),
      flag_key("deterministic", &TrySpec::deterministic),
      flag_key("timeline", &TrySpec::timeline),
      flag_key("trace", &TrySpec::trace),
      flag_key("weights", &TrySpec::weights),
      text_key("commit", &TrySpec::commit),
      text_key("out", &TrySpec::out),
  };
  return kKeys;
}

constexpr const char* kVariants = "variants.";
constexpr const char* kTraining = "training.";

bool starts(const std::string& text, const char* with) { return text.rfind(with, 0) == 0; }

}  // namespace

void set_value(TrySpec& spec, const std::string& name, const std::string& value) {
  if (starts(name, kVariants)) {
    spec.variants[name.substr(std::char_traits<char>::length(kVariants))] = value;
    return;
  }
  if (starts(name, kTraining)) {
    spec.training[name.substr(std::char_traits<char>::length(kTraining))] = value;
    return;
  }
  const auto found = std::ranges::find(keys(), name, &Key::name);
  if (found == keys().end()) {
    std::vector<std::string> names;
    for (const Key& key : keys()) names.push_back(key.name);
    const std::string near = train::nearest(name, names);
    throw BadSetting("there is no setting '" + name + "'" +
                     (near.empty() ? "" : "; did you mean '" + near + "'?"));
  }
  try {
    found->set(spec, value);
  } catch (const BadSetting& error) {
    throw BadSetting(name + ": " + error.what());
  }
}

TrySpec spec_of(const Values& values) {
  TrySpec spec;
  for (const auto& [name, value] : values) set_value(spec, name, value);
  return spec;
}

Values values_of(const TrySpec& spec) {
  const TrySpec fresh;
  Values values;
  for (const Key& key : keys()) {
    const std::string text = key.get(spec);
    if (text != key.get(fresh)) values[key.name] = text;
  }
  for (const auto& [name, value] : spec.variants) values[kVariants + name] = value;
  for (const auto& [name, value] : spec.training) values[kTraining + name] = value;
  return values;
}

const std::vector<std::string>& method_names() {
  static const std::vector<std::string> kNames = {"plain", "lms", "lms-swap", "save_on_cpu",
                                                  "checkpoint"};
  return kNames;
}

namespace {

/// The settings that a record has no fields for, and that change what is measured.
std::map<std::string, std::string> telling_settings(const TrySpec& spec) {
  std::map<std::string, std::string> telling;
  for (const auto& [name, value] : values_of(spec)) {
    const bool tells = starts(name, kVariants) || starts(name, kTraining) || name == "device" ||
                       name == "deterministic" || name == "reserve" || name == "slack";
    if (tells) telling[name] = value;
  }
  return telling;
}

std::string listed(const std::map<std::string, std::string>& settings) {
  std::string all;
  for (const auto& [name, value] : settings) all += (all.empty() ? "" : " ") + name + "=" + value;
  return all.empty() ? "none" : all;
}

}  // namespace

std::string other_setting(const Record& record, const TrySpec& spec) {
  const auto differ = [](const std::string& what, const std::string& is, const std::string& asked) {
    return what + " " + is + ", not " + asked;
  };
  if (record.model != spec.model) return differ("model", record.model, spec.model);
  if (record.precision != spec.precision) {
    return differ("precision", record.precision, spec.precision);
  }
  const auto cap = static_cast<std::int64_t>(record.cap.value_or(0));
  if (cap != spec.cap) return differ("cap", std::to_string(cap), std::to_string(spec.cap));
  // Where none is asked for, it is the model's own.
  if (spec.classes > 0 && record.classes > 0 && record.classes != spec.classes) {
    return differ("classes", std::to_string(record.classes), std::to_string(spec.classes));
  }
  const auto telling = telling_settings(spec);
  if (record.settings && *record.settings != telling) {
    return differ("settings", listed(*record.settings), listed(telling));
  }
  return "";
}

Record begun_record(const TrySpec& spec) {
  Record record;
  record.study = spec.study;
  record.series = spec.series;
  record.model = spec.model;
  record.batch = static_cast<double>(spec.batch);
  record.sides.assign(spec.sides.begin(), spec.sides.end());
  record.classes = spec.classes;
  record.precision = spec.precision;
  record.method = spec.method;
  if (spec.cap > 0) record.cap = static_cast<double>(spec.cap);
  record.settings = telling_settings(spec);
  record.link = spec.link;
  double cells = static_cast<double>(spec.batch);
  for (const std::int64_t side : spec.sides) cells *= static_cast<double>(side);
  record.unit = !spec.unit.empty() ? spec.unit : (spec.sides.size() == 3 ? "MV" : "MP");
  record.per_step = record.unit == "images" ? static_cast<double>(spec.batch) : cells / 1e6;
  record.commit = spec.commit;
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
  record.date = text;
  return record;
}

}  // namespace lms::studies
