#include "lab/studies/recipe.h"

#include <toml++/toml.h>

#include <charconv>
#include <cmath>
#include <fstream>
#include <initializer_list>
#include <sstream>

#include "base/error.h"

namespace lms::studies {
namespace {

class Reader {
 public:
  explicit Reader(std::string path) : path_(std::move(path)) {}

  [[noreturn]] void fail(const toml::node& node, const std::string& what) const {
    throw BadSetting(path_ + ":" + std::to_string(node.source().begin.line) + ": " + what);
  }

  std::string text(const toml::node& node, const std::string& key) const {
    if (const auto* value = node.as_string()) return value->get();
    if (const auto* value = node.as_boolean()) return value->get() ? "true" : "false";
    if (const auto* value = node.as_integer()) return std::to_string(value->get());
    if (const auto* value = node.as_floating_point()) {
      char buffer[32];
      return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value->get()).ptr};
    }
    if (const auto* list = node.as_array()) {
      std::string all;
      for (const toml::node& item : *list) all += (all.empty() ? "" : "x") + text(item, key);
      return all;
    }
    fail(node, key + ": wants text, a number, true, false or a list of them");
  }

  std::int64_t whole(const toml::node& node, const std::string& key) const {
    if (const auto* value = node.as_integer()) return value->get();
    fail(node, key + ": wants a whole number");
  }

  double real(const toml::node& node, const std::string& key) const {
    if (const auto value = node.value<double>()) return *value;
    fail(node, key + ": wants a number");
  }

  const toml::array& list(const toml::node& node, const std::string& key) const {
    if (const auto* value = node.as_array()) return *value;
    fail(node, key + ": wants a list");
  }

  /// What is not one of a table's own keys is a setting of the tries in it.
  void settings(const toml::table& table, std::initializer_list<std::string_view> own,
                Values& values) const {
    for (const auto& [name, node] : table) {
      bool known = false;
      for (const std::string_view key : own) known = known || key == name.str();
      if (known) continue;
      const std::string key(name.str());
      if (const auto* inner = node.as_table()) {
        for (const auto& [part, value] : *inner) {
          set(value, key + "." + std::string(part.str()), values);
        }
      } else {
        set(node, key, values);
      }
    }
  }

 private:
  void set(const toml::node& node, const std::string& key, Values& values) const {
    const std::string value = text(node, key);
    try {
      TrySpec tried;
      set_value(tried, key, value);
    } catch (const BadSetting& error) {
      fail(node, error.what());
    }
    values[key] = value;
  }

  std::string path_;
};

RecipeTries read_tries(const Reader& reader, const toml::table& table) {
  RecipeTries tries;
  for (const auto& [name, node] : table) {
    const std::string key(name.str());
    if (key == "method") tries.method = reader.text(node, key);
    if (key == "search") tries.search = reader.text(node, key) == "true";
    if (key == "priority") tries.priority = static_cast<int>(reader.whole(node, key));
    if (key == "most") tries.most = reader.whole(node, key);
    if (key == "start_multiple") tries.start_multiple = reader.real(node, key);
    if (key == "link") tries.link = reader.text(node, key);
    if (key == "multiples") {
      for (const toml::node& item : reader.list(node, key)) {
        tries.multiples.push_back(reader.real(item, key));
        if (tries.multiples.back() <= 0) reader.fail(item, "multiples: must be above 0");
      }
    }
    if (key == "values") {
      for (const toml::node& item : reader.list(node, key)) {
        tries.values.push_back(reader.whole(item, key));
        if (tries.values.back() <= 0) reader.fail(item, "values: must be above 0");
      }
    }
  }
  if (tries.method.empty()) reader.fail(table, "tries want a method");
  if (!tries.search && tries.multiples.empty() && tries.values.empty()) {
    reader.fail(table, "tries want multiples, values or search = true");
  }
  reader.settings(table, {"search", "priority", "most", "start_multiple", "multiples", "values"},
                  tries.settings);
  return tries;
}

