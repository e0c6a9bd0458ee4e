#include <lms/options.h>

#include <array>
#include <charconv>

#include "base/error.h"

namespace lms::torch {
namespace {

[[noreturn]] void refuse(const std::string& value, const std::string& what) {
  throw BadSetting("'" + value + "' is not " + what);
}

template <typename Number>
Number read_number(const std::string& text, const char* what) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) refuse(text, what);
  return value;
}

template <typename Number>
std::string number_text(Number value) {
  std::array<char, 64> buffer = {};
  return {buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr};
}

bool read_flag(const std::string& text) {
  if (text == "true" || text == "1" || text == "yes" || text == "on") return true;
  if (text == "false" || text == "0" || text == "no" || text == "off") return false;
  refuse(text, "true or false");
}

std::string flag_text(bool value) { return value ? "true" : "false"; }

using Kind = OptionKey::Kind;

OptionKey amount(const char* name, std::int64_t Options::*field, const char* help) {
  return {name, Kind::kAmount, help,
          [field](Options& o, const std::string& v) {
            o.*field = read_number<std::int64_t>(v, "a whole number of bytes");
          },
          [field](const Options& o) { return number_text(o.*field); }};
}

OptionKey flag(const char* name, bool Options::*field, const char* help) {
  return {name, Kind::kFlag, help,
          [field](Options& o, const std::string& v) { o.*field = read_flag(v); },
          [field](const Options& o) { return flag_text(o.*field); }};
}

OptionKey maybe(const char* name, std::optional<bool> Options::*field, const char* help) {
  return {name, Kind::kMaybe, help,
          [field](Options& o, const std::string& v) {
            o.*field = v == "auto" ? std::nullopt : std::optional(read_flag(v));
          },
          [field](const Options& o) { return o.*field ? flag_text(*(o.*field)) : "auto"; }};
}

OptionKey seconds(const char* name, double Options::*field, const char* help) {
  return {name, Kind::kSeconds, help,
          [field](Options& o, const std::string& v) {
            const auto value = read_number<double>(v, "a number of seconds");
            if (!(value >= 0 && value <= 1e6)) refuse(v, "a number of seconds from 0 to 1e6");
            o.*field = value;
          },
          [field](const Options& o) { return number_text(o.*field); }};
}

OptionKey text(const char* name, std::string Options::*field, const char* help) {
  return {name, Kind::kText, help, [field](Options& o, const std::string& v) { o.*field = v; },
          [field](const Options& o) { return o.*field; }};
}

}  // namespace

const std::vector<OptionKey>& option_keys() {
  static const std::vector<OptionKey> keys = {
      text("device", &Options::device, "cuda, cuda:1 or cpu"),
      amount("limit", &Options::limit, "device memory to stay below: 12GiB, 25%"),
      amount("host_limit", &Options::host_limit, "the same of the tier underneath"),
      amount("min_block", &Options::min_block, "smaller tensors stay where they are (1MiB)"),
      text("directory", &Options::directory, "folder for the file below the CPU"),
      flag("stress", &Options::stress, "for tests: everything leaves after every operator"),
      flag("verify", &Options::verify, "for tests: clean blocks are compared as they leave"),
      flag("plan", &Options::plan, "learn the steps, plan their copies ahead"),
      flag("plan_at_once", &Options::plan_at_once, "for tests: the step waits for its plan"),
      seconds("plan_seconds", &Options::plan_seconds, "most time to search for a plan"),
      maybe("recompute", &Options::recompute, "plans may compute again what is cheap"),
      text("plan_cache", &Options::plan_cache,
           "folder that keeps plans for the next start; auto: the user's folder of caches; off"),
      text("slices", &Options::slices,
           "operators that do not fit run in parts: auto, off; for tests: always"),
      flag("drop", &Options::drop, "for tests, with stress: drop what can be computed again"),
      text("deferred_updates", &Options::deferred_updates,
           "updates of weights may wait until they are wanted: auto, true, false, chosen"),
      flag("other_algorithms", &Options::other_algorithms,
           "convolutions whose first algorithm never fits may take another, with other bits"),
  };
  return keys;
}

void set_option(Options& options, const std::string& name, const std::string& value) {
  std::string valid;
  for (const OptionKey& key : option_keys()) {
    if (key.name != name) {
      valid += (valid.empty() ? "" : ", ") + key.name;
      continue;
    }
    try {
      key.set(options, value);
    } catch (const BadSetting& error) {
      throw BadSetting(name + ": " + error.what());
    }
    return;
  }
  throw BadSetting("unknown setting '" + name + "' (valid: " + valid + ")");
}

}  // namespace lms::torch
