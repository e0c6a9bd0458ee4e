#pragma once

#include <ATen/core/stack.h>

#include <cstdint>
#include <span>
#include <vector>

#include "adapters/torch/device_manager.h"
#include "adapters/torch/slices/in_slices.h"
#include "adapters/torch/thread_state.h"

namespace lms::torch {

/// Tells the pilot of an outermost operator's begin and end, however it ends. An empty `stack`: the
/// arguments are not boxed, and nobody asks what computing again takes.
class PilotScope {
 public:
  PilotScope(ThreadState& state, DeviceManager* manager, const OpInfo& info,
             const c10::Stack& stack);
  ~PilotScope();
  PilotScope(const PilotScope&) = delete;
  PilotScope& operator=(const PilotScope&) = delete;

  /// The operator has made these below.
  void note_born(std::span<const Born> born) { born_.assign(born.begin(), born.end()); }
  void restart() const {
    if (manager_ != nullptr && !beside_) manager_->pilot().restart_operator();
  }
  /// Where to record how the operator can be run again; null: nobody wants to know.
  [[nodiscard]] Lineages* lineages() const {
    const bool records = recording_ != Pilot::Recording::kNo || in_stress_;
    return records ? &manager_->lineages() : nullptr;
  }
  [[nodiscard]] std::uint32_t most_depth() const {
    // Where no plan says when, lineages that need lineages that need lineages take for ever.
    constexpr std::uint32_t kInStress = 6;
    constexpr std::uint32_t kUnplanned = 32;
    constexpr std::uint32_t kPlanned = 4096;
    if (in_stress_) return kInStress;
    return recording_ == Pilot::Recording::kForPlan ? kPlanned : kUnplanned;
  }

 private:
  ThreadState& state_;
  DeviceManager* manager_;
  bool beside_ = false;
  Pilot::Recording recording_ = Pilot::Recording::kNo;
  std::vector<Born> born_;
  bool in_stress_ = false;
};

}  // namespace lms::torch