RecipeSeries read_series(const Reader& reader, const toml::table& table, const Values& inherited) {
  RecipeSeries series;
  series.settings = inherited;
  for (const auto& [name, node] : table) {
    const std::string key(name.str());
    if (key == "name") series.name = reader.text(node, key);
    if (key == "over") series.over = reader.text(node, key);
    if (key == "start") series.start = reader.whole(node, key);
    if (key == "step") series.step = reader.whole(node, key);
    if (key == "base") series.base = reader.whole(node, key);
    if (key == "side_of") series.side_of = reader.text(node, key);
    if (key == "side_factor") series.side_factor = reader.real(node, key);
  }
  if (series.name.empty()) reader.fail(table, "a series wants a name");
  if (series.over != "side" && series.over != "batch") {
    reader.fail(table, "over: wants \"side\" or \"batch\"");
  }
  if (series.step <= 0) reader.fail(table, "step: must be above 0");
  if (series.start <= 0 && series.base <= 0)
    reader.fail(table, "a series wants a start, or a base");
  reader.settings(table,
                  {"name", "over", "start", "step", "base", "side_of", "side_factor", "tries"},
                  series.settings);
  const auto* tries = table.get_as<toml::array>("tries");
  if (tries == nullptr) reader.fail(table, "a series wants [[series.tries]]");
  for (const toml::node& node : *tries) {
    if (!node.is_table()) reader.fail(node, "tries: wants tables");
    series.tries.push_back(read_tries(reader, *node.as_table()));
  }
  return series;
}

}  // namespace

Recipe parse_recipe(const std::string& text, const std::string& path) {
  toml::table table;
  try {
    table = toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    throw BadSetting(path + ":" + std::to_string(error.source().begin.line) + ": " +
                     std::string(error.description()));
  }
  const Reader reader(path);
  Recipe recipe;
  recipe.path = path;
  Values settings;
  for (const auto& [name, node] : table) {
    if (name.str() == "study") recipe.study = reader.text(node, "study");
    if (name.str() == "title") recipe.title = reader.text(node, "title");
  }
  if (recipe.study.empty()) reader.fail(table, "a recipe wants a study: its short name");
  reader.settings(table, {"title", "series"}, settings);
  const auto* all = table.get_as<toml::array>("series");
  if (all == nullptr) reader.fail(table, "a recipe wants [[series]]");
  for (const toml::node& node : *all) {
    if (!node.is_table()) reader.fail(node, "series: wants tables");
    recipe.series.push_back(read_series(reader, *node.as_table(), settings));
    for (std::size_t i = 0; i + 1 < recipe.series.size(); ++i) {
      if (recipe.series[i].name == recipe.series.back().name) {
        reader.fail(node, "two series are named '" + recipe.series.back().name + "'");
      }
    }
    const std::string& of = recipe.series.back().side_of;
    bool known = of.empty();
    for (std::size_t i = 0; i + 1 < recipe.series.size(); ++i) {
      known = known || recipe.series[i].name == of;
    }
    if (!known) reader.fail(node, "side_of: there is no series '" + of + "' before this one");
  }
  return recipe;
}

Recipe read_recipe(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw BadSetting(path + ": cannot be read");
  std::ostringstream text;
  text << file.rdbuf();
  return parse_recipe(text.str(), path);
}

int dimensions(const Values& settings) {
  const auto model = settings.find("model");
  return model != settings.end() && model->second == "unet3d" ? 3 : 2;
}

std::int64_t scaled(std::int64_t base, double multiple, const std::string& over, int dimensions,
                    std::int64_t step) {
  const double power = over == "side" ? 1.0 / dimensions : 1.0;
  const double wanted = static_cast<double>(base) * std::pow(multiple, power);
  // A hair less, so that what is exact is not rounded up by the last bit.
  const double steps = std::ceil(wanted / static_cast<double>(step) - 1e-9);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(steps)) * step;
}

}  // namespace lms::studies
