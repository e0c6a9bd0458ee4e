#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "plan/place/pack.h"

namespace lms {

/// Where rectangles lie that need not lie in one piece.
struct Scattering {
  /// By rectangle: the numbers of its pages, ascending; empty for what lies in one piece, at its
  /// `address`.
  std::vector<std::vector<std::uint32_t>> pages;
  /// Of those that go round: elsewhere from their beginning to moment 0, where they move to
  /// `pages`. By rectangle; empty for all others.
  std::vector<std::vector<std::uint32_t>> before_moving;
  /// Those, in the order in which they must move: one may wait for another to leave its pages.
  std::vector<std::uint32_t> order;
};

/// Puts rectangles on pages of `page` bytes of [0, room), which memory of a device can be made of
/// wherever they are: what is at most `room` at every moment nearly always fits. Those that are
/// smaller than a page, and those that are `whole`, get addresses on the lowest pages, which others
/// have when they are free.
///
/// Interval colouring in the order of beginnings, each rectangle on the fewest pieces that best fit
/// finds; tried with more and less care for those that want their pages back, the result with the
/// fewest moves and pieces is taken (a piece costs the host time whenever it is taken and given).
/// What goes round the end of the period keeps its pages for its return, until something that lasts
/// beyond it has no other place: then it returns to other pages, and moves at moment 0. These may
/// be pages to which others move, if all can move one after the other. Where that is much trouble,
/// other moments are tried as the period's beginning, at which nothing moves: what goes round is in
/// nobody's way in a period that begins before those come that leave after its end. Nothing if
/// there is no room even so.
std::optional<Scattering> scatter(std::vector<Rectangle>& rectangles,
                                  const std::vector<bool>& whole, std::int32_t period, Bytes room,
                                  Bytes page);

}  // namespace lms
