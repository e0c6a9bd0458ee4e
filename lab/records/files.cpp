#include "lab/records/files.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "base/error.h"
#include "lab/records/fields.h"

namespace lms::records {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// "link.to_host_rate" is to_host_rate in link.
std::pair<std::string, std::string> in_object(const std::string& name) {
  const std::size_t dot = name.find('.');
  if (dot == std::string::npos) return {"", name};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

/// Whole numbers without a fraction: most are bytes.
OrderedJson number(double value) {
  constexpr double kExact = 9007199254740992.0;
  const bool whole = value == std::floor(value) && std::abs(value) < kExact;
  return whole ? OrderedJson(static_cast<std::int64_t>(value)) : OrderedJson(value);
}

OrderedJson intervals_json(const std::vector<Interval>& spans) {
  OrderedJson list = OrderedJson::array();
  for (const Interval& span : spans) list.push_back({span.from, span.to});
  return list;
}

OrderedJson timeline_json(const Timeline& timeline) {
  OrderedJson gaps = OrderedJson::array();
  for (const Gap& gap : timeline.gaps) {
    gaps.push_back({{"at", gap.at}, {"for", gap.length}, {"before", gap.before}});
  }
  return {{"step", timeline.step},
          {"kernels", intervals_json(timeline.kernels)},
          {"to_host", intervals_json(timeline.to_host)},
          {"to_device", intervals_json(timeline.to_device)},
          {"gaps", gaps}};
}

class Writer {
 public:
  OrderedJson json = OrderedJson::object();

  void operator()(const char* name, const std::string& text, Rule rule = Rule::kNone) {
    if (rule != Rule::kIfKnown || !text.empty()) put(name, text);
  }
  void operator()(const char* name, const std::optional<double>& value, Rule /*rule*/ = {}) {
    if (value) put(name, number(*value));
  }
  void operator()(const char* name, std::int64_t value) { put(name, value); }
  void operator()(const char* name, bool value) {
    if (value) put(name, true);
  }
  void operator()(const char* name, const std::vector<double>& values, Rule rule = Rule::kNone) {
    OrderedJson list = OrderedJson::array();
    for (const double value : values) {
      list.push_back(rule == Rule::kAnyNumber ? OrderedJson(value) : number(value));
    }
    put(name, list);
  }
  void operator()(const char* name, const std::map<std::string, std::int64_t>& counts) {
    if (!counts.empty()) put(name, counts);
  }
  void operator()(const char* name, const std::map<std::string, std::string>& texts) {
    put(name, texts);
  }
  void operator()(const char* name,
                  const std::optional<std::map<std::string, std::string>>& texts) {
    if (texts) put(name, *texts);
  }
  void operator()(const char* name, const std::optional<Need>& need) {
    if (!need) return;
    OrderedJson object = {{"operator", need->name}, {"bytes", number(need->bytes)}};
    if (need->least_limit) object["least_limit"] = number(*need->least_limit);
    put(name, object);
  }
  void operator()(const char* name, const std::optional<Timeline>& timeline) {
    if (timeline) put(name, timeline_json(*timeline));
  }

 private:
  void put(const char* name, const OrderedJson& value) {
    const auto [object, field] = in_object(name);
    (object.empty() ? json : json[object])[field] = value;
  }
};

class Reader {
 public:
  Reader(const nlohmann::json& json, const Complain& complain) : root_(json, complain) {}

  void operator()(const char* name, std::string& text, Rule /*rule*/ = {}) {
    of(name, [&](const Object& object, const std::string& field) { text = object.text(field); });
  }
  void operator()(const char* name, std::optional<double>& value, Rule rule = Rule::kNone) {
    of(name, [&](const Object& object, const std::string& field) {
      value = rule == Rule::kAboveZero ? object.some(field) : object.size(field);
    });
  }
  void operator()(const char* name, std::int64_t& value) {
    value = static_cast<std::int64_t>(std::min(root_.size(name).value_or(0), 1e15));
  }
  void operator()(const char* name, bool& value) { value = root_.flag(name); }
  void operator()(const char* name, std::vector<double>& values, Rule rule = Rule::kNone) {
    values = rule == Rule::kAnyNumber ? root_.numbers(name) : root_.sizes(name);
  }
  void operator()(const char* name, std::map<std::string, std::int64_t>& counts) {
    if (const auto object = root_.object(name)) counts = object->counts();
  }
  void operator()(const char* name, std::map<std::string, std::string>& texts) {
    if (const auto object = root_.object(name)) texts = object->texts();
  }
  void operator()(const char* name, std::optional<std::map<std::string, std::string>>& texts) {
    if (const auto object = root_.object(name)) texts = object->texts();
  }
  void operator()(const char* name, std::optional<Need>& need) {
    const auto object = root_.object(name);
    if (!object) return;
    const auto bytes = object->some("bytes");
    if (bytes) need = Need{object->text("operator"), *bytes, object->some("least_limit")};
  }
  void operator()(const char* name, std::optional<Timeline>& timeline) {
    const auto object = root_.object(name);
    if (!object) return;
    Timeline read;
    read.step = object->size("step").value_or(0);
    read.kernels = object->intervals("kernels");
    read.to_host = object->intervals("to_host");
    read.to_device = object->intervals("to_device");
    if (read.step <= 0) {
      for (const auto* lane : {&read.kernels, &read.to_host, &read.to_device}) {
        for (const Interval& span : *lane) read.step = std::max(read.step, span.to);
      }
    }
    read.gaps = object->gaps("gaps");
    if (read.step > 0) timeline = std::move(read);
  }

 private:
  template <typename Read>
  void of(const char* name, Read&& read) {
    const auto [object, field] = in_object(name);
    if (object.empty()) {
      read(root_, field);
      return;
    }
    // Once an object: what is wrong with it is said once.
    auto found = objects_.find(object);
    if (found == objects_.end()) {
      found = objects_.emplace(object, root_.object(object)).first;
    }
    if (found->second) read(*found->second, field);
  }

  Object root_;
  std::map<std::string, std::optional<Object>> objects_;
};

}  // namespace

Record record_of(const nlohmann::json& json, const Complain& complain) {
  Record record;
  each_field_of_record(record, Reader(json, complain));
  return record;
}

Boundary boundary_of(const nlohmann::json& json, const Complain& complain) {
  Boundary boundary;
  each_field_of_boundary(boundary, Reader(json, complain));
  return boundary;
}

OrderedJson to_json(Record record) {
  record.conclude();
  Writer writer;
  writer("schema", std::string(kRecordSchema));
  each_field_of_record(record, writer);
  return writer.json;
}

OrderedJson to_json(const Boundary& boundary) {
  Writer writer;
  writer("schema", std::string(kBoundarySchema));
  each_field_of_boundary(boundary, writer);
  OrderedJson& tries = writer.json["tries"] = OrderedJson::array();
  for (const auto& [value, outcome] : boundary.tries) {
    tries.push_back({{"value", value}, {"outcome", outcome}});
  }
  return writer.json;
}

void write_json(const std::string& path, const OrderedJson& json) {
  // A member a line: people read these files, and a timeline has thousands of numbers.
  std::string text = "{";
  for (const auto& [key, value] : json.items()) {
    // Broken UTF-8 of a message would be an error otherwise.
    text += (text.size() > 1 ? ",\n " : "\n ") + OrderedJson(key).dump() + ": " +
            value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
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

OrderedJson read_json(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Error("cannot read " + path);
  std::ostringstream text;
  text << file.rdbuf();
  try {
    return OrderedJson::parse(text.str());
  } catch (const nlohmann::json::exception& error) {
    throw Error(path + ": " + error.what());
  }
}

std::optional<Record> read_record(const std::string& path) {
  bool good = true;
  const Complain complain = [&](const std::string&, const std::string&) { good = false; };
  try {
    const nlohmann::json json = read_json(path);
    if (!json.is_object() || json.value("schema", nlohmann::json()) != kRecordSchema) {
      return std::nullopt;
    }
    Record record = record_of(json, complain);
    const auto known = {Outcome::kOk, Outcome::kOom, Outcome::kHost, Outcome::kTimeout,
                        Outcome::kFailed};
    good = good && std::ranges::any_of(known, [&](const char* each) {
             return json.contains("outcome") && record.outcome == each;
           });
    return good ? std::optional(std::move(record)) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace lms::records
