#include "lab/report/record.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lab/report/text.h"

namespace lms::report {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostGaps = 50;

/// Reads fields of one object and remembers what was wrong with them.
class Fields {
 public:
  Fields(const Json& json, std::string file, std::vector<Problem>& problems, std::string path = {})
      : json_(json), file_(std::move(file)), problems_(problems), path_(std::move(path)) {}

  [[nodiscard]] const Json* find(const char* name) const {
    const auto found = json_.find(name);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  [[nodiscard]] std::string text(const char* name) const {
    const Json* value = find(name);
    if (value == nullptr) return {};
    if (value->is_string()) return value->get<std::string>();
    wrong(name, "text");
    return {};
  }
  [[nodiscard]] std::optional<double> number(const char* name) const {
    const Json* value = find(name);
    if (value == nullptr) return std::nullopt;
    if (value->is_number() && std::isfinite(value->get<double>())) return value->get<double>();
    wrong(name, "a number");
    return std::nullopt;
  }
  /// A number that cannot be negative.
  [[nodiscard]] std::optional<double> size(const char* name) const {
    const auto value = number(name);
    if (value && *value < 0) {
      wrong(name, "a number from 0 on");
      return std::nullopt;
    }
    return value;
  }
  /// A size of which 0 means that there is none.
  [[nodiscard]] std::optional<double> some(const char* name) const {
    const auto value = size(name);
    return value && *value > 0 ? value : std::nullopt;
  }
  [[nodiscard]] std::vector<double> sizes(const char* name) const {
    std::vector<double> values;
    const Json* list = find(name);
    if (list == nullptr) return values;
    const auto is_size = [](const Json& value) {
      return value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() > 0;
    };
    if (!list->is_array() || !std::ranges::all_of(*list, is_size)) {
      wrong(name, "a list of numbers above 0");
      return values;
    }
    for (const Json& value : *list) values.push_back(value.get<double>());
    return values;
  }
  /// JSON has no word for what is not finite: null stands for it.
  [[nodiscard]] std::vector<double> losses() const {
    std::vector<double> values;
    const Json* list = find("losses");
    if (list == nullptr) return values;
    const auto is_loss = [](const Json& value) { return value.is_null() || value.is_number(); };
    if (!list->is_array() || !std::ranges::all_of(*list, is_loss)) {
      wrong("losses", "a list of numbers");
      return values;
    }
    for (const Json& value : *list) {
      values.push_back(value.is_null() ? NAN : value.get<double>());
    }
    return values;
  }
  /// An object's fields; none, without complaint, where there is no such field.
  [[nodiscard]] std::optional<Fields> object(const char* name) const {
    const Json* value = find(name);
    if (value == nullptr) return std::nullopt;
    if (value->is_object()) return Fields(*value, file_, problems_, path_ + name + ".");
    wrong(name, "an object");
    return std::nullopt;
  }
  [[nodiscard]] std::vector<Interval> intervals(const char* name) const {
    std::vector<Interval> intervals;
    const Json* list = find(name);
    if (list == nullptr) return intervals;
    const auto is_interval = [](const Json& pair) {
      return pair.is_array() && pair.size() == 2 && pair[0].is_number() && pair[1].is_number() &&
             pair[1].get<double>() >= pair[0].get<double>();
    };
    if (!list->is_array() || !std::ranges::all_of(*list, is_interval)) {
      wrong(name, "a list of pairs of seconds");
      return intervals;
    }
    for (const Json& pair : *list) {
      intervals.push_back({pair[0].get<double>(), pair[1].get<double>()});
    }
    return intervals;
  }
  /// The longest ones, the longest first.
  [[nodiscard]] std::vector<Gap> gaps() const {
    std::vector<Gap> gaps;
    const Json* list = find("gaps");
    if (list == nullptr) return gaps;
    const auto is_gap = [](const Json& gap) {
      return gap.is_object() && gap.contains("at") && gap["at"].is_number() &&
             gap.contains("for") && gap["for"].is_number() && gap["for"].get<double>() >= 0;
    };
    if (!list->is_array() || !std::ranges::all_of(*list, is_gap)) {
      wrong("gaps", R"(a list of gaps, with "at" and "for" in seconds)");
      return gaps;
    }
    for (const Json& gap : *list) {
      const auto before = gap.find("before");
      gaps.push_back(
          {gap["at"].get<double>(), gap["for"].get<double>(),
           before != gap.end() && before->is_string() ? before->get<std::string>() : ""});
    }
    std::ranges::stable_sort(gaps, {}, [](const Gap& gap) { return -gap.length; });
    if (gaps.size() > kMostGaps) gaps.resize(kMostGaps);
    return gaps;
  }
  /// Of all fields, whatever they hold.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> texts() const {
    std::vector<std::pair<std::string, std::string>> texts;
    for (const auto& [name, value] : json_.items()) {
      texts.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
    }
    return texts;
  }
  [[nodiscard]] bool flag(const char* name) const {
    const Json* value = find(name);
    if (value == nullptr) return false;
    if (value->is_boolean()) return value->get<bool>();
    wrong(name, "true or false");
    return false;
  }
  /// Of all fields, the largest first.
  [[nodiscard]] std::vector<std::pair<std::string, double>> counts() const {
    std::vector<std::pair<std::string, double>> counts;
    for (const auto& [name, value] : json_.items()) {
      if (const auto count = size(name.c_str())) counts.emplace_back(name, *count);
    }
    std::ranges::stable_sort(counts, {}, [](const auto& each) { return -each.second; });
    return counts;
  }
  void wrong(const std::string& name, const std::string& wanted) const {
    problems_.push_back({file_, "\"" + path_ + name + "\" is not " + wanted + "; it is left out"});
  }
  /// Adds a problem for the first of `names` that is no text, or empty.
  [[nodiscard]] bool all_there(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      const Json* value = find(name);
      if (value != nullptr && value->is_string() && !value->get<std::string>().empty()) continue;
      problems_.push_back({file_, "this record has no \"" + path_ + name +
                                      "\", which every record has; it is not shown"});
      return false;
    }
    return true;
  }

