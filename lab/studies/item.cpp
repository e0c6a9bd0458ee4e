#include "lab/studies/item.h"

#include <algorithm>
#include <charconv>

namespace lms::studies {

Item search_in_memory(const Recipe& recipe, const RecipeSeries& series) {
  Item item{.recipe = &recipe, .series = &series, .search = true};
  const auto is_plain = [](const RecipeTries& tries) { return tries.method == "plain"; };
  const auto given = std::ranges::find_if(series.tries, is_plain);
  if (given != series.tries.end()) item.tries = *given;
  item.tries.method = "plain";
  item.tries.link.clear();
  item.tries.start_multiple = 0;
  item.tries.most = 0;
  return item;
}

std::string try_key(const std::string& method, std::int64_t size, const std::string& link) {
  return method + "." + std::to_string(size) + (link.empty() ? "" : "." + link);
}

std::optional<std::int64_t> size_in_key(const std::string& key, const std::string& method,
                                        const std::string& link) {
  const std::string front = method + ".";
  if (!key.starts_with(front)) return std::nullopt;
  std::int64_t size = 0;
  const auto [end, error] =
      std::from_chars(key.data() + front.size(), key.data() + key.size(), size);
  if (error != std::errc() || try_key(method, size, link) != key) return std::nullopt;
  return size;
}

}  // namespace lms::studies
