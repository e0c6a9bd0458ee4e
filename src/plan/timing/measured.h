#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "plan/timing/link.h"
#include "plan/timing/timing.h"

namespace lms {

/// When one operator ran, as events on the device saw it; 0 is the beginning of the step.
struct MeasuredOperator {
  double begin_ms = 0;  ///< after its waits; those in its midst count as before it
  double end_ms = 0;
  Bytes device = -1;     ///< most bytes on the device while it ran; -1: not measured
  double waited_ms = 0;  ///< for copies, before begin_ms
  /// How many operators the device had been given and not done when the host came to this one, and
  /// when it had been queued, itself not counted; -1: not measured. kMany: the device had not come
  /// to the step yet, and nobody knows how much of the step before was left.
  static constexpr int kMany = std::numeric_limits<int>::max();
  int behind = -1;
  int behind_after = -1;

  /// The device stood still, or was about to: what it waited for is the host.
  [[nodiscard]] bool starved() const { return behind >= 0 && behind < kStarving; }
  static constexpr int kStarving = 4;
};

/// A step that was carried out, to be shown beside its prediction.
struct MeasuredTimeline {
  std::vector<MeasuredOperator> operators;  ///< one for each operator of the trace, in order
  std::vector<CopyTiming> copies;           ///< those that the step started, in any order
};

/// One copy between a device and the tier below, as events on its lane saw it.
struct MeasuredCopy {
  std::uint64_t uid = 0;  ///< whose bytes: Block::uid
  Bytes bytes = 0;
  bool out = false;
  double begin_ms = 0;  ///< when the lane came to it, after all that it had to wait for
  double end_ms = 0;
};

/// `fallback` with the rates that these copies show, which must all be of one clock; taxes and
/// latency stay. A rate is that of the copy in the middle, by bytes, of those that speak of it:
/// large enough not to be all latency, and beside the other lane's copies hardly ever (for the
/// rates alone) or nearly always (for both). A rate that too few bytes speak of stays as it is;
/// that of both at once keeps its ratio to the slower lane alone then, and never exceeds that.
LinkModel measured_link(std::span<const MeasuredCopy> copies, const LinkModel& fallback = {});

}  // namespace lms
