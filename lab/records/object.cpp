#include "lab/records/object.h"

#include <algorithm>
#include <cmath>

namespace lms::records {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostGaps = 50;

bool is_finite(const Json& value) {
  return value.is_number() && std::isfinite(value.get<double>());
}

}  // namespace

const Json* Object::find(const std::string& name) const {
  const auto found = json_.find(name);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

std::string Object::text(const std::string& name) const {
  const Json* value = find(name);
  if (value == nullptr) return {};
  if (value->is_string()) return value->get<std::string>();
  wrong(name, "text");
  return {};
}

bool Object::flag(const std::string& name) const {
  const Json* value = find(name);
  if (value == nullptr) return false;
  if (value->is_boolean()) return value->get<bool>();
  wrong(name, "true or false");
  return false;
}

std::optional<double> Object::number(const std::string& name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (is_finite(*value)) return value->get<double>();
  wrong(name, "a number");
  return std::nullopt;
}

std::optional<double> Object::size(const std::string& name) const {
  const auto value = number(name);
  if (value && *value < 0) {
    wrong(name, "a number from 0 on");
    return std::nullopt;
  }
  return value;
}

std::optional<double> Object::some(const std::string& name) const {
  const auto value = size(name);
  return value && *value > 0 ? value : std::nullopt;
}

std::vector<double> Object::sizes(const std::string& name) const {
  const Json* list = find(name);
  if (list == nullptr) return {};
  const auto is_size = [](const Json& value) {
    return is_finite(value) && value.get<double>() > 0;
  };
  if (list->is_array() && std::ranges::all_of(*list, is_size)) return *list;
  wrong(name, "a list of numbers above 0");
  return {};
}

std::vector<double> Object::numbers(const std::string& name) const {
  const Json* list = find(name);
  if (list == nullptr) return {};
  const auto is_any = [](const Json& value) { return value.is_null() || value.is_number(); };
  if (!list->is_array() || !std::ranges::all_of(*list, is_any)) {
    wrong(name, "a list of numbers");
    return {};
  }
  std::vector<double> values;
  for (const Json& value : *list) values.push_back(value.is_null() ? NAN : value.get<double>());
  return values;
}

std::optional<Object> Object::object(const std::string& name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_object()) return Object(*value, complain_, path_ + name + ".");
  wrong(name, "an object");
  return std::nullopt;
}

std::vector<Interval> Object::intervals(const std::string& name) const {
  const Json* list = find(name);
  if (list == nullptr) return {};
  const auto is_span = [](const Json& pair) {
    return pair.is_array() && pair.size() == 2 && pair[0].is_number() && pair[1].is_number() &&
           pair[1].get<double>() >= pair[0].get<double>();
  };
  if (!list->is_array() || !std::ranges::all_of(*list, is_span)) {
    wrong(name, "a list of pairs of seconds");
    return {};
  }
  std::vector<Interval> spans;
  for (const Json& pair : *list) spans.push_back({pair[0].get<double>(), pair[1].get<double>()});
  return spans;
}

std::vector<Gap> Object::gaps(const std::string& name) const {
  const Json* list = find(name);
  if (list == nullptr) return {};
  const auto is_gap = [](const Json& gap) {
    return gap.is_object() && gap.contains("at") && gap["at"].is_number() && gap.contains("for") &&
           gap["for"].is_number() && gap["for"].get<double>() >= 0;
  };
  if (!list->is_array() || !std::ranges::all_of(*list, is_gap)) {
    wrong(name, R"(a list of gaps, with "at" and "for" in seconds)");
    return {};
  }
  std::vector<Gap> gaps;
  for (const Json& gap : *list) {
    const auto before = gap.find("before");
    const bool known = before != gap.end() && before->is_string();
    gaps.push_back({gap["at"].get<double>(), gap["for"].get<double>(),
                    known ? before->get<std::string>() : ""});
  }
  std::ranges::stable_sort(gaps, {}, [](const Gap& gap) { return -gap.length; });
  if (gaps.size() > kMostGaps) gaps.resize(kMostGaps);
  return gaps;
}

std::map<std::string, std::string> Object::texts() const {
  std::map<std::string, std::string> texts;
  for (const auto& [name, value] : json_.items()) {
    texts[name] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return texts;
}

std::map<std::string, std::int64_t> Object::counts() const {
  std::map<std::string, std::int64_t> counts;
  for (const auto& [name, value] : json_.items()) {
    if (value.is_number_integer()) {
      counts[name] = value.get<std::int64_t>();
    } else if (!value.is_null()) {
      wrong(name, "a whole number");
    }
  }
  return counts;
}

const char* Object::first_missing(std::initializer_list<const char*> names) const {
  for (const char* name : names) {
    const Json* value = find(name);
    const bool there =
        value != nullptr && value->is_string() && !value->get_ref<const std::string&>().empty();
    if (!there) return name;
  }
  return nullptr;
}

}  // namespace lms::records
