#include "foresight/duel.h"

#include <algorithm>

namespace lms {
namespace {

/// A round is over when so often the limit has moved.
constexpr Bytes kRound = 4;
/// More than this is never worth it, ahead or not.
constexpr double kMost = 1.15;
/// What is copied ahead counts for so much of what somebody waits for.
constexpr double kAhead = 0.75;
/// Rounds that are rested at most.
constexpr double kLongest = 256;

}  // namespace

void Duel::look(const Moved& moved, Bytes room, Bytes limit) {
  // Pieces that do not join, and what is not managed, are no fault of the policy.
  if (room > room_) ghost_.set_room(room_ = room);
  if (in_vain_) {
    in_vain_ = false;
    moved_ = moved;
    ghost_moved_ = ghost_.moved();
    return;
  }
  const Bytes without = ghost_.moved() - ghost_moved_;
  const Bytes all = moved.in_all - moved_.in_all;
  const bool wastes = static_cast<double>(all) >
                      kMost * static_cast<double>(without) + static_cast<double>(limit) / 4;
  if (std::max(without, all) < kRound * limit && !wastes) return;
  const Bytes ahead = moved.ahead - moved_.ahead;
  const double with = static_cast<double>(all - ahead) + kAhead * static_cast<double>(ahead);
  moved_ = moved;
  ghost_moved_ = ghost_.moved();
  if (rest_ > 0) {
    rest_ -= 1;
    return;
  }
  if (with <= static_cast<double>(without) && !wastes) {
    next_rest_ = std::max(next_rest_ / 2, 2.0);
    return;
  }
  rest_ = next_rest_;
  next_rest_ = std::min(2 * next_rest_, kLongest);
}

}  // namespace lms
