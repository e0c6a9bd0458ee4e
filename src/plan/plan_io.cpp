#include "plan/plan_io.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "trace/gz_file.h"

// No streams, nlohmann's among them: see read_text_file.
namespace lms {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "lms-plan";

// The step's directives are rows: [before, action, block].
constexpr std::size_t kDirectiveFields = 3;
constexpr int kActions = static_cast<int>(Action::kRematerialise) + 1;

/// Calls `visit` with the name and the value of every number of a PlanTiming or LinkModel.
template <typename Timing, typename Visit>
void for_timing(Timing& timing, Visit visit) {
  visit("step_ms", timing.step_ms);
  visit("compute_ms", timing.compute_ms);
  visit("tax_ms", timing.tax_ms);
  visit("waited_ms", timing.waited_ms);
  visit("out_busy_ms", timing.out_busy_ms);
  visit("in_busy_ms", timing.in_busy_ms);
  visit("recomputed_ms", timing.recomputed_ms);
  visit("bytes_out", timing.bytes_out);
  visit("bytes_in", timing.bytes_in);
  visit("bytes_recomputed", timing.bytes_recomputed);
  visit("peak", timing.peak);
}
template <typename Link, typename Visit>
void for_link(Link& link, Visit visit) {
  visit("out_bytes_per_ms", link.out_bytes_per_ms);
  visit("in_bytes_per_ms", link.in_bytes_per_ms);
  visit("both_bytes_per_ms", link.both_bytes_per_ms);
  visit("latency_ms", link.latency_ms);
  visit("out_tax_ms_per_byte", link.out_tax_ms_per_byte);
  visit("in_tax_ms_per_byte", link.in_tax_ms_per_byte);
}

/// Reads the document; every complaint says where.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  [[nodiscard]] SavedPlan read(const Json& document) const {
    if (!document.is_object() || document.value("format", Json()) != kFormat) {
      fail(std::string(R"(it is no plan of LMS: "format" is not )") + kFormat);
    }
    check_version(document, "version", kPlanFileVersion);
    check_version(document, "plan_version", kPlanVersion);
    SavedPlan plan;
    const Json& key = member(document, "key");
    if (!key.is_string()) fail("\"key\" is no text");
    plan.key = key.get<std::string>();
    plan.room = size(document, "room");
    plan.page = size(document, "page");
    plan.made.budget = size(document, "budget");
    const Json& link = member(document, "link");
    for_link(plan.link, [&](const char* name, double& value) { value = number(link, name); });
    const Json& predicted = member(document, "predicted");
    for_timing(plan.made.step.predicted, [&]<typename Value>(const char* name, Value& value) {
      if constexpr (std::is_same_v<Value, double>) {
        value = number(predicted, name);
      } else {
        value = size(predicted, name);
      }
    });
    read_plan(document, plan.made.step.plan);
    read_placement(member(document, "placement"), plan);
    return plan;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error("cannot load " + path_ + ": " + what);
  }

 private:
  void check_version(const Json& document, const char* name, int expected) const {
    const auto version = integer<int>(member(document, name), name);
    if (version == expected) return;
    fail("its " + std::string(name) + " is " + std::to_string(version) + ", this LMS reads " +
         std::to_string(expected) + ": plan the step again");
  }
  [[nodiscard]] const Json& member(const Json& object, const char* name) const {
    if (!object.is_object()) fail('"' + std::string(name) + "\" is in no object");
    const auto found = object.find(name);
    if (found == object.end()) fail('"' + std::string(name) + "\" is missing");
    return *found;
  }
  [[nodiscard]] const Json& list(const Json& value, const std::string& where) const {
    if (!value.is_array()) fail(where + " is no list");
    return value;
  }
  template <typename Integer>
  [[nodiscard]] Integer integer(const Json& value, const std::string& where) const {
    if (!value.is_number_integer()) fail(where + " holds something else than an integer");
    const bool large =
        value.is_number_unsigned() && !std::in_range<std::int64_t>(value.get<std::uint64_t>());
    if (large || !std::in_range<Integer>(value.get<std::int64_t>())) {
      fail(where + " holds an integer out of range");
    }
    return static_cast<Integer>(value.get<std::int64_t>());
  }
  /// Bytes, of an amount with which addresses can be reckoned.
  [[nodiscard]] Bytes size(const Json& object, const char* name) const {
    const auto bytes = integer<Bytes>(member(object, name), name);
    if (bytes < 0 || bytes >= kScattered) fail('"' + std::string(name) + "\" is out of range");
    return bytes;
  }
  [[nodiscard]] double number(const Json& object, const char* name) const {
    const Json& value = member(object, name);
    const double result = value.is_number() ? value.get<double>() : -1;
    if (!std::isfinite(result) || result < 0) fail('"' + std::string(name) + "\" is no amount");
    return result;
  }
  template <typename Integer>
  [[nodiscard]] std::vector<Integer> integers(const Json& value, const std::string& where) const {
    std::vector<Integer> result;
    result.reserve(list(value, where).size());
    for (const Json& entry : value) result.push_back(integer<Integer>(entry, where));
    return result;
  }

  void read_plan(const Json& document, Plan& plan) const {
    plan.absent_at_start =
        integers<TraceBlockId>(member(document, "absent_at_start"), "\"absent_at_start\"");
    std::size_t before = 0;
    for (const Json& row : list(member(document, "directives"), "\"directives\"")) {
      const std::string where = "directive " + std::to_string(plan.directives.size());
      if (list(row, where).size() != kDirectiveFields) {
        fail(where + " has " + std::to_string(row.size()) + " fields, not " +
             std::to_string(kDirectiveFields));
      }
      const auto action = integer<int>(row[1], where);
      if (action < 0 || action >= kActions) fail(where + " is no action that is known");
      plan.directives.push_back({.before = integer<std::size_t>(row[0], where),
                                 .action = static_cast<Action>(action),
                                 .block = integer<TraceBlockId>(row[2], where)});
      if (plan.directives.back().before < before) fail(where + " comes too late");
      before = plan.directives.back().before;
    }
  }

  void read_placement(const Json& value, SavedPlan& plan) const {
    Placement& placement = plan.made.placement;
    placement.page = size(value, "page");
    placement.bytes = size(value, "bytes");
    placement.lower_bound = size(value, "lower_bound");
    for (const Json& entry : list(member(value, "scattered"), "\"scattered\"")) {
      placement.scattered.push_back(integers<std::uint32_t>(entry, "\"scattered\""));
      for (const std::uint32_t page : placement.scattered.back()) {
        if (placement.page <= 0 || page > placement.bytes / placement.page) {
          fail("\"scattered\" has a page out of range");
        }
      }
    }
    placement.allocations = address_lists(value, "allocations", placement);
    placement.remakes = address_lists(value, "remakes", placement);
    placement.arrivals = addresses(member(value, "arrivals"), "\"arrivals\"", placement);
    const std::size_t directives = plan.made.step.plan.directives.size();
    const bool placed = !placement.allocations.empty();
    for (const std::size_t count : {placement.arrivals.size(), placement.remakes.size()}) {
      if (count != (placed ? directives : 0)) {
        fail("the placement has " + std::to_string(count) + " arrivals or remakes for " +
             std::to_string(directives) + " directives");
      }
    }
    for (const Json& entry : list(member(value, "at_start"), "\"at_start\"")) {
      if (list(entry, "\"at_start\"").size() != 2) fail("\"at_start\" holds no pair");
      placement.at_start.emplace_back(integer<TraceBlockId>(entry[0], "\"at_start\""),
                                      address(entry[1], "\"at_start\"", placement));
    }
    placement.taking_turns =
        integers<TraceBlockId>(member(value, "taking_turns"), "\"taking_turns\"");
    placement.moved = integers<TraceBlockId>(member(value, "moved"), "\"moved\"");
  }
  [[nodiscard]] Bytes address(const Json& value, const std::string& where,
                              const Placement& placement) const {
    const auto result = integer<Bytes>(value, where);
    const bool plain = result >= 0 && result <= placement.bytes;
    const bool scattered =
        result >= kScattered && std::cmp_less(result - kScattered, placement.scattered.size());
    if (result != kNoAddress && !plain && !scattered) fail(where + " has an address out of range");
    return result;
  }
  [[nodiscard]] std::vector<Bytes> addresses(const Json& value, const std::string& where,
                                             const Placement& placement) const {
    std::vector<Bytes> result;
    result.reserve(list(value, where).size());
    for (const Json& entry : value) result.push_back(address(entry, where, placement));
    return result;
  }
  [[nodiscard]] std::vector<std::vector<Bytes>> address_lists(const Json& object, const char* name,
                                                              const Placement& placement) const {
    std::vector<std::vector<Bytes>> result;
    for (const Json& entry : list(member(object, name), name)) {
      result.push_back(addresses(entry, name, placement));
    }
    return result;
  }

  const std::string& path_;
};

