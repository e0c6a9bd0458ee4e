#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/studies/try_spec.h"

namespace lms::studies {

/// Tries of one method in a series: the search for the largest size that trains, or sizes that are
/// given, as numbers or as multiples of the largest in memory.
struct RecipeTries {
  std::string method;
  bool search = false;
  std::vector<double> multiples;
  std::vector<std::int64_t> values;
  int priority = 2;           ///< of all tries of all studies the least come first
  std::int64_t most = 0;      ///< a search ends when the method has so many sizes; 0: at the edge
  double start_multiple = 0;  ///< where a search begins, if not at the series' start
  std::string link;
  Values settings;
};

struct RecipeSeries {
  std::string name;
  std::string over;        ///< "side" or "batch": what grows
  std::int64_t start = 0;  ///< of the search in memory
  std::int64_t step = 1;   ///< sizes are multiples of it
  std::int64_t base = 0;   ///< the largest in memory, where it is known; 0: searched for
  std::string side_of;     ///< the side is the largest in memory of that series
  double side_factor = 1;  ///< times that, rounded down to the step of that series
  Values settings;         ///< with the study's own
  std::vector<RecipeTries> tries;
};

/// One study: what is trained, and which sizes under which methods.
struct Recipe {
  std::string study;
  std::string title;
  std::string path;
  std::vector<RecipeSeries> series;
};

/// Throws BadSetting with file and line for what is not TOML, or no recipe: see docs/studies.md.
Recipe read_recipe(const std::string& path);
Recipe parse_recipe(const std::string& text, const std::string& path);

/// 3 for volumes, 2 else.
int dimensions(const Values& settings);

/// The size whose samples are `multiple` times those of `base`, rounded up to `step`.
std::int64_t scaled(std::int64_t base, double multiple, const std::string& over, int dimensions,
                    std::int64_t step);

}  // namespace lms::studies
