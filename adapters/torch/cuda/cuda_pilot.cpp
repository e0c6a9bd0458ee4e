// What planning asks of a CUDA device.

#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

#include "adapters/torch/cuda/bridge_allocator.h"
#include "adapters/torch/cuda/cuda_manager.h"
#include "adapters/torch/cuda/native_stats.h"
#include "adapters/torch/registry.h"
#include "cuda/profiler.h"

namespace lms::torch {

void CudaManager::begin_pressure() {
  cuda::mark("reclaim");
  mark_pressed();
  pilot_.wake();
}

void CudaManager::wait_on(cudaStream_t stream, const cuda::EventPtr& event) {
  if (!laps_.running()) {
    event->block(stream);
    return;
  }
  const c10::cuda::CUDAGuard guard(device_.index());  // events for times are its own
  laps_.wait(stream, *event);
}

cuda::EventPtr CudaManager::copy_out(const CudaBlock& block, const HostSlot& to, const void* from) {
  return laps_.copy(*out_, /*out=*/true, block.uid, to.data(), from, block.size);
}

cuda::EventPtr CudaManager::copy_in(const CudaBlock& block, void* to) {
  return laps_.copy(*in_, /*out=*/false, block.uid, to, block.slot.data(), block.size);
}

Bytes CudaManager::used_by_plan() const { return arena_ ? arena_->used() - used_beside_ : -1; }

void CudaManager::start_laps() {
  const c10::cuda::CUDAGuard guard(device_.index());
  if (arena_) used_beside_ = arena_->used() - (arena_->room() - arena_->free());
  laps_.start(main_stream_);
  native_peak_ = 0;
  (void)native_reserved();
}

void CudaManager::begin_lap() {
  const c10::cuda::CUDAGuard guard(device_.index());
  laps_.begin_lap(used_by_plan());
}

void CudaManager::lap() {
  const c10::cuda::CUDAGuard guard(device_.index());
  laps_.lap(used_by_plan());
}

void CudaManager::restart_lap() {
  const c10::cuda::CUDAGuard guard(device_.index());
  laps_.restart_lap();
}

PilotDevice::Laps CudaManager::finish_laps() {
  const c10::cuda::CUDAGuard guard(device_.index());
  Laps laps = laps_.finish();
  // What this step does not tell, the one before has told, perhaps.
  link_ = measured_link(laps.copies, link_);
  return laps;
}

void CudaManager::drop_laps() { laps_.drop(); }

PilotDevice::Room CudaManager::room() {
  if (!arena_) throw Error("this device cannot map memory to addresses");
  if (!serves(main_stream_)) throw Error("so small a limit is left to PyTorch's allocator");
  const c10::cuda::CUDAGuard guard(device_.index());
  {
    // Everything comes back where the plan wants it; what cannot leave is left behind.
    EngineLock lock = engine_.lock();
    (void)engine_.reclaim(lock, INT64_MAX);
  }
  if (!capturing()) {  // both wait for the device
    BridgeAllocator::instance().native()->emptyCache({0, 0});
    arena_->move_window();
  }
  update_capacity();
  return {.arena = planned_room(), .page = arena_->page(), .addresses = true};
}

Bytes CudaManager::still_room(Bytes room) { return std::min(room, planned_room()); }

std::int64_t CudaManager::misplaced() const { return misplaced_.load(); }

bool CudaManager::at_home(const Block& base) {
  const auto& block = static_cast<const CudaBlock&>(base);
  const Bytes home = pilot_.home_of(block);
  // What PyTorch's own allocator has made is nowhere in the arena.
  if (home == kNoAddress || block.place == nullptr || !arena_->owns(block.place)) return true;
  return home < kScattered ? arena_->lies_at(block.place, home)
                           : arena_->lies_on(block.place, pilot_.pages_of(home));
}

LinkModel CudaManager::link() { return link_; }

void CudaManager::show(Stage stage, bool begins) noexcept {
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

void CudaManager::say(const std::string& line) { torch::say(device_, line); }

}  // namespace lms::torch
