// Parts run on the main stream, later than the program asked for: other streams wait for that.

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "adapters/torch/deferred/deferred.h"

namespace lms::torch {

void Deferred::note_late(const Part& part) {
  if (manager_.device().is_cpu()) return;
  ++epoch_;
  any_late_ = true;
  if (!several_streams_) return;
  for (const StorageUse& use : part.uses) {
    late_.insert_or_assign(
        use.storage, Late{c10::weak_intrusive_ptr<c10::StorageImpl>(
                              c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(use.storage)),
                          epoch_});
  }
  if (late_.size() > 2 * late_kept_ + 64) forget_late();
}

void Deferred::forget_late() {
  std::erase_if(late_, [](const auto& entry) { return entry.second.storage.expired(); });
  late_kept_ = late_.size();
}

void Deferred::finish_late() {
  if (!any_late_.load(std::memory_order_relaxed)) return;
  manager_.in_order([&] {
    const c10::impl::VirtualGuardImpl guard(manager_.device().type());
    guard.getStream(manager_.device()).synchronize();
  });
  const std::lock_guard lock(mutex_);
  any_late_ = several_streams_ = false;
  late_.clear();
}

void Deferred::order_after_late(std::span<const StorageUse> uses) {
  if (manager_.is_in_order()) return;
  {
    const c10::impl::VirtualGuardImpl guard(manager_.device().type());
    const c10::StreamId stream = guard.getStream(manager_.device()).id();
    const std::lock_guard lock(mutex_);
    std::uint64_t& seen = seen_[stream];
    if (!std::exchange(several_streams_, true)) unnoted_ = epoch_;
    const auto is_behind = [&](const StorageUse& use) {
      const auto late = late_.find(use.storage);
      return late != late_.end() && late->second.epoch > seen;
    };
    if (seen >= unnoted_ && std::ranges::none_of(uses, is_behind)) return;
    seen = epoch_;
  }
  manager_.in_order([] {});
}

}  // namespace lms::torch
