#include "lab/zoo/variants.h"

#include <algorithm>

namespace lms::zoo {
namespace {

template <typename Names>
std::string joined(const Names& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

std::int64_t count(const std::string& model, const char* what, std::int64_t given,
                   std::int64_t own) {
  TORCH_CHECK_VALUE(given >= 0, model, ": ", what, " = ", given, ", but it cannot be negative");
  return given == 0 ? own : given;
}

}  // namespace

VariantReader::VariantReader(std::string model, const ModelOptions& options)
    : model_(std::move(model)), options_(options) {}

std::string VariantReader::choice(const std::string& name, const std::vector<std::string>& values) {
  known_.insert(name);
  const auto given = options_.variants.find(name);
  if (given == options_.variants.end()) return values.front();
  TORCH_CHECK_VALUE(std::find(values.begin(), values.end(), given->second) != values.end(), model_,
                    ": variant ", name, " = '", given->second, "', but it can be ", joined(values));
  return given->second;
}

double VariantReader::on_or_off(const std::string& name) {
  return choice(name, {"on", "off"}) == "on" ? 1 : 0;
}

std::int64_t VariantReader::classes(std::int64_t own) const {
  return count(model_, "classes", options_.classes, own);
}

std::int64_t VariantReader::classes_in_bytes(std::int64_t own) const {
  const std::int64_t found = classes(own);
  TORCH_CHECK_VALUE(found <= 255, model_, ": classes = ", found,
                    ", but labels are bytes, and 255 stands for none: at most 255");
  return found;
}

std::int64_t VariantReader::channels(std::int64_t own) const {
  return count(model_, "channels", options_.channels, own);
}

void VariantReader::finish() const {
  for (const auto& [name, value] : options_.variants) {
    TORCH_CHECK_VALUE(known_.count(name) != 0, model_, " has no variant '", name,
                      "'; there are: ", joined(known_));
  }
}

}  // namespace lms::zoo
