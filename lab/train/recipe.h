#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lms::train {

/// One setting of a recipe, with where it stands ("recipe.toml:12").
struct RecipeEntry {
  std::string key;
  std::string value;
  std::string where;
};

/// The settings of a TOML file, in the order of its lines. Tables are for the reader's eye alone:
/// `lr` in [optimizer] is `lr`; but [variants] and [options] keep their names ("variants.x").
/// Arrays become lists with commas. Throws BadSetting with file, line and column.
std::vector<RecipeEntry> read_recipe(const std::string& path);

}  // namespace lms::train
