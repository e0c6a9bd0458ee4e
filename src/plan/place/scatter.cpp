#include "plan/place/scatter.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

namespace lms {
namespace {

/// Of what is in one piece there is little.
constexpr double kSecondsForPieces = 0.05;
/// Moments of the period at which to begin, one after the other, until there is little trouble:
/// this part of what there is must move, or lies in several pieces.
constexpr std::int32_t kBeginnings = 12;
constexpr std::size_t kLittleTrouble = 50;
constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();
constexpr std::uint32_t kNobody = std::numeric_limits<std::uint32_t>::max();

/// What decides between pages that are free for long enough: first how soon their owners return,
/// told apart as finely as this, then where they are.
enum class Care : std::uint8_t {
  kNone,   ///< not at all
  kOwned,  ///< those that nobody returns to are taken last
  kExact,  ///< those whose owners return first are taken first
};

/// When a page is taken by what lies in one piece: [begin, end) within a period, in order.
using Busy = std::vector<std::pair<std::int32_t, std::int32_t>>;

class Colouring {
 public:
  /// The first pages are shared with what lies in one piece. `may_move`: moment 0 is when what lies
  /// elsewhere can move.
  Colouring(const std::vector<Rectangle>& rectangles, std::int32_t period, Bytes page,
            const std::vector<Busy>& shared, std::size_t pages, Care care, bool may_move)
      : rectangles_(rectangles),
        period_(period),
        page_(page),
        shared_(shared),
        pages_(pages),
        care_(care),
        may_move_(may_move),
        moves_(rectangles.size()),
        move_earlier_(rectangles.size()),
        marked_(rectangles.size()) {
    result_.pages.resize(rectangles.size());
    result_.before_moving.resize(rectangles.size());
  }

  std::optional<Scattering> run(const std::vector<std::uint32_t>& who) {
    std::vector<std::uint32_t> staying;
    for (const std::uint32_t i : who) {
      if (end_of(i) > period_ || rectangles_[i].length >= period_) {
        staying.push_back(i);
      } else {
        events_.push({rectangles_[i].begin, -rectangles_[i].length, i});
      }
    }
    if (!seat(staying)) return std::nullopt;
    while (!events_.empty()) {
      const auto [begin, length, i] = events_.top();
      events_.pop();
      // What returns to other pages is there until it has moved.
      const std::int32_t end = moves_[i] ? period_ + 1 : end_of(i);
      auto& pages = moves_[i] ? result_.before_moving[i] : result_.pages[i];
      if (!take(i, begin, end, pages)) return std::nullopt;
    }
    marked_.assign(rectangles_.size(), false);
    for (std::uint32_t i = 0; i < moves_.size(); ++i) {
      if (moves_[i]) list_after_earlier(i, result_.order);
    }
    return std::move(result_);
  }

 private:
  struct Page {
    std::int32_t free_from = 0;
    std::int32_t free_until = kNever;  ///< when its owner returns
    std::uint32_t owner = kNobody;     ///< goes round, and is here when the step begins
  };
  /// Neighbours that are free, alike in what care_ looks at.
  struct Run {
    std::int32_t rank = 0;
    std::size_t count = 0;
    std::uint32_t first = 0;
  };

  [[nodiscard]] std::int32_t end_of(std::uint32_t i) const {
    return rectangles_[i].begin + rectangles_[i].length;
  }
  [[nodiscard]] std::size_t count_of(std::uint32_t i) const {
    return static_cast<std::size_t>((rectangles_[i].size + page_ - 1) / page_);
  }

  /// Those that are there when the step begins.
  bool seat(const std::vector<std::uint32_t>& staying) {
    std::size_t next = shared_.size();
    for (const std::uint32_t i : staying) {
      const std::size_t end = next + count_of(i);
      if (end > pages_.size()) return false;
      const bool always = rectangles_[i].length >= period_;
      for (; next < end; ++next) {
        pages_[next] = {always ? kNever : end_of(i) - period_, always ? 0 : rectangles_[i].begin,
                        i};
        result_.pages[i].push_back(static_cast<std::uint32_t>(next));
      }
    }
    return true;
  }

  bool take(std::uint32_t i, std::int32_t begin, std::int32_t end,
            std::vector<std::uint32_t>& result) {
    if (const std::size_t found = find(i, begin, end); found < count_of(i)) {
      if (!may_move_ || !turn_out(count_of(i) - found, begin, end)) return false;
      (void)find(i, begin, end);
    }
    choose(count_of(i), end);
    std::ranges::sort(found_);
    for (const std::uint32_t p : found_) {
      if (is_left_in_time(pages_[p], end)) {
        auto& earlier = move_earlier_[pages_[p].owner];
        if (earlier.empty() || earlier.back() != i) earlier.push_back(i);
      }
      pages_[p].free_from = end;
      if (begin == 0) pages_[p].free_until = period_;  // not free while others move
      result.push_back(p);
    }
    return true;
  }

