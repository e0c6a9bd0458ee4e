#pragma once

#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lab/records/record.h"

namespace lms::records {

/// Told what is wrong: the field, as "link.to_host_rate", and what it is not: "a number".
using Complain = std::function<void(const std::string& field, const std::string& wanted)>;

/// Reads the fields of one JSON object. One that is null is absent; one of a wrong type is, too,
/// and complained about. `json` and `complain` must outlive it.
class Object {
 public:
  Object(const nlohmann::json& json, const Complain& complain, std::string path = {})
      : json_(json), complain_(complain), path_(std::move(path)) {}

  [[nodiscard]] const nlohmann::json* find(const std::string& name) const;
  [[nodiscard]] std::string text(const std::string& name) const;
  [[nodiscard]] bool flag(const std::string& name) const;
  [[nodiscard]] std::optional<double> number(const std::string& name) const;
  /// A number that cannot be negative.
  [[nodiscard]] std::optional<double> size(const std::string& name) const;
  /// A size of which 0 means that there is none.
  [[nodiscard]] std::optional<double> some(const std::string& name) const;
  /// A list of numbers above 0.
  [[nodiscard]] std::vector<double> sizes(const std::string& name) const;
  /// A list of any numbers; JSON has no word for what is not finite, and null stands for it.
  [[nodiscard]] std::vector<double> numbers(const std::string& name) const;
  [[nodiscard]] std::optional<Object> object(const std::string& name) const;
  [[nodiscard]] std::vector<Interval> intervals(const std::string& name) const;
  /// The longest ones, the longest first.
  [[nodiscard]] std::vector<Gap> gaps(const std::string& name) const;
  /// Of all fields, whatever they hold.
  [[nodiscard]] std::map<std::string, std::string> texts() const;
  /// Of all fields that are whole numbers.
  [[nodiscard]] std::map<std::string, std::int64_t> counts() const;
  /// The first of `names` that is no text, or empty; null where there is none.
  [[nodiscard]] const char* first_missing(std::initializer_list<const char*> names) const;

 private:
  void wrong(const std::string& name, const char* wanted) const { complain_(path_ + name, wanted); }

  const nlohmann::json& json_;
  const Complain& complain_;
  std::string path_;
};

}  // namespace lms::records
