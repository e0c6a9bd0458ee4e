#include "adapters/torch/cuda/cuda_pilot.h"

#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <exception>

#include "adapters/torch/cuda/bridge_allocator.h"
#include "adapters/torch/cuda/cuda_manager.h"
#include "adapters/torch/cuda/native_stats.h"
#include "adapters/torch/cuda/on_device.h"
#include "adapters/torch/deferred/deferred.h"
#include "adapters/torch/registry.h"
#include "adapters/torch/replay/lineages.h"

namespace lms::torch {

void CudaPilotDevice::start_laps() {
  const OnDevice guard(device_.index());
  memory_.start_laps();
}

void CudaPilotDevice::begin_lap() {
  const OnDevice guard(device_.index());
  memory_.laps().begin_lap(memory_.used_by_plan());
}

void CudaPilotDevice::lap() {
  const OnDevice guard(device_.index());
  memory_.laps().lap(memory_.used_by_plan());
}

void CudaPilotDevice::restart_lap() {
  const OnDevice guard(device_.index());
  memory_.laps().restart_lap();
}

PilotDevice::Laps CudaPilotDevice::finish_laps() {
  const OnDevice guard(device_.index());
  Laps laps = memory_.laps().finish();
  // What this step does not tell, the one before has told, perhaps.
  link_ = measured_link(laps.copies, link_);
  return laps;
}

void CudaPilotDevice::drop_laps() { memory_.laps().drop(); }

PilotDevice::Room CudaPilotDevice::room(bool first) {
  if (memory_.arena() == nullptr) throw Error("this device cannot map memory to addresses");
  if (!memory_.serves(memory_.main_stream()))
    throw Error("so small a limit is left to PyTorch's allocator");
  const OnDevice guard(device_.index());
  if (first || holds_what_stays()) {
    begin_anew();
  } else {
    give_back_cached();  // what lies in the window is where another plan wants it, and can go
  }
  return {.arena = memory_.planned_room(), .page = memory_.arena()->page(), .addresses = true};
}

/// Everything comes back where the plan wants it; what cannot leave is left behind.
void CudaPilotDevice::begin_anew() {
  const OnDevice guard(device_.index());
  {
    Engine& engine = manager_.engine();
    EngineLock lock = engine.lock();
    (void)engine.reclaim(lock, INT64_MAX);
  }
  if (!manager_.capturing()) memory_.arena()->move_window();
  give_back_cached();
}

/// PyTorch's allocator keeps nothing that nobody uses. Waits for the device.
void CudaPilotDevice::give_back_cached() {
  if (!manager_.capturing()) BridgeAllocator::instance().native()->emptyCache({0, 0});
  memory_.update_capacity();
}

/// Something in the window would be in every plan's way.
bool CudaPilotDevice::holds_what_stays() {
  DeviceArena& arena = *memory_.arena();
  const EngineLock lock = manager_.engine().lock();
  return arena.holds_untracked() ||
         std::ranges::any_of(arena.occupants(arena.base(), arena.room()),
                             [](const CudaBlock* block) { return block->kept; });
}

bool CudaPilotDevice::obstructed(Bytes bytes) {
  DeviceArena* const arena = memory_.arena();
  return arena != nullptr && (arena->room() < bytes || arena->holds_untracked());
}

void CudaPilotDevice::clear_way() {
  try {
    begin_anew();
  } catch (const std::exception&) {
    // The tier below is full, say: then things lie as they do.
  }
}

Bytes CudaPilotDevice::still_room(Bytes room) { return std::min(room, memory_.planned_room()); }

std::int64_t CudaPilotDevice::misplaced() const { return memory_.misplaced(); }

bool CudaPilotDevice::at_home(const Block& base) {
  const auto& block = static_cast<const CudaBlock&>(base);
  const Bytes home = manager_.pilot().home_of(block);
  // What PyTorch's own allocator has made is nowhere in the arena.
  if (home == kNoAddress || block.place == nullptr || !memory_.arena()->owns(block.place))
    return true;
  return home < kScattered ? memory_.arena()->lies_at(block.place, home)
                           : memory_.arena()->lies_on(block.place, manager_.pilot().pages_of(home));
}

bool CudaPilotDevice::make_room_ahead(EngineLock& lock, Engine& /*engine*/, Bytes bytes,
                                      const std::function<bool(const Block&)>& spare) {
  lock.unlock();
  bool made = false;
  try {
    made = memory_.make_room_ahead(bytes, spare);
  } catch (const TierFull&) {
    // Whoever needs the memory hears of it.
  }
  lock.lock();
  return made;
}

LinkModel CudaPilotDevice::link() { return link_; }

void CudaPilotDevice::remake_ghost(BlockUid uid, const std::vector<Bytes>& addresses) {
  const OnDevice guard(device_.index());
  manager_.in_order([&] { manager_.lineages().remake_ghost(uid, addresses); });
}

void CudaPilotDevice::drop_ghost(BlockUid uid) { manager_.lineages().drop_ghost(uid); }

void CudaPilotDevice::defer_updates(const std::vector<BlockUid>& written) {
  manager_.deferred().choose(written);
}

void CudaPilotDevice::drop_ghosts() { manager_.lineages().drop_ghosts(); }

void CudaPilotDevice::show(Stage stage, bool begins) noexcept {
  switch (stage) {
    case Stage::kStep:
      if (begins) {
        step_range_ = cuda::start_range("planned step");
      } else {
        cuda::end_range(step_range_);
      }
      break;
    case Stage::kOrders:
      begins ? cuda::push_range("orders of the plan") : cuda::pop_range();
      break;
    case Stage::kPlanning:
      begins ? cuda::push_range("planning") : cuda::pop_range();
      break;
  }
}

void CudaPilotDevice::say(const std::string& line) { torch::say(device_, line); }

}  // namespace lms::torch
