#include "foresight/forecast.h"

#include <algorithm>
#include <bit>

#include "base/mixed.h"

namespace lms {
namespace {

/// An edit of the stream is at most this part of a step; what is further away is another step.
constexpr std::uint64_t kEdit = 4;
constexpr std::uint64_t kLeastEdit = 16;
/// The longer the stream has been lost, the further away it is looked for, in so many operators for
/// each one; until it is looked for everywhere.
constexpr std::uint64_t kRadius = 4;
constexpr int kEverywhere = 64;
/// So many operators in a row tell a place from all others.
constexpr std::size_t kLongContext = 32;
/// And with one operator alone to go by, so far ahead.
constexpr std::uint64_t kNext = 8;
/// Operators in a row after which a place is certain.
constexpr int kFirm = 4;
/// Operators after which nobody is believed to be where he was.
constexpr int kMostLost = 8;
/// Places of the same context that are looked at.
constexpr int kMostPlaces = 64;
/// Uses in a row that must agree on another place.
constexpr int kVotes = 3;
/// Uses of a block that are gone back for that.
constexpr int kMostUses = 16;
constexpr int kMostFaith = 3;
/// Between uses that are nearer to each other than this, nothing leaves.
constexpr std::uint64_t kShort = 16;
constexpr double kWeight = 1.0 / 64;
constexpr double kTrust = 0.6;
constexpr double kDistrust = 0.4;

constexpr std::size_t kFirstUses = 4096;

std::uint64_t distance(std::uint64_t a, std::uint64_t b) { return a > b ? a - b : b - a; }

}  // namespace

Forecast::Forecast(std::size_t most_operators)
    : most_(std::bit_ceil(std::max<std::size_t>(most_operators, 16))) {
  clear();
}

void Forecast::clear() {
  operators_.clear();
  uses_.clear();
  places_.clear();
  known_.clear();
  end_ = uses_end_ = at_ = firm_ = 0;
  shift_ = 1;
  recent_ = {};
  lost_for_ = agreed_ = votes_ = 0;
  right_ = 0;
  aligned_ = trusted_ = false;
}

void Forecast::lose_track() {
  aligned_ = false;
  agreed_ = 0;
  lost_for_ = kEverywhere;
}

void Forecast::begin_operator(OperatorKey key) {
  if (operators_.empty()) {
    operators_.resize(most_);
    places_.assign(most_, kNone);
    uses_.resize(kFirstUses);
  }
  const std::uint64_t n = end_++;
  context_ = 0;
  for (std::size_t i = 0; i + 1 < kContext; ++i) {
    recent_[i] = recent_[i + 1];
    context_ = mixed(context_, recent_[i]);
  }
  recent_.back() = key;
  context_ = mixed(context_, key);
  std::uint64_t& place = places_[(context_ * 0x9E3779B97F4A7C15U) >>
                                 (64U - static_cast<unsigned>(std::countr_zero(most_)))];
  op(n) = {.key = key, .first_use = uses_end_, .before = place};
  go_on(key);
  place = n;
}

void Forecast::go_on(OperatorKey key) {
  if (aligned_ && operator_known(at_ + 1) && op(at_ + 1).key == key) {
    ++at_;
    if (++agreed_ >= kFirm) {
      firm_ = at_;
      lost_for_ = 0;
    } else {
      ++lost_for_;
    }
    return;
  }
  agreed_ = 0;
  ++lost_for_;
  if (const std::uint64_t place = same_context(firm_ + 1); place != kNone) {
    move_to(place);
    agreed_ = kFirm;
    firm_ = at_;
    lost_for_ = 0;
    return;
  }
  if (lost_for_ <= kMostLost) {
    if (const std::uint64_t place = nearby(key); place != kNone) {
      move_to(place);
      return;
    }
  }
  aligned_ = false;
}

/// With one operator alone to go by.
std::uint64_t Forecast::nearby(OperatorKey key) const {
  for (std::uint64_t place = firm_ + 1; place <= firm_ + kNext && operator_known(place); ++place) {
    if (op(place).key == key) return place;
  }
  return kNone;
}

/// The place nearest to `from` at which the last operators were the same; of those far away, for
/// how long it has been lost, one at which very many were.
std::uint64_t Forecast::same_context(std::uint64_t from) const {
  if (end_ < kContext + 1) return kNone;
  const std::uint64_t radius = kLeastEdit + kRadius * static_cast<std::uint64_t>(lost_for_);
  std::uint64_t best = kNone;
  int looks = 0;
  for (std::uint64_t place = op(end_ - 1).before;
       place != kNone && place >= first() + kContext && looks < kMostPlaces;
       place = op(place).before, ++looks) {
    if (best != kNone && distance(place, from) >= distance(best, from)) continue;
    const bool near = distance(place, from) <= radius || lost_for_ >= kEverywhere;
    const std::size_t wanted = near ? kContext : kLongContext;
    std::size_t same = 0;
    while (same < wanted && place - same > first() &&
           op(place - same).key == op(end_ - 1 - same).key)
      ++same;
    if (same == wanted) best = place;
  }
  return best;
}

void Forecast::move_to(std::uint64_t place) {
  // From one run of a step to another: what is foretold is as far away as it was.
  const std::uint64_t edit = std::max(kLeastEdit, (end_ - 1 - at_) / kEdit);
  if (distance(place, at_) > edit) shift_ = at_ + 1 + shift_ - place;
  at_ = place;
  aligned_ = true;
  votes_ = 0;
}

void Forecast::make_room() {
  const std::uint64_t oldest = op(first()).first_use;
  if (uses_end_ - oldest < uses_.size()) return;
  if (uses_.size() >= 8 * most_) return;  // what is oldest is overwritten
  std::vector<PastUse> wider(2 * uses_.size());
  for (std::uint64_t n = oldest; n < uses_end_; ++n) wider[n & (wider.size() - 1)] = use(n);
  uses_ = std::move(wider);
}

Forecast::Expected Forecast::touch(BlockUid uid) {
  if (end_ == 0) return {};
  const std::uint64_t now_op = end_ - 1;
  Known& known = known_[uid];
  if (use_known(known.last) && use(known.last).op == now_op) return known.believed;
  judge(known);
  make_room();
  const std::uint64_t number = uses_end_++;
  use(number) = {.op = now_op, .before = known.last, .uid = uid};
  if (use_known(known.last)) use(known.last).next = number;
  known.last = number;
  vote(number);
  known.expected = known.believed = {};
  known.told = now();
  const std::uint64_t then = aligned_ ? partner(number) : kNone;
  if (then == kNone) return {};
  const PastUse& past = use(then);
  use(number).faith = past.faith;
  if (use_known(past.next)) {
    use(past.next).expected = uid;
    known.expected = {.at = use(past.next).op + shift_};
  } else if (past.death != kNone && past.next == kNone) {
    known.expected = {.at = past.death + shift_, .ends = true};
  }
  if (past.faith >= 0) known.believed = known.expected;
  return known.believed;
}

/// The use of the past that this one is again.
std::uint64_t Forecast::partner(std::uint64_t number) const {
  const std::uint64_t then = op(at_).first_use + (number - op(end_ - 1).first_use);
  return use_known(then) && use(then).op == at_ ? then : kNone;
}

/// Was what has been foretold right?
void Forecast::judge(const Known& known) {
  if (!use_known(known.last) || end_ - 1 - use(known.last).op < kShort) return;
  bool right = false;
  if (aligned_ && known.expected.at != 0 && !known.expected.ends) {
    const std::uint64_t ahead = distance(known.expected.at, known.told);
    right = distance(now(), known.expected.at) <= std::max<std::uint64_t>(8, ahead / 4);
  }
  if (known.expected.at != 0) {
    std::int8_t& faith = use(known.last).faith;
    faith = static_cast<std::int8_t>(right ? std::min(faith + 1, kMostFaith)
                                           : std::max(faith - 2, -kMostFaith));
  }
  right_ += ((right ? 1 : 0) - right_) * kWeight;
  trusted_ = right_ > (trusted_ ? kDistrust : kTrust);
}

/// The same operator has used the same block before: is it there that the stream is now? Of layers
/// that look alike, their weights tell.
void Forecast::vote(std::uint64_t number) {
  const std::uint64_t now_op = end_ - 1;
  if (const std::uint64_t then = aligned_ ? partner(number) : kNone; then != kNone) {
    if (use(then).uid == use(number).uid) votes_ = 0;
    // What was used there and is no more tells nothing; neither does who comes from elsewhere.
    if (use(then).uid == use(number).uid || !known_.contains(use(then).uid)) return;
  }
  std::uint64_t place = use(number).before;
  for (int looks = 0; use_known(place) && op(use(place).op).key != op(now_op).key; ++looks) {
    place = looks < kMostUses ? use(place).before : kNone;
  }
  if (!use_known(place) || !operator_known(use(place).op)) return;
  const std::uint64_t lag = now_op - use(place).op;
  // What is used twice in a step by operators of one kind is no step.
  if (2 * lag < now_op - firm_) return;
  votes_ = lag == lag_voted_ ? votes_ + 1 : 1;
  lag_voted_ = lag;
  if (votes_ < (aligned_ ? kVotes : kVotes - 1)) return;
  move_to(use(place).op);
  firm_ = at_;
  agreed_ = kFirm;
  lost_for_ = 0;
}

void Forecast::released(BlockUid uid) {
  const auto found = known_.find(uid);
  if (found == known_.end()) return;
  if (use_known(found->second.last)) use(found->second.last).death = end_ - 1;
  known_.erase(found);
}

void Forecast::for_expected(std::uint64_t moment,
                            const std::function<void(BlockUid)>& visit) const {
  const std::uint64_t place = moment - shift_;
  if (!operator_known(place)) return;
  for (std::uint64_t n = op(place).first_use; use_known(n) && use(n).op == place; ++n) {
    visit(use(n).expected != 0 ? use(n).expected : use(n).uid);
  }
}

}  // namespace lms
