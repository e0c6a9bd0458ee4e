#include "plan/placed_plan.h"

#include <algorithm>
#include <array>
#include <future>
#include <limits>
#include <optional>
#include <string>
#include <thread>

#include "base/error.h"

namespace lms {
namespace {

/// Addresses waste some memory, the more the fuller it is: so several budgets are tried at once,
/// as parts of the room, and then some between the best that fits and the next above it.
constexpr std::array kFirst{1.0, 0.99, 0.98, 0.97, 0.96, 0.95, 0.94, 0.93};
/// Less if memory can be had in pieces.
constexpr std::array kFirstOnPages{1.0, 0.998, 0.996, 0.994, 0.991, 0.987, 0.98, 0.96};
/// Most time to look for addresses in one piece each, with and without the other way.
constexpr double kSecondsInOnePiece = 1;
constexpr double kSecondsBeforePages = 0.2;
constexpr std::array kLower{0.9, 0.87, 0.83, 0.77, 0.7};
/// In haste: few, of which the last nearly always finds addresses at once.
constexpr std::array kHasty{0.998, 0.96, 0.98, 0.93};
constexpr double kHastySeconds = 0.1;
constexpr std::array kBetween{0.25, 0.5, 0.75};
/// Of plans that are as fast as this the one that leaves most on the device is taken.
constexpr double kAsFast = 1.003;

/// Of the time for the first plans: what the others take, which begin with one of them.
constexpr double kSecondsFromStart = 0.25;

class Planning {
 public:
  Planning(const Trace& trace, const Pages& pages, const LinkModel& link,
           const SearchOptions& options)
      : trace_(trace), pages_(pages), room_(pages.room), link_(link), options_(options) {}

  PlacedPlan run() {
    if (hasty_) try_all(parts_of_room(kHasty));
    hasty_ = false;
    if (found_.empty()) {
      try_all(parts_of_room(pages_.page > 0 ? kFirstOnPages : kFirst));
      if (found_.empty()) try_all(parts_of_room(kLower));
      if (!found_.empty()) try_all(between());
    }
    if (found_.empty()) throw OutOfMemory(failure_);
    const auto best = std::ranges::min_element(found_, {}, time_of);
    const double most = time_of(*best) * kAsFast;
    const PlacedPlan* chosen = &*best;
    for (const PlacedPlan& candidate : found_) {
      if (time_of(candidate) <= most && candidate.budget > chosen->budget) chosen = &candidate;
    }
    return *chosen;
  }

 private:
  [[nodiscard]] bool stopped() const {
    return options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed);
  }
  static double time_of(const PlacedPlan& candidate) { return candidate.step.predicted.step_ms; }

  template <std::size_t N>
  [[nodiscard]] std::vector<Bytes> parts_of_room(const std::array<double, N>& parts) const {
    std::vector<Bytes> budgets;
    budgets.reserve(N);
    for (const double part : parts) {
      budgets.push_back(static_cast<Bytes>(part * static_cast<double>(room_)));
    }
    return budgets;
  }

  [[nodiscard]] std::vector<Bytes> between() const {
    const Bytes fits = std::ranges::max_element(found_, {}, &PlacedPlan::budget)->budget;
    Bytes above = room_;
    for (const Bytes budget : tried_) {
      if (budget > fits) above = std::min(above, budget);
    }
    std::vector<Bytes> budgets;
    if (above <= fits) return budgets;
    for (const double part : kBetween) {
      budgets.push_back(fits + static_cast<Bytes>(part * static_cast<double>(above - fits)));
    }
    return budgets;
  }

  void try_all(const std::vector<Bytes>& budgets) {
    const std::size_t at_once = std::max(2U, std::thread::hardware_concurrency());
    for (std::size_t next = 0; next < budgets.size() && !stopped();) {
      std::vector<std::future<PlacedPlan>> running;
      for (; next < budgets.size() && running.size() < at_once; ++next) {
        const Bytes budget = budgets[next];
        // The budgets are nearly the same: the searches had better not be.
        const std::uint64_t seed = options_.seed + tried_.size();
        tried_.push_back(budget);
        running.push_back(
            std::async(std::launch::async, [this, budget, seed] { return attempt(budget, seed); }));
      }
      std::optional<Plan> fastest;
      for (auto& attempt : running) {
        try {
          PlacedPlan candidate = attempt.get();
          if (options_.recompute && time_of(candidate) < start_ms_) {
            fastest = candidate.step.plan;
            start_ms_ = time_of(candidate);
          }
          if (candidate.placement.bytes <= room_) found_.push_back(std::move(candidate));
        } catch (const OutOfMemory& error) {
          // What the largest budget is too small for is what the user should hear of.
          if (failure_.empty()) failure_ = error.what();
        }
      }
      if (fastest) start_ = std::move(fastest);
      if (!found_.empty()) return;  // smaller ones are slower
    }
    if (found_.empty() && failure_.empty()) {
      failure_ = stopped() ? "nobody wants it any more"
                           : "the addresses of every plan take more than the " +
                                 format_bytes(room_) + " that there are";
    }
  }

  [[nodiscard]] PlacedPlan attempt(Bytes budget, std::uint64_t seed) const {
    SearchOptions options = options_;
    options.seed = seed;
    if (start_) {
      options.start = &*start_;
      options.seconds *= kSecondsFromStart;
    }
    PlacedPlan candidate{budget, make_plan(trace_, budget, link_, options), {}};
    const double at_leisure = pages_.page > 0 ? kSecondsBeforePages : kSecondsInOnePiece;
    const double seconds = hasty_ ? kHastySeconds : at_leisure;
    candidate.placement = place(trace_, candidate.step.plan, kPlacedUnit, seconds, pages_);
    return candidate;
  }

  const Trace& trace_;
  Pages pages_;
  Bytes room_;
  LinkModel link_;
  SearchOptions options_;
  bool hasty_ = options_.hasty;
  std::vector<Bytes> tried_;
  /// The fastest so far, whether it fits or not: from here the search for further plans goes on.
  std::optional<Plan> start_;
  double start_ms_ = std::numeric_limits<double>::infinity();
  std::vector<PlacedPlan> found_;
  std::string failure_;
};

}  // namespace

PlacedPlan make_placed_plan(const Trace& trace, const Pages& pages, const LinkModel& link,
                            const SearchOptions& options) {
  return Planning(trace, pages, link, options).run();
}

}  // namespace lms