 private:
  const Json& json_;
  std::string file_;
  std::vector<Problem>& problems_;
  std::string path_;
};

std::optional<Timeline> read_timeline(const Fields& fields) {
  const auto found = fields.object("timeline");
  if (!found) return std::nullopt;
  Timeline timeline;
  timeline.step = found->size("step").value_or(0);
  timeline.kernels = found->intervals("kernels");
  timeline.to_host = found->intervals("to_host");
  timeline.to_device = found->intervals("to_device");
  if (timeline.step <= 0) {
    for (const auto* lane : {&timeline.kernels, &timeline.to_host, &timeline.to_device}) {
      for (const Interval& interval : *lane) timeline.step = std::max(timeline.step, interval.to);
    }
  }
  timeline.gaps = found->gaps();
  if (!(timeline.step > 0)) return std::nullopt;
  return timeline;
}

/// The bytes in "… after 18.1 GiB (19455279104 bytes)"; nothing without such words.
std::optional<double> bytes_after(const std::string& text, std::string_view words) {
  const std::size_t at = text.find(words);
  if (at == std::string::npos) return std::nullopt;
  const std::size_t open = text.find('(', at);
  const std::size_t end = text.find(" bytes)", at);
  if (open == std::string::npos || end == std::string::npos || open > end) return std::nullopt;
  double bytes = 0;
  const char* const last = text.data() + end;
  const auto [stop, error] = std::from_chars(text.data() + open + 1, last, bytes);
  return error == std::errc() && stop == last && bytes > 0 ? std::optional(bytes) : std::nullopt;
}

std::optional<OperatorNeed> read_need(const std::string& message) {
  constexpr std::string_view kBefore = "operator ";
  constexpr std::string_view kAfter = " needs at least ";
  const std::size_t after = message.find(kAfter);
  const std::size_t before = message.rfind(kBefore, after);
  const auto bytes = bytes_after(message, kAfter);
  if (after == std::string::npos || before == std::string::npos || !bytes) return std::nullopt;
  OperatorNeed need;
  need.name = message.substr(before + kBefore.size(), after - before - kBefore.size());
  if (need.name.starts_with("aten::")) need.name.erase(0, 6);
  need.bytes = *bytes;
  need.least_limit = bytes_after(message, "smallest limit that could work here is ");
  return need;
}

