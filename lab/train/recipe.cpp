#include "lab/train/recipe.h"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"

namespace lms::train {
namespace {

std::string place(const std::string& path, const toml::source_region& source) {
  return path + ":" + std::to_string(source.begin.line);
}

std::string value_text(const toml::node& node, const std::string& where, const std::string& key) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  if (const auto* whole = node.as_integer()) return std::to_string(whole->get());
  if (const auto* real = node.as_floating_point()) {
    std::array<char, 64> buffer = {};
    const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), real->get());
    return {buffer.data(), result.ptr};
  }
  if (const auto* list = node.as_array()) {
    std::string text;
    for (const toml::node& item : *list) {
      text += (text.empty() ? "" : ",") + value_text(item, where, key);
    }
    return text;
  }
  throw BadSetting(where + ": " + key + ": wants text, a number, true, false or a list of them");
}

void collect(const toml::table& table, const std::string& prefix, const std::string& path,
             std::vector<std::pair<toml::source_position, RecipeEntry>>& entries) {
  for (const auto& [name, node] : table) {
    const std::string key = prefix + std::string(name.str());
    if (const auto* inner = node.as_table()) {
      const bool open = name.str() == "variants" || name.str() == "options";
      collect(*inner, open ? key + "." : prefix, path, entries);
      continue;
    }
    const std::string where = place(path, node.source());
    entries.push_back({node.source().begin, {key, value_text(node, where, key), where}});
  }
}

}  // namespace

std::vector<RecipeEntry> read_recipe(const std::string& path) {
  try {
    const toml::table table = toml::parse_file(path);
    std::vector<std::pair<toml::source_position, RecipeEntry>> found;
    collect(table, "", path, found);
    std::stable_sort(found.begin(), found.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<RecipeEntry> entries;
    entries.reserve(found.size());
    for (auto& [position, entry] : found) entries.push_back(std::move(entry));
    return entries;
  } catch (const toml::parse_error& error) {
    const auto& begin = error.source().begin;
    std::string where = path;
    if (begin.line > 0) {
      where += ":" + std::to_string(begin.line) + ":" + std::to_string(begin.column);
    }
    throw BadSetting(where + ": " + std::string(error.description()));
  }
}

}  // namespace lms::train
