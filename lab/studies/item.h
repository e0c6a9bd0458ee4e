#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lab/studies/recipe.h"

namespace lms::studies {

/// A size that is wanted of a series, or a search in it. The recipe outlives it.
struct Item {
  const Recipe* recipe = nullptr;
  const RecipeSeries* series = nullptr;
  RecipeTries tries;
  double multiple = 0;     ///< of the largest in memory
  std::int64_t value = 0;  ///< or as given
  bool search = false;
};

/// The search for the largest that trains in memory, on which the multiples of a series rest.
Item search_in_memory(const Recipe& recipe, const RecipeSeries& series);

/// The file name of a try, without its ending.
std::string try_key(const std::string& method, std::int64_t size, const std::string& link);
/// The size in a name that try_key() gave for that method and link; nothing for another name.
std::optional<std::int64_t> size_in_key(const std::string& key, const std::string& method,
                                        const std::string& link);

}  // namespace lms::studies