  [[nodiscard]] std::int32_t rank_of(const Page& page) const {
    switch (care_) {
      case Care::kNone:
        return 0;
      case Care::kOwned:
        return page.free_until == kNever ? 1 : 0;
      case Care::kExact:
        return page.free_until;
    }
    return 0;
  }

  /// Leaves `needed` of what was found: what ranks first, and of that as few pieces as best fit
  /// makes of it.
  void choose(std::size_t needed, std::int32_t end) {
    std::vector<Run> runs;
    for (const std::uint32_t p : found_) {
      const std::int32_t rank = is_left_in_time(pages_[p], end) ? kNever : rank_of(pages_[p]);
      const bool goes_on =
          !runs.empty() && runs.back().rank == rank && runs.back().first + runs.back().count == p;
      if (!goes_on) runs.push_back({rank, 0, p});
      ++runs.back().count;
    }
    std::ranges::sort(runs, {},
                      [](const Run& run) { return std::tuple(run.rank, run.count, run.first); });
    found_.clear();
    const auto use = [&](const Run& run) {
      for (std::uint32_t k = 0; needed > 0 && k < run.count; ++k, --needed) {
        found_.push_back(run.first + k);
      }
    };
    for (auto begin = runs.begin(); needed > 0;) {
      const auto next = std::ranges::find_if(
          begin, runs.end(), [&](const Run& run) { return run.rank != begin->rank; });
      // The smallest that holds it; before that, if none does, the largest.
      for (auto last = next; needed > 0 && last != begin;) {
        const auto fit = std::ranges::lower_bound(begin, last, needed, {}, &Run::count);
        use(fit == last ? *--last : *fit);
      }
      begin = next;
    }
  }

  [[nodiscard]] bool is_free(const Busy& busy, std::int32_t begin, std::int32_t end) const {
    if (end > period_) return false;
    const auto next = std::ranges::upper_bound(busy, begin, {}, &Busy::value_type::second);
    return next == busy.end() || next->first >= end;
  }

  /// The page's owner moves there at moment 0, and what moves away then (as `end` says) can do so
  /// before.
  [[nodiscard]] bool is_left_in_time(const Page& page, std::int32_t end) const {
    return end > period_ && page.free_until == period_ && page.owner != kNobody &&
           moves_[page.owner];
  }
  /// Lists `i` after those that must move before it, unless it has been listed.
  void list_after_earlier(std::uint32_t i, std::vector<std::uint32_t>& list) {
    if (marked_[i]) return;
    marked_[i] = true;
    for (const std::uint32_t earlier : move_earlier_[i]) list_after_earlier(earlier, list);
    list.push_back(i);
  }

  /// The pages that are free for `i` in [begin, end).
  std::size_t find(std::uint32_t i, std::int32_t begin, std::int32_t end) {
    found_.clear();
    if (end > period_) {
      // What must move before `i` cannot wait for it.
      marked_.assign(rectangles_.size(), false);
      std::vector<std::uint32_t> earlier;
      list_after_earlier(i, earlier);
    }
    for (std::uint32_t p = 0; p < pages_.size(); ++p) {
      const Page& page = pages_[p];
      if (page.free_from > begin) continue;
      if (is_left_in_time(page, end)) {
        if (!marked_[page.owner]) found_.push_back(p);
        continue;
      }
      const bool free = page.free_until >= end;
      if (free && (p >= shared_.size() || is_free(shared_[p], begin, end))) found_.push_back(p);
    }
    return found_.size();
  }

  /// Has owners return elsewhere, so that `needed` more pages are free in [begin, end).
  bool turn_out(std::size_t needed, std::int32_t begin, std::int32_t end) {
    // How many pages of each owner that would help.
    std::vector<std::pair<std::uint32_t, std::size_t>> owners;
    for (const Page& page : pages_) {
      if (page.owner == kNobody || moves_[page.owner] || page.free_from > begin) continue;
      if (page.free_until <= begin || page.free_until >= end) continue;  // is back, or no hindrance
      if (owners.empty() || owners.back().first != page.owner) owners.emplace_back(page.owner, 0);
      ++owners.back().second;
    }
    // Those that return last: by then others have gone.
    std::ranges::stable_sort(owners, std::greater<>{},
                             [this](const auto& owner) { return rectangles_[owner.first].begin; });
    for (auto best = owners.begin(); needed > 0; ++best) {
      if (best == owners.end()) return false;
      const std::uint32_t owner = best->first;
      needed -= std::min(needed, best->second);
      moves_[owner] = true;
      for (Page& page : pages_) {
        if (page.owner == owner) page.free_until = period_;
      }
      events_.push({rectangles_[owner].begin, -rectangles_[owner].length, owner});
    }
    return true;
  }

