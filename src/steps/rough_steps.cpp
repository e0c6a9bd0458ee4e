#include "steps/rough_steps.h"

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <utility>

#include "base/mixed.h"

namespace lms {
namespace {

/// So many operators in a row are the same where steps begin.
constexpr std::uint64_t kWindow = 12;
/// Steps begin where no more than this part of what varies is alive above the least.
constexpr Bytes kLow = 16;
/// By this part more than least in a valley is as good as least.
constexpr Bytes kBottom = 64;
/// Operators, of both steps together, that may differ: one of so many, and this many at most.
constexpr std::size_t kDifferent = 3;
constexpr std::size_t kMostDifferent = 1024;

/// Where the same operators follow so often, and in half of the places where little is alive.
std::vector<std::uint64_t> beginnings(const StepLog& log, int least_often) {
  // The first steps are others: optimizers make their state.
  const std::uint64_t first = log.first_whole() + 1 + (log.end() - log.first_whole()) / 4;
  if (first + 2 * kWindow > log.end()) return {};
  const std::uint64_t last = log.end() - kWindow;
  const auto live = [&](std::uint64_t i) { return log.at(i - 1).live_after; };
  Bytes least = live(first);
  Bytes most = least;
  for (std::uint64_t i = first; i < last; ++i) {
    least = std::min(least, live(i));
    most = std::max(most, live(i));
  }
  const Bytes low = least + (most - least) / kLow;
  const Bytes high = least + 2 * (low - least);
  const Bytes trifle = (most - least) / kBottom;
  struct Place {
    int valleys = 0;
    Bytes live = 0;
    std::vector<std::uint64_t> at;
    std::vector<int> of;  ///< which valley
  };
  std::unordered_map<std::uint64_t, Place> places;
  int valleys = 0;
  std::vector<std::uint64_t> valley;
  const auto end_valley = [&] {
    if (valley.empty()) return;
    ++valleys;
    const Bytes bottom = live(*std::ranges::min_element(valley, {}, live));
    for (const std::uint64_t i : valley) {
      if (live(i) > bottom + trifle) continue;
      std::uint64_t hash = 0;
      for (std::uint64_t k = 0; k < kWindow; ++k) hash = mixed(hash, log.at(i + k).key);
      Place& place = places[hash];
      if (!place.at.empty() && place.at.back() >= valley.front()) continue;
      ++place.valleys;
      place.live = std::max(place.live, live(i));
      place.at.push_back(i);
      place.of.push_back(valleys);
    }
    valley.clear();
  };
  for (std::uint64_t i = first; i < last; ++i) {
    // What rises a little, and falls, is still the same valley.
    if (live(i) > high) end_valley();
    if (live(i) <= low) valley.push_back(i);
  }
  // Where the log ends in a valley, its bottom may be still to come.
  if (live(last - 1) > low) end_valley();
  const Place* best = nullptr;
  for (const auto& [hash, place] : places) {
    if (place.valleys < least_often || place.valleys * 2 < valleys) continue;
    // The last of those that are as good: an optimizer has gone through its lists by then.
    const auto merit = [](const Place& one) { return std::pair(-one.live, one.at.back()); };
    if (best == nullptr || merit(place) > merit(*best)) best = &place;
  }
  if (best == nullptr) return {};
  // Where a valley lacks that beginning, nobody knows where its step begins: those after it count.
  std::size_t from = best->at.size() - 1;
  while (from > 0 && best->of[from - 1] + 1 == best->of[from]) --from;
  return {best->at.begin() + static_cast<std::ptrdiff_t>(from), best->at.end()};
}

/// What an operator is, and what it uses of what is there in both steps.
std::vector<std::uint64_t> tokens_of(const StepLog& log, StepLog::Span span, std::uint64_t from,
                                     std::uint64_t to) {
  std::vector<std::uint64_t> tokens;
  for (std::uint64_t n = span.begin; n < span.end; ++n) {
    std::uint64_t token = log.at(n).key;
    for (const auto& touch : log.at(n).touches) {
      const KnownBlock& block = log.blocks()[touch.slot];
      const bool lasts = block.birth < static_cast<std::int64_t>(from) &&
                         block.death >= static_cast<std::int64_t>(to);
      if (lasts) token = mixed(token, touch.block);
    }
    tokens.push_back(token);
  }
  return tokens;
}

/// For each of `now`, which of `before` it is, in order, as many as can be; nothing, if too many
/// are none.
std::optional<std::vector<std::int64_t>> same_of(const std::vector<std::uint64_t>& before,
                                                 const std::vector<std::uint64_t>& now) {
  const auto n = static_cast<std::ptrdiff_t>(before.size());
  const auto m = static_cast<std::ptrdiff_t>(now.size());
  const auto most = static_cast<std::ptrdiff_t>(
      std::min(kMostDifferent, (before.size() + now.size()) / kDifferent));
  // ends[d][k + d]: how far along `before` one comes on diagonal k with d differences.
  std::vector<std::vector<std::ptrdiff_t>> ends;
  struct Begin {
    std::ptrdiff_t x;
    bool down;  ///< after an operator of `now` that was not there before
  };
  const auto come = [&](std::ptrdiff_t d, std::ptrdiff_t k) -> Begin {
    if (d == 0) return {0, true};
    const auto& last = ends[static_cast<std::size_t>(d - 1)];
    const auto at = [&](std::ptrdiff_t diagonal) {
      return last[static_cast<std::size_t>(diagonal + d - 1)];
    };
    const bool down = k == -d || (k != d && at(k - 1) < at(k + 1));
    return {down ? at(k + 1) : at(k - 1) + 1, down};
  };
  for (std::ptrdiff_t d = 0; d <= most; ++d) {
    std::vector<std::ptrdiff_t> reached(static_cast<std::size_t>(2 * d + 1), 0);
    bool whole = false;
    for (std::ptrdiff_t k = -d; k <= d && !whole; k += 2) {
      std::ptrdiff_t x = come(d, k).x;
      while (x < n && x - k < m && x - k >= 0 &&
             before[static_cast<std::size_t>(x)] == now[static_cast<std::size_t>(x - k)]) {
        ++x;
      }
      reached[static_cast<std::size_t>(k + d)] = x;
      whole = x >= n && x - k >= m;
    }
    ends.push_back(std::move(reached));
    if (!whole) continue;
    std::vector<std::int64_t> same(now.size(), RoughStep::kNone);
    std::ptrdiff_t x = n;
    std::ptrdiff_t y = m;
    for (std::ptrdiff_t i = d; i >= 0; --i) {
      const std::ptrdiff_t k = x - y;
      const auto [from, down] = come(i, k);
      for (; x > from && y > 0; --x, --y) same[static_cast<std::size_t>(y - 1)] = x - 1;
      x = down ? from : from - 1;
      y = x - (down ? k + 1 : k - 1);
    }
    return same;
  }
  return {};
}

/// The same steps, cut where the log is like that beginning for longest; nothing where it is not.
std::vector<std::optional<std::uint64_t>> cut_at(const StepLog& log, const BeginsLike& begins,
                                                 const std::vector<std::uint64_t>& valleys) {
  std::vector<std::optional<std::uint64_t>> cuts;
  for (std::size_t i = 0; i < valleys.size(); ++i) {
    const std::uint64_t end = i + 1 < valleys.size() ? valleys[i + 1] : log.end();
    std::uint64_t longest = kWindow - 1;
    std::optional<std::uint64_t>& cut = cuts.emplace_back();
    for (std::uint64_t at = valleys[i]; at < end; ++at) {
      const std::uint64_t alike = begins(at);
      if (alike <= longest) continue;
      longest = alike;
      cut = at;
    }
  }
  return cuts;
}

}  // namespace

std::optional<RoughStep> find_rough_step(const StepLog& log, int least, const BeginsLike& begins) {
  const std::vector<std::uint64_t> valleys = beginnings(log, least);
  std::vector<std::optional<std::uint64_t>> begin(valleys.begin(), valleys.end());
  if (begins) begin = cut_at(log, begins, valleys);
  constexpr std::size_t kTries = 4;
  struct Pair {
    StepLog::Span before;
    StepLog::Span step;
  };
  std::vector<Pair> pairs;
  for (std::size_t i = begin.size(); i-- > 2;) {
    if (!begin[i - 2] || !begin[i - 1] || !begin[i]) continue;
    pairs.push_back({{*begin[i - 2], *begin[i - 1]}, {*begin[i - 1], *begin[i]}});
  }
  // The longest has a place for what others leave out; of those the last.
  std::ranges::stable_sort(pairs, std::greater<>(),
                           [](const Pair& pair) { return pair.step.end - pair.step.begin; });
  if (pairs.size() > kTries) pairs.resize(kTries);
  for (const Pair& pair : pairs) {
    auto same = same_of(tokens_of(log, pair.before, pair.before.begin, pair.step.end),
                        tokens_of(log, pair.step, pair.before.begin, pair.step.end));
    if (!same) continue;
    for (std::int64_t& partner : *same) {
      if (partner != RoughStep::kNone) partner += static_cast<std::int64_t>(pair.before.begin);
    }
    return RoughStep{pair.before, pair.step, std::move(*same)};
  }
  return {};
}

}  // namespace lms
