#include "steps/step_finder.h"

#include <algorithm>
#include <bit>

namespace lms {
namespace {

constexpr std::uint64_t kBase = 0xD1342543DE82EF95U;

/// Each operator read earns this many looks back.
constexpr std::uint64_t kCredit = 4;

constexpr std::uint64_t power(std::uint64_t base, std::size_t exponent) {
  std::uint64_t result = 1;
  for (; exponent > 0; --exponent) result *= base;
  return result;
}

}  // namespace

StepFinder::StepFinder(std::size_t most_operators, Repetition::Alike alike)
    : alike_(alike),
      most_seen_(std::bit_ceil(std::max<std::size_t>(most_operators, 2))),
      shift_(64U - static_cast<unsigned>(std::countr_zero(most_seen_))),
      marked_(alike) {
  candidates_.fill(Repetition(alike));
}

void StepFinder::clear() {
  restart(next_);
  seen_.clear();
  marks_.clear();
  last_mark_.reset();
  credit_ = 0;
}

void StepFinder::restart(std::uint64_t next) {
  next_ = next;
  in_window_ = 0;
  hash_ = 0;
  for (Repetition& candidate : candidates_) candidate.stop();
  marked_.stop();
  marked_step_.reset();
}

void StepFinder::mark(std::uint64_t next, std::uint64_t first) {
  while (!marks_.empty() && marks_.front() < first) marks_.pop_front();
  if (!marks_.empty() && marks_.back() == next) return;
  marks_.push_back(next);
}

std::optional<StepLog::Span> StepFinder::find(const StepLog& log) {
  if (next_ < log.first_whole()) restart(log.first_whole());
  while (next_ + 1 < log.end()) read(log);  // one that is the last may not be whole yet
  read_mark(log);
  const auto in_log = [&](const StepLog::Span& step) {
    return 2 * step.begin >= step.end + log.first_whole();
  };
  if (last_mark_) {
    const bool complete = marked_step_ && marked_step_->end <= next_;
    return complete && in_log(*marked_step_) ? marked_step_ : std::nullopt;
  }
  return best(log);
}

void StepFinder::read(const StepLog& log) {
  if (last_mark_ && *last_mark_ < log.first()) last_mark_.reset();
  read_mark(log);
  follow(log, marked_);
  for (Repetition& candidate : candidates_) follow(log, candidate);
  const Seen seen = slide(log.at(next_).*alike_);
  if (seen.last != kNowhere && !last_mark_ && !consider(log, next_ - seen.last) &&
      seen.before != kNowhere) {
    // The same was there, but worked on other blocks: two buffers that serve in turn, perhaps.
    consider(log, next_ - seen.before);
  }
  credit_ = std::min<std::uint64_t>(credit_ + kCredit, most_seen_);
  ++next_;
}

void StepFinder::follow(const StepLog& log, Repetition& repetition) {
  if (!repetition.active()) return;
  if (next_ < log.first_whole() + repetition.lag() ||
      repetition.follow(log) == Repetition::Verdict::kOther) {
    repetition.stop();
  }
}

/// Takes the next operator into the window and returns where the same window was before.
StepFinder::Seen StepFinder::slide(std::uint64_t signature) {
  static constexpr std::uint64_t kLeaving = power(kBase, kWindow);
  std::uint64_t& place = window_[next_ % kWindow];
  hash_ = hash_ * kBase + signature;
  if (in_window_ == kWindow) {
    hash_ -= kLeaving * place;
  } else {
    ++in_window_;
  }
  place = signature;
  if (in_window_ < kWindow) return {};
  if (seen_.empty()) seen_.resize(most_seen_);
  Seen& seen = seen_[(hash_ * 0x9E3779B97F4A7C15U) >> shift_];
  const Seen before = seen.hash == hash_ ? seen : Seen{};
  seen = {hash_, next_, before.last};
  return before;
}

/// Follows a candidate from now on, if it is not yet and there is room. False if it is known to
/// lead nowhere at present.
bool StepFinder::consider(const StepLog& log, std::uint64_t lag) {
  const std::uint64_t earliest = log.first_whole() + lag;
  if (next_ < earliest) return false;
  for (const Repetition& candidate : candidates_) {
    if (candidate.active() && candidate.lag() == lag) return !candidate.failing();
  }
  std::uint64_t start = next_ + 1;
  for (; credit_ > 0 && start > earliest; --start, --credit_) {
    if (log.at(start - 1).*alike_ != log.at(start - 1 - lag).*alike_) break;
  }
  // Only the shortest stretch may have to make room, and only for one that may be longer.
  Repetition& candidate = *std::ranges::max_element(candidates_, {}, [](const Repetition& one) {
    return one.active() ? one.start() : UINT64_MAX;
  });
  if (candidate.active() && candidate.start() <= start) return true;
  candidate.begin(lag, start);
  while (candidate.next() <= next_) candidate.follow(log);
  return true;
}

std::optional<StepLog::Span> StepFinder::best(const StepLog& log) {
  std::optional<StepLog::Span> found;
  std::uint64_t found_from = 0;
  for (Repetition& candidate : candidates_) {
    if (!candidate.active()) continue;
    const auto boundary = candidate.boundary(log);
    if (!boundary) continue;
    const std::uint64_t lag = candidate.lag();
    const std::uint64_t end = *boundary + (next_ - *boundary) / lag * lag;
    if (end < candidate.start() + lag || end < log.first_whole() + 2 * lag) continue;
    const std::uint64_t from = candidate.start() - lag;
    const bool better =
        !found || from < found_from || (from == found_from && lag < found->end - found->begin);
    if (!better || !candidate.is_step(log, end)) continue;
    found = StepLog::Span{end - lag, end};
    found_from = from;
  }
  return found;
}

void StepFinder::read_mark(const StepLog& log) {
  while (!marks_.empty() && marks_.front() <= next_) {
    const std::uint64_t mark = marks_.front();
    marks_.pop_front();
    if (mark < next_ || (last_mark_ && mark == *last_mark_)) continue;
    marked_step_.reset();
    const std::uint64_t lag = last_mark_ ? mark - *last_mark_ : 0;
    if (lag > 0 && marked_.active() && marked_.lag() == lag && marked_.start() <= *last_mark_ &&
        marked_.is_step(log, mark)) {
      marked_step_ = StepLog::Span{*last_mark_, mark};
    } else if (lag > 0 && mark >= log.first_whole() + lag) {
      marked_.begin(lag, mark);
    } else {
      marked_.stop();
    }
    last_mark_ = mark;
  }
}

}  // namespace lms
