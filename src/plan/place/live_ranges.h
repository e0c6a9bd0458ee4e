#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/place/pack.h"
#include "plan/place/placement.h"
#include "plan/place/scatter.h"
#include "plan/producers.h"

namespace lms {

/// Everything that needs an address in a planned step, as rectangles in circular time, and which
/// entry of the Placement each address is for.
class LiveRanges {
 public:
  LiveRanges(const Trace& trace, const Plan& plan, Bytes alignment);

  [[nodiscard]] std::vector<Rectangle>& rectangles() { return rectangles_; }
  /// Moments of the step.
  [[nodiscard]] std::int32_t period() const { return now_; }
  /// Most bytes in use at one moment.
  [[nodiscard]] Bytes most_at_once() const { return most_at_once_; }

  /// By rectangle: it needs one stretch of addresses.
  [[nodiscard]] const std::vector<bool>& whole() const { return whole_; }

  /// The placement, with the rectangles' addresses, but without the end of the highest.
  [[nodiscard]] Placement placement() const;
  /// The placement, with its rectangles where they are in one piece, and on their pages.
  [[nodiscard]] Placement placement(const Scattering& scattering, Bytes page);

 private:
  using Index = std::size_t;
  static constexpr Index kNone = SIZE_MAX;

  /// The stays of one block.
  struct Residency {
    Index open = kNone;      ///< the rectangle of the stay that lasts
    Index at_start = kNone;  ///< the one of the stay with which the step begins
  };

  Index take(Bytes bytes, std::int32_t begin);
  void give(TraceBlockId block);
  /// The allocations of an operator, in order. Of one that is run again to have a block back, only
  /// this one's stay lasts longer.
  std::vector<Index> allocate(const TraceOperator& op, std::int64_t wanted = kNoBlock);
  void obey(const Directive& directive);
  void operate(const TraceOperator& op);
  void go_round();
  void share(Placement& result, Index index, const std::vector<std::uint32_t>& pages);

  const Trace& trace_;
  Producers producers_;
  Bytes alignment_;
  std::int32_t now_ = 1;               // at moment 0 the step begins; nothing happens
  std::vector<Rectangle> rectangles_;  // while they last: of length 0
  std::vector<Residency> blocks_;
  std::vector<std::vector<Index>> allocations_;
  std::vector<Index> arrivals_;
  std::vector<std::vector<Index>> remakes_;
  std::vector<Index> at_start_;  // by block
  std::vector<bool> whole_;
  /// By block that has two stays joined over the end of the step: the one with which it begins.
  std::vector<Index> early_;
  std::vector<TraceBlockId> taking_turns_;
  Bytes most_at_once_ = 0;
};

}  // namespace lms
