#include "plan/place/pack.h"

#include <algorithm>

#include "plan/place/search.h"

namespace lms {
namespace {

/// Joins moments into ages: a new one begins where something comes after something else has gone.
/// Two rectangles share an age if and only if they share a moment. Returns the number of ages.
std::int32_t to_ages(std::vector<Rectangle>& rectangles, std::int32_t period) {
  const auto size = static_cast<std::size_t>(period);
  std::vector<bool> comes(size);
  std::vector<bool> gone(size);
  for (const Rectangle& rectangle : rectangles) {
    comes[static_cast<std::size_t>(rectangle.begin)] = true;
    gone[static_cast<std::size_t>((rectangle.begin + rectangle.length) % period)] = true;
  }
  std::vector<std::int32_t> age(size);
  bool any_gone = false;
  for (std::size_t moment = 1; moment < size; ++moment) {
    any_gone = any_gone || gone[moment];
    age[moment] = age[moment - 1];
    if (!any_gone || !comes[moment]) continue;
    ++age[moment];
    any_gone = false;
  }
  const std::int32_t ages = age.back() + 1;
  for (Rectangle& rectangle : rectangles) {
    const std::int32_t last = (rectangle.begin + rectangle.length - 1) % period;
    if (rectangle.length >= period) {
      rectangle = {0, ages, rectangle.size};
      continue;
    }
    const bool goes_round = last < rectangle.begin;
    rectangle.begin = age[static_cast<std::size_t>(rectangle.begin)];
    rectangle.length = age[static_cast<std::size_t>(last)] + 1 - rectangle.begin;
    if (goes_round) rectangle.length += ages;
  }
  return ages;
}

}  // namespace

std::vector<Bytes> bytes_by_moment(const std::vector<Rectangle>& rectangles, std::int32_t period) {
  std::vector<Bytes> taken(static_cast<std::size_t>(period) + 1);  // first: by how much more
  for (const Rectangle& rectangle : rectangles) {
    std::int32_t end = rectangle.begin + rectangle.length;
    if (end > period) {
      taken[0] += rectangle.size;
      end -= period;
    }
    taken[static_cast<std::size_t>(rectangle.begin)] += rectangle.size;
    taken[static_cast<std::size_t>(end)] -= rectangle.size;
  }
  for (std::size_t moment = 1; moment < taken.size(); ++moment) taken[moment] += taken[moment - 1];
  taken.pop_back();
  return taken;
}

Bytes most_at_once(const std::vector<Rectangle>& rectangles, std::int32_t period) {
  return std::ranges::max(bytes_by_moment(rectangles, period));
}

Bytes pack(std::vector<Rectangle>& rectangles, std::int32_t period, double seconds) {
  std::vector<std::size_t> who;
  for (std::size_t i = 0; i < rectangles.size(); ++i) {
    if (rectangles[i].length > 0) who.push_back(i);
  }
  std::ranges::stable_sort(who, {}, [&](std::size_t i) { return rectangles[i].begin; });
  std::vector<Rectangle> coarse;
  coarse.reserve(who.size());
  for (const std::size_t i : who) coarse.push_back(rectangles[i]);
  const std::int32_t ages = to_ages(coarse, period);

  // What is always there may as well lie at the bottom.
  Bytes bottom = 0;
  std::vector<Rectangle> passing;
  for (std::size_t i = 0; i < who.size(); ++i) {
    if (coarse[i].length < ages) {
      passing.push_back(coarse[i]);
    } else {
      rectangles[who[i]].address = bottom;
      bottom += coarse[i].size;
    }
  }
  if (passing.empty()) return bottom;
  std::vector<Bytes> addresses;
  const Bytes top = PackingSearch(passing, ages, seconds).run(addresses);
  auto address = addresses.begin();
  for (std::size_t i = 0; i < who.size(); ++i) {
    if (coarse[i].length < ages) rectangles[who[i]].address = bottom + *address++;
  }
  return bottom + top;
}

}  // namespace lms