void read_machine(const Fields& fields, Record& record) {
  if (const auto machine = fields.object("machine")) {
    record.gpu = machine->text("gpu");
    const Json* host = machine->find("host");
    if (host != nullptr && host->is_string()) record.host = host->get<std::string>();
    record.pytorch = machine->text("pytorch");
  }
  record.commit = fields.text("commit");
  record.date = fields.text("date");
}

std::optional<double> median(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

bool Record::operator_too_large() const {
  const auto most = limit ? limit : cap;
  if (outcome != "oom" || !method.starts_with("lms") || !need || !most) return false;
  return std::max(need->bytes, need->least_limit.value_or(0)) > *most;
}

bool Record::link_too_slow() const {
  if (message.find("the link is slower than") != std::string::npos) return true;
  const auto wanted = link_rate(link);
  if (!wanted || !to_host_rate || !to_device_rate) return false;
  return std::min(*to_host_rate, *to_device_rate) < 0.99 * *wanted;
}

std::optional<double> Record::amount() const {
  if (sides.empty()) return std::nullopt;
  double amount = batch.value_or(1);
  for (const double side : sides) amount *= side;
  return amount > 0 ? std::optional(amount) : std::nullopt;
}

std::optional<double> Record::side() const {
  if (sides.empty()) return std::nullopt;
  if (std::ranges::all_of(sides, [&](double side) { return side == sides[0]; })) return sides[0];
  double product = 1;
  for (const double side : sides) product *= side;
  return std::pow(product, 1.0 / static_cast<double>(sides.size()));
}

std::string Record::size() const {
  if (sides.empty()) return {};
  const bool equal = std::ranges::all_of(sides, [&](double side) { return side == sides[0]; });
  const std::string first = coordinate(sides[0]);
  if (equal && sides.size() == 2) return first + "²";
  if (equal && sides.size() == 3) return first + "³";
  std::string text = first;
  for (std::size_t i = 1; i < sides.size(); ++i) text += " × " + coordinate(sides[i]);
  return text;
}

std::optional<double> Record::rate() const {
  for (const auto& rate : {rate_median, rate_mean}) {
    if (rate && *rate > 0) return rate;
  }
  const auto seconds = median(steps);
  if (seconds && *seconds > 0 && per_step) return *per_step / *seconds;
  return std::nullopt;
}

std::optional<double> Record::step() const {
  if (const auto seconds = median(steps)) return seconds;
  const auto per_second = rate();
  if (per_second && per_step) return *per_step / *per_second;
  return std::nullopt;
}

std::optional<double> StepRecord::bound() const {
  return method == "lms" ? bound_recompute : bound_copies;
}

std::optional<Record> read_record(const Json& json, const std::string& file,
                                  std::vector<Problem>& problems) {
  const Fields fields(json, file, problems);
  if (!fields.all_there({"study", "method", "outcome"})) return std::nullopt;
  Record record;
  record.file = file;
  record.study = fields.text("study");
  record.series = fields.text("series");
  record.model = fields.text("model");
  record.precision = fields.text("precision");
  record.method = fields.text("method");
  record.link = fields.text("link_emulated");
  record.outcome = fields.text("outcome");
  record.message = fields.text("message");
  record.partial = fields.flag("partial");
  record.need = read_need(record.message);
  record.batch = fields.size("batch");
  record.sides = fields.sizes("sides");
  if (const auto settings = fields.object("settings")) record.settings = settings->texts();
  record.cap = fields.some("cap");
  record.limit = fields.some("limit");
  record.steps = fields.sizes("steps");
  record.losses = fields.losses();
  record.weights = fields.text("weights");
  if (const auto samples = fields.object("samples")) {
    record.unit = samples->text("unit");
    record.per_step = samples->size("per_step");
  }
  if (const auto rate = fields.object("rate")) {
    record.rate_mean = rate->size("mean");
    record.rate_median = rate->size("median");
    record.rate_spread = rate->size("spread");
  }
  if (const auto bytes = fields.object("bytes")) {
    record.bytes_to_host = bytes->size("to_host");
    record.bytes_to_device = bytes->size("to_device");
  }
  if (const auto link = fields.object("link")) {
    record.to_host_rate = link->size("to_host_rate");
    record.to_device_rate = link->size("to_device_rate");
    record.to_host_use = link->size("to_host_use");
    record.to_device_use = link->size("to_device_use");
  }
  record.gpu_busy = fields.size("gpu_busy");
  record.timeline = read_timeline(fields);
  if (const auto allocations = fields.object("allocations")) {
    record.allocations = allocations->counts();
  }
  if (const auto peak = fields.object("peak")) {
    record.peak_allocated = peak->size("allocated");
    record.peak_reserved = peak->size("reserved");
    record.peak_host = peak->size("host");
  }
  if (const auto stats = fields.object("stats")) record.host_limit = stats->some("host_limit");
  record.largest_operator = fields.size("largest_operator");
  record.bound = fields.size("bound");
  record.predicted = fields.size("predicted");
  read_machine(fields, record);
  if (record.ok() && !record.rate()) {
    problems.push_back({file,
                        "this run is \"ok\", but has neither \"rate\" nor \"steps\" and "
                        "\"samples\"; it is in the table alone"});
  }
  return record;
}

std::optional<Boundary> read_boundary(const Json& json, const std::string& file,
                                      std::vector<Problem>& problems) {
  const Fields fields(json, file, problems);
  if (!fields.all_there({"study", "method", "over"})) return std::nullopt;
  Boundary boundary;
  boundary.file = file;
  boundary.study = fields.text("study");
  boundary.series = fields.text("series");
  boundary.model = fields.text("model");
  boundary.method = fields.text("method");
  boundary.over = fields.text("over");
  boundary.why = fields.text("why");
  boundary.cap = fields.some("cap");
  boundary.largest_ok = fields.size("largest_ok");
  boundary.smallest_failed = fields.size("smallest_failed");
  if (boundary.over != "side" && boundary.over != "batch") {
    problems.push_back({file, R"("over" is neither "side" nor "batch"; it is not shown)"});
    return std::nullopt;
  }
  return boundary;
}

std::optional<StepRecord> read_step(const Json& json, const std::string& file,
                                    std::vector<Problem>& problems) {
  const Fields fields(json, file, problems);
  if (!fields.all_there({"step", "method"})) return std::nullopt;
  StepRecord record;
  record.file = file;
  record.step = fields.text("step");
  record.method = fields.text("method");
  record.error = fields.text("error");
  record.commit = fields.text("commit");
  if (const auto machine = fields.object("machine")) record.gpu = machine->text("gpu");
  record.ratio = fields.size("ratio");
  record.limit = fields.size("limit_bytes");
  if (const auto ms = fields.size("step_ms")) record.seconds = *ms / 1e3;
  record.overhead = fields.number("overhead");
  record.predicted = fields.number("predicted_overhead");
  record.bound_copies = fields.number("bound_overhead");
  record.bound_recompute = fields.number("bound_recompute_overhead");
  record.allocated = fields.size("allocated_peak");
  record.to_host = fields.size("bytes_out");
  record.to_device = fields.size("bytes_in");
  record.recomputed = fields.size("bytes_recomputed");
  const Json* identical = fields.find("bit_identical");
  if (identical != nullptr && identical->is_boolean()) {
    record.bit_identical = identical->get<bool>();
  }
  return record;
}

std::string outcome_text(const std::string& outcome) {
  if (outcome == "ok") return "ran";
  if (outcome == "oom") return "out of device memory";
  if (outcome == "host") return "host memory full";
  if (outcome == "timeout") return "took too long";
  return outcome;
}

std::string link_text(const std::string& link) {
  if (link.empty()) return "this machine";
  if (link == "pcie3") return "PCIe 3";
  if (link == "pcie4") return "PCIe 4";
  if (link == "pcie5") return "PCIe 5";
  if (link == "nvlink2") return "NVLink 2";
  return link;
}

std::optional<double> link_rate(const std::string& link) {
  if (link == "pcie3") return 12e9;
  if (link == "pcie4") return 25e9;
  if (link == "nvlink2") return 71.4e9;
  return std::nullopt;
}

std::string setting_text(const std::pair<std::string, std::string>& setting) {
  const auto& [name, value] = setting;
  if (name == "slack" || name == "reserve") {
    double bytes = 0;
    const char* const last = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), last, bytes);
    if (error == std::errc() && stop == last) return name + " " + format_memory(bytes);
  }
  return name + " " + value;
}

}  // namespace lms::report