  using Event = std::tuple<std::int32_t, std::int32_t, std::uint32_t>;  // begin, -length, who

  const std::vector<Rectangle>& rectangles_;
  std::int32_t period_;
  Bytes page_;
  const std::vector<Busy>& shared_;
  std::vector<Page> pages_;
  Care care_;
  bool may_move_;
  std::vector<bool> moves_;  // by rectangle: returns elsewhere
  /// By rectangle that moves: those that have its pages until they move.
  std::vector<std::vector<std::uint32_t>> move_earlier_;
  std::vector<bool> marked_;  // by rectangle; of list_after_earlier()
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<std::uint32_t> found_;
  Scattering result_;
};

/// When the pages below `end` are taken by `pieces`.
std::vector<Busy> busy_pages(const std::vector<Rectangle>& pieces, std::int32_t period, Bytes page,
                             Bytes end) {
  std::vector<Busy> pages(static_cast<std::size_t>(end / page));
  for (const Rectangle& piece : pieces) {
    const std::int32_t over = piece.begin + piece.length - period;
    const auto last = static_cast<std::size_t>((piece.address + piece.size - 1) / page);
    for (auto p = static_cast<std::size_t>(piece.address / page); p <= last; ++p) {
      if (piece.length >= period) {
        pages[p].emplace_back(0, period);
        continue;
      }
      pages[p].emplace_back(piece.begin, std::min(piece.begin + piece.length, period));
      if (over > 0) pages[p].emplace_back(0, over);
    }
  }
  for (Busy& busy : pages) {
    std::ranges::sort(busy);
    // Overlapping ones become one: their ends are to be in order, too.
    Busy merged;
    for (const auto& [begin, stop] : busy) {
      if (!merged.empty() && begin <= merged.back().second) {
        merged.back().second = std::max(merged.back().second, stop);
      } else {
        merged.emplace_back(begin, stop);
      }
    }
    busy = std::move(merged);
  }
  return pages;
}

/// The same, in a period that begins at a moment of theirs.
std::vector<Rectangle> from_moment(std::vector<Rectangle> rectangles, std::int32_t moment,
                                   std::int32_t period) {
  for (Rectangle& rectangle : rectangles) {
    rectangle.begin = (rectangle.begin - moment + period) % period;
  }
  return rectangles;
}

/// Pages that are moved, each of which takes the device about as long as a piece takes the host,
/// and the pieces of everything: the fewer, the better.
std::size_t trouble(const Scattering& scattering) {
  std::size_t sum = 0;
  const auto count = [&](const std::vector<std::uint32_t>& pages) {
    for (std::size_t k = 0; k < pages.size(); ++k) {
      sum += k == 0 || pages[k] != pages[k - 1] + 1 ? 1 : 0;
    }
  };
  std::ranges::for_each(scattering.pages, count);
  for (const auto& pages : scattering.before_moving) {
    sum += pages.size();
    count(pages);
  }
  return sum;
}

}  // namespace

std::optional<Scattering> scatter(std::vector<Rectangle>& rectangles,
                                  const std::vector<bool>& whole, std::int32_t period, Bytes room,
                                  Bytes page) {
  std::vector<std::uint32_t> who;
  std::vector<std::uint32_t> in_one_piece;
  std::vector<Rectangle> pieces;
  for (std::uint32_t i = 0; i < rectangles.size(); ++i) {
    if (rectangles[i].length == 0) continue;
    if (whole[i] || rectangles[i].size < page) {
      in_one_piece.push_back(i);
      pieces.push_back(rectangles[i]);
    } else {
      who.push_back(i);
    }
  }
  const Bytes below = pieces.empty() ? 0 : round_up(pack(pieces, period, kSecondsForPieces), page);
  if (below > room) return std::nullopt;
  std::optional<Scattering> result;
  const auto colour = [&](std::int32_t beginning) {
    const std::vector<Rectangle> turned = from_moment(rectangles, beginning, period);
    const std::vector<Busy> shared =
        busy_pages(from_moment(pieces, beginning, period), period, page, below);
    for (const Care care : {Care::kNone, Care::kOwned, Care::kExact}) {
      auto found = Colouring(turned, period, page, shared, static_cast<std::size_t>(room / page),
                             care, beginning == 0)
                       .run(who);
      if (found && (!result || trouble(*found) < trouble(*result))) result = std::move(found);
    }
  };
  const auto content = [&] {
    return result && trouble(*result) <= who.size() + who.size() / kLittleTrouble;
  };
  colour(0);
  for (std::int32_t k = kBeginnings; --k > 0 && !content();) colour(period * k / kBeginnings);
  if (!result) return result;
  for (std::size_t k = 0; k < pieces.size(); ++k) {
    rectangles[in_one_piece[k]].address = pieces[k].address;
  }
  return result;
}

}  // namespace lms
