#pragma once

#include <set>
#include <string>
#include <vector>

#include "lab/zoo/model.h"

namespace lms::zoo {

/// Reads a model's options. Errors are c10::ValueError and name the model, the option and what
/// there is.
class VariantReader {
 public:
  VariantReader(std::string model, const ModelOptions& options);

  /// The variant's value, one of `values`; the first if it is not given.
  std::string choice(const std::string& name, const std::vector<std::string>& values);
  /// choice(name, {"on", "off"}) as a number: 1 or 0.
  double on_or_off(const std::string& name);
  [[nodiscard]] std::int64_t classes(std::int64_t own) const;
  /// Likewise, of labels in a byte, of which 255 is no class.
  [[nodiscard]] std::int64_t classes_in_bytes(std::int64_t own) const;
  [[nodiscard]] std::int64_t channels(std::int64_t own) const;
  /// To be called when all has been read: refuses variants that were not asked for.
  void finish() const;

 private:
  std::string model_;
  const ModelOptions& options_;
  std::set<std::string> known_;
};

}  // namespace lms::zoo
