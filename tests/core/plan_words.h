#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/timing/timing.h"
#include "trace/trace.h"

namespace lms::testing {

inline constexpr Action kKeep = Action::kKeep;
inline constexpr Action kStartOut = Action::kStartOut;
inline constexpr Action kFinishOut = Action::kFinishOut;
inline constexpr Action kStartIn = Action::kStartIn;
inline constexpr Action kDrop = Action::kDrop;
inline constexpr Action kRematerialise = Action::kRematerialise;

/// A byte in a millisecond, no latency, no tax.
inline constexpr LinkModel kUnit{1, 1, 1, 0, 0, 0};

/// A budget that no test's step reaches.
inline constexpr Bytes kAmple = 1'000'000'000;

/// A line each: comparing it with "" shows all of them.
inline std::string joined(const std::vector<std::string>& notes) {
  std::string text;
  for (const auto& line : notes) text += line + "\n";
  return text;
}

/// The most bytes that live at one time.
inline Bytes peak(const Trace& trace) {
  const auto live = trace.live_bytes();
  return std::ranges::max(live);
}

/// Milliseconds of all operators.
inline double computation(const Trace& trace) {
  double ms = 0;
  for (const TraceOperator& op : trace.operators) ms += op.ms;
  return ms;
}

}  // namespace lms::testing