Json as_json(const Placement& placement) {
  return Json{{"allocations", placement.allocations},
              {"arrivals", placement.arrivals},
              {"remakes", placement.remakes},
              {"at_start", placement.at_start},
              {"taking_turns", placement.taking_turns},
              {"page", placement.page},
              {"scattered", placement.scattered},
              {"moved", placement.moved},
              {"bytes", placement.bytes},
              {"lower_bound", placement.lower_bound}};
}

/// A name beside `path` that no other writer of any process has, and that ends alike.
std::string unfinished(const std::string& path) {
  static std::atomic<unsigned> count = 0;
  const std::string tail = path.ends_with(".gz") ? ".gz" : "";
  return path + '.' + std::to_string(getpid()) + '-' + std::to_string(count++) + ".tmp" + tail;
}

}  // namespace

void save_plan(const SavedPlan& plan, const std::string& path) {
  const auto& [budget, step, placement] = plan.made;
  Json directives = Json::array();
  for (const Directive& directive : step.plan.directives) {
    directives.push_back(
        Json::array({directive.before, static_cast<int>(directive.action), directive.block}));
  }
  Json document = Json::object();
  document["format"] = kFormat;
  document["version"] = kPlanFileVersion;
  document["plan_version"] = step.plan.version;
  document["key"] = plan.key;
  document["room"] = plan.room;
  document["page"] = plan.page;
  document["budget"] = budget;
  for_link(plan.link, [&](const char* name, double value) { document["link"][name] = value; });
  for_timing(step.predicted,
             [&](const char* name, auto value) { document["predicted"][name] = value; });
  document["absent_at_start"] = step.plan.absent_at_start;
  document["directives"] = std::move(directives);
  document["placement"] = as_json(placement);
  const std::string fresh = unfinished(path);
  write_gz_file(fresh, document.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n');
  if (std::rename(fresh.c_str(), path.c_str()) == 0) return;
  const std::string why = std::strerror(errno);
  std::remove(fresh.c_str());
  throw Error("cannot write " + path + ": " + why);
}

SavedPlan load_plan(const std::string& path) {
  const Json document = Json::parse(read_gz_file(path), nullptr, /*allow_exceptions=*/false);
  const Reader reader(path);
  if (document.is_discarded()) {
    reader.fail("it is no JSON, or cut off; load what save_plan has written");
  }
  return reader.read(document);
}

std::optional<std::string> misfit(const SavedPlan& plan, const Trace& trace, Bytes room) {
  const PlacedPlan& made = plan.made;
  const Placement& placement = made.placement;
  const auto strange = [&](TraceBlockId id) { return id >= trace.blocks.size(); };
  if (std::ranges::any_of(made.step.plan.absent_at_start, strange) ||
      std::ranges::any_of(placement.taking_turns, strange) ||
      std::ranges::any_of(placement.moved, strange)) {
    return "it has blocks that the step has not";
  }
  if (std::max(made.budget, placement.bytes) > room) {
    return "it needs " + std::to_string(std::max(made.budget, placement.bytes)) +
           " bytes, there are " + std::to_string(room);
  }
  const auto wrong = verify_plan(trace, made.step.plan, made.budget);
  if (!wrong.empty()) return wrong.front();
  if (placement.allocations.empty()) return std::nullopt;
  const auto misplaced = verify_placement(trace, made.step.plan, placement, kPlacedUnit);
  if (!misplaced.empty()) return misplaced.front();
  return std::nullopt;
}

}  // namespace lms
