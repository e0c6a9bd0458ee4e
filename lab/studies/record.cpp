#include "lab/studies/record.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>

#include "base/error.h"

namespace lms::studies {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, 5> kOutcomes = {"ok", "oom", "host", "timeout", "failed"};

template <typename Value>
void put(Json& json, const char* key, const std::optional<Value>& value) {
  if (value) json[key] = *value;
}

template <typename Value>
void get(const Json& json, const char* key, Value& value) {
  const auto found = json.find(key);
  if (found != json.end() && !found->is_null()) value = found->get<Value>();
}

template <typename Value>
void get(const Json& json, const char* key, std::optional<Value>& value) {
  const auto found = json.find(key);
  if (found != json.end() && !found->is_null()) value = found->get<Value>();
}

const Json& part(const Json& json, const char* key) {
  static const Json kNothing = Json::object();
  const auto found = json.find(key);
  return found == json.end() ? kNothing : *found;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Json timeline_json(const Timeline& timeline) {
  Json gaps = Json::array();
  for (const Gap& gap : timeline.gaps) {
    gaps.push_back({{"at", gap.at}, {"for", gap.length}, {"before", gap.before}});
  }
  return {{"step", timeline.step},
          {"kernels", timeline.kernels},
          {"to_host", timeline.to_host},
          {"to_device", timeline.to_device},
          {"gaps", gaps}};
}

Timeline timeline_of(const Json& json) {
  Timeline timeline;
  get(json, "step", timeline.step);
  get(json, "kernels", timeline.kernels);
  get(json, "to_host", timeline.to_host);
  get(json, "to_device", timeline.to_device);
  for (const Json& gap : part(json, "gaps")) {
    timeline.gaps.push_back({gap.at("at"), gap.at("for"), gap.at("before")});
  }
  return timeline;
}

/// The rate of copies over the whole step, as a fraction of what the link can.
std::optional<double> link_use(const Record& record, const std::optional<std::int64_t>& bytes,
                               const std::optional<double>& rate) {
  if (!bytes || !rate || *rate <= 0 || record.steps.empty()) return std::nullopt;
  const double step = median(record.steps);
  return step > 0 ? std::optional(static_cast<double>(*bytes) / step / *rate) : std::nullopt;
}

void put_measured(Json& json, const Record& record) {
  json["samples"] = {{"unit", record.unit}, {"per_step", record.per_step}};
  json["warmup"] = record.warmup;
  json["steps"] = record.steps;
  if (const auto rate = rate_of(record)) {
    json["rate"] = {{"mean", rate->mean}, {"median", rate->median}, {"spread", rate->spread}};
  }
  json["losses"] = record.losses;
  put(json, "weights", record.weights);
  Json bytes = Json::object();
  put(bytes, "to_host", record.bytes_to_host);
  put(bytes, "to_device", record.bytes_to_device);
  if (!bytes.empty()) json["bytes"] = bytes;
  Json link = Json::object();
  put(link, "to_host_rate", record.to_host_rate);
  put(link, "to_device_rate", record.to_device_rate);
  put(link, "to_host_use", link_use(record, record.bytes_to_host, record.to_host_rate));
  put(link, "to_device_use", link_use(record, record.bytes_to_device, record.to_device_rate));
  if (!link.empty()) json["link"] = link;
  put(json, "gpu_busy", record.gpu_busy);
  if (record.timeline) json["timeline"] = timeline_json(*record.timeline);
  if (!record.allocations.empty()) json["allocations"] = record.allocations;
  Json peak = Json::object();
  put(peak, "allocated", record.peak_allocated);
  put(peak, "reserved", record.peak_reserved);
  put(peak, "host", record.peak_host);
  if (!peak.empty()) json["peak"] = peak;
  put(json, "largest_operator", record.largest_operator);
  put(json, "bound", record.bound);
  put(json, "predicted", record.predicted);
  if (!record.stats.empty()) json["stats"] = record.stats;
}

}  // namespace

const char* outcome_name(Outcome outcome) { return kOutcomes[static_cast<std::size_t>(outcome)]; }

Outcome outcome_of(const std::string& name) {
  const auto* found = std::ranges::find(kOutcomes, name);
  if (found == kOutcomes.end()) throw Error("'" + name + "' is no outcome");
  return static_cast<Outcome>(found - kOutcomes.begin());
}

std::optional<Rate> rate_of(const Record& record) {
  std::vector<double> rates;
  double seconds = 0;
  for (const double step : record.steps) {
    if (step <= 0) continue;
    rates.push_back(record.per_step / step);
    seconds += step;
  }
  if (rates.empty()) return std::nullopt;
  Rate rate;
  // The mean of the rates would weigh the fast steps more than the slow ones.
  rate.mean = record.per_step * static_cast<double>(rates.size()) / seconds;
  rate.median = median(rates);
  const auto [least, most] = std::ranges::minmax(rates);
  if (rate.median > 0) rate.spread = (most - least) / rate.median;
  return rate;
}

Json to_json(const Record& record) {
  Json json = {{"schema", kRecordSchema},   {"study", record.study},
               {"series", record.series},   {"model", record.model},
               {"batch", record.batch},     {"sides", record.sides},
               {"classes", record.classes}, {"precision", record.precision},
               {"method", record.method},   {"cap", record.cap}};
  put(json, "settings", record.settings);
  put(json, "limit", record.limit);
  json["link_emulated"] = record.link_emulated ? Json(*record.link_emulated) : Json(nullptr);
  json["outcome"] = outcome_name(record.outcome);
  json["message"] = record.message;
  put_measured(json, record);
  json["machine"] = record.machine;
  json["commit"] = record.commit;
  json["date"] = record.date;
  put(json, "wall", record.wall);
  put(json, "trace", record.trace);
  if (record.partial) json["partial"] = true;
  return json;
}

Record record_from_json(const Json& json) {
  try {
    if (part(json, "schema") != kRecordSchema)
      throw Error("no record of " + std::string(kRecordSchema));
    Record record;
    get(json, "study", record.study);
    get(json, "series", record.series);
    get(json, "model", record.model);
    get(json, "batch", record.batch);
    get(json, "sides", record.sides);
    get(json, "classes", record.classes);
    get(json, "precision", record.precision);
    get(json, "method", record.method);
    get(json, "cap", record.cap);
    get(json, "settings", record.settings);
    get(json, "limit", record.limit);
    get(json, "link_emulated", record.link_emulated);
    record.outcome = outcome_of(json.at("outcome"));
    get(json, "message", record.message);
    get(part(json, "samples"), "unit", record.unit);
    get(part(json, "samples"), "per_step", record.per_step);
    get(json, "warmup", record.warmup);
    get(json, "steps", record.steps);
    for (const Json& loss : part(json, "losses")) {
      // JSON has no word for what is not finite.
      record.losses.push_back(loss.is_null() ? std::numeric_limits<double>::quiet_NaN()
                                             : loss.get<double>());
    }
    get(json, "weights", record.weights);
    get(part(json, "bytes"), "to_host", record.bytes_to_host);
    get(part(json, "bytes"), "to_device", record.bytes_to_device);
    get(part(json, "link"), "to_host_rate", record.to_host_rate);
    get(part(json, "link"), "to_device_rate", record.to_device_rate);
    get(json, "gpu_busy", record.gpu_busy);
    if (json.contains("timeline")) record.timeline = timeline_of(json.at("timeline"));
    get(json, "allocations", record.allocations);
    get(part(json, "peak"), "allocated", record.peak_allocated);
    get(part(json, "peak"), "reserved", record.peak_reserved);
    get(part(json, "peak"), "host", record.peak_host);
    get(json, "largest_operator", record.largest_operator);
    get(json, "bound", record.bound);
    get(json, "predicted", record.predicted);
    get(json, "stats", record.stats);
    get(json, "machine", record.machine);
    get(json, "commit", record.commit);
    get(json, "date", record.date);
    get(json, "wall", record.wall);
    get(json, "trace", record.trace);
    get(json, "partial", record.partial);
    return record;
  } catch (const nlohmann::json::exception& error) {
    throw Error(std::string("a record that is none: ") + error.what());
  }
}

Json to_json(const Boundary& boundary) {
  Json tries = Json::array();
  for (const auto& [value, outcome] : boundary.tries) {
    tries.push_back({{"value", value}, {"outcome", outcome_name(outcome)}});
  }
  Json json = {{"schema", kBoundarySchema}, {"study", boundary.study},
               {"series", boundary.series}, {"model", boundary.model},
               {"method", boundary.method}, {"cap", boundary.cap},
               {"over", boundary.over}};
  put(json, "largest_ok", boundary.largest_ok);
  put(json, "smallest_failed", boundary.smallest_failed);
  if (boundary.smallest_failed) json["why"] = boundary.why;
  json["tries"] = tries;
  return json;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(folder.c_str()), &::closedir);
  if (!open) return names;
  while (const dirent* entry = ::readdir(open.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

void write_json(const std::string& path, const Json& json) {
  // A member a line: people read these files, and a timeline has thousands of numbers.
  std::string text = "{";
  for (const auto& [key, value] : json.items()) {
    // Broken UTF-8 of a message would be an error otherwise.
    text += (text.size() > 1 ? ",\n " : "\n ") + Json(key).dump() + ": " +
            value.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  text += "\n}\n";
  std::error_code error;
  const auto folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  const std::string partial = path + ".partial." + std::to_string(::getpid());
  bool whole = false;
  {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(partial.c_str(), "we"),
                                                               &std::fclose);
    if (!file) throw Error("cannot write " + partial + ": " + std::strerror(errno));
    whole = std::fputs(text.c_str(), file.get()) >= 0 && std::fflush(file.get()) == 0 &&
            ::fsync(::fileno(file.get())) == 0;
    if (!whole) error.assign(errno, std::generic_category());
  }
  if (whole) std::filesystem::rename(partial, path, error);
  if (error) {
    std::remove(partial.c_str());
    throw Error("cannot write " + path + ": " + error.message());
  }
}

Json read_json(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Error("cannot read " + path);
  std::ostringstream text;
  text << file.rdbuf();
  try {
    return Json::parse(text.str());
  } catch (const nlohmann::json::exception& error) {
    throw Error(path + ": " + error.what());
  }
}

std::optional<Record> read_record(const std::string& path) {
  try {
    return record_from_json(read_json(path));
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace lms::studies
