#include "adapters/torch/replay/lineages.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <utility>

#include "adapters/torch/device_manager.h"
#include "adapters/torch/operators/autograd_nodes.h"
#include "adapters/torch/replay/replay.h"
#include "base/error.h"

namespace lms::torch {
namespace {

bool same_bytes(const c10::Storage& one, const c10::Storage& other) {
  return one.nbytes() == other.nbytes() &&
         (one.nbytes() == 0 ||
          std::memcmp(one.data_ptr().get(), other.data_ptr().get(), one.nbytes()) == 0);
}

}  // namespace

Origin::~Origin() {
  using Calls = std::vector<std::shared_ptr<const Call>>;
  // Of the origin whose end is the cause of the others'.
  static thread_local Calls* ending = nullptr;
  Calls own;
  Calls& all = ending != nullptr ? *ending : own;
  std::ranges::move(calls, std::back_inserter(all));
  std::ranges::move(calls_before, std::back_inserter(all));
  if (ending != nullptr) return;
  ending = &own;
  while (!own.empty()) {
    const auto last = std::move(own.back());
    own.pop_back();
  }
  ending = nullptr;
}

// Who is who

std::shared_ptr<Origin> Lineages::origin_of(StorageBlock& block, c10::StorageImpl& storage) {
  const Guard guard(mutex_);
  if (!block.origin) {
    block.origin = std::make_shared<Origin>(
        c10::weak_intrusive_ptr(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage)));
    block.origin->uid = block.uid;
    block.origin->bytes = static_cast<Bytes>(storage.nbytes());
  }
  return block.origin;
}

void Lineages::hand_over(StorageBlock& block, c10::StorageImpl& storage) {
  const Guard guard(mutex_);
  if (!block.origin) return;
  block.origin->storage =
      c10::weak_intrusive_ptr(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage));
}

std::shared_ptr<Origin> Lineages::find_origin(c10::StorageImpl& storage) {
  EngineLock lock = manager_.engine().lock();
  const auto* block = static_cast<StorageBlock*>(manager_.find(lock, storage));
  if (block == nullptr) return nullptr;
  const Guard guard(mutex_);
  return block->origin;
}

std::shared_ptr<SmallSource> Lineages::small_source(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  c10::StorageImpl* const key = storage.unsafeGetStorageImpl();
  bool copied = small_exposed_ || !manager_.operators_write(storage.data_ptr()) ||
                (in_backward_pass() && !tensor.requires_grad());
  if (!copied) {
    const Guard guard(mutex_);
    copied = exposed_.contains(key);
    if (!copied) {
      auto& known = watched_[key];
      auto source = known.lock();
      if (!source) known = source = std::make_shared<SmallSource>(storage);
      return source;
    }
  }
  const bool comparable = storage.device_type() == c10::DeviceType::CPU;
  std::shared_ptr<SmallSource> source;
  if (comparable) {
    const Guard guard(mutex_);
    const auto found = watched_.find(key);
    if (found != watched_.end()) source = found->second.lock();
  }
  // Whoever has written, and whose ever they were: bytes that are the same.
  if (source && same_bytes(source->storage, storage)) return source;
  {
    const ReplayScope scope({});
    source = std::make_shared<SmallSource>(copy_of(storage));
  }
  if (comparable) {
    const Guard guard(mutex_);
    watched_[key] = source;
  }
  return source;
}

void Lineages::expose(c10::StorageImpl& storage) {
  // What a block stands for is kept, and its lineages are over.
  if (static_cast<Bytes>(storage.nbytes()) >= manager_.min_block()) return;
  auto shared = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage);
  const Guard guard(mutex_);
  if (exposed_.size() >= prune_exposed_at_) {
    std::erase_if(exposed_, [](const auto& entry) { return entry.second.expired(); });
    prune_exposed_at_ = 2 * exposed_.size() + kPrune;
  }
  exposed_.insert_or_assign(&storage, c10::weak_intrusive_ptr<c10::StorageImpl>(shared));
}

bool Lineages::known(const Origin& origin) const {
  return !origin.calls.empty() && origin.calls.front()->epoch == epoch_;
}

// Before bytes change

void Lineages::find_dropped(const Origin& origin, bool last, std::vector<Dropped>& found,
                            Trash& trash) {
  std::vector<const Origin*> sources{&origin};
  while (!sources.empty()) {
    const Origin& source = *sources.back();
    sources.pop_back();
    for (const auto& weak : source.dependents) {
      const auto dependent = weak.lock();
      if (!dependent) continue;
      trash.origins.push_back(dependent);
      if (std::exchange(dependent->visit, visit_) == visit_) continue;
      const Storage storage = dependent->storage.lock();
      if (storage) trash.storages.push_back(storage);
      if (storage && dependent->dropped) {
        found.push_back({dependent, storage});
      } else if (!storage && !dependent->ghost) {
        sources.push_back(dependent.get());
      } else if (last) {
        forget_lineage(*dependent, trash);
      }
    }
  }
}

void Lineages::forget_lineage(Origin& origin, Trash& trash) {
  trash.lineages.push_back(std::exchange(origin.calls, {}));
  trash.lineages.push_back(std::exchange(origin.calls_before, {}));
  origin.depth = 0;
}

void Lineages::forget(Origin& origin, Trash& trash) {
  std::vector<Origin*> sources{&origin};
  while (!sources.empty()) {
    Origin& source = *sources.back();
    sources.pop_back();
    for (const auto& weak : std::exchange(source.dependents, {})) {
      const auto dependent = weak.lock();
      if (!dependent) continue;
      trash.origins.push_back(dependent);
      forget_lineage(*dependent, trash);
      const bool here = !dependent->storage.expired() || dependent->ghost;
      if (!here) sources.push_back(dependent.get());
    }
  }
}

bool Lineages::must_hear_of(EngineLock& /*lock*/, std::span<const StorageWritten> written) {
  const Guard guard(mutex_);
  return std::ranges::any_of(written, [&](const StorageWritten& one) {
    const auto* const block = static_cast<const StorageBlock*>(one.block);
    if (block != nullptr && block->origin) return true;
    return !watched_.empty() && one.storage->device_type() != c10::DeviceType::CPU &&
           watched_.contains(one.storage);
  });
}

void Lineages::before_write(std::span<c10::StorageImpl* const> storages) {
  for (c10::StorageImpl* storage : storages) {
    if (const auto origin = find_origin(*storage)) {
      before_write_of(origin);
    } else {
      save_small(*storage);
    }
  }
}

void Lineages::before_write_of(const std::shared_ptr<Origin>& origin) {
  // What is there once is not dropped again, so that each round leaves less to be done.
  Pins self;
  for (;;) {
    std::vector<Dropped> dropped;
    Trash trash;
    {
      const Guard guard(mutex_);
      ++visit_;
      find_dropped(*origin, /*last=*/true, dropped, trash);
      if (origin->dropped) dropped.push_back({origin, origin->storage.lock()});
      if (dropped.empty()) {
        forget(*origin, trash);
        ++origin->version;
        trash.lineages.push_back(std::exchange(origin->calls_before, std::move(origin->calls)));
        origin->calls.clear();
        return;
      }
    }
    const ReplayScope scope({});  // the operator does not use them
    for (const Dropped& one : dropped) {
      const bool is_self = one.origin == origin;
      Pins pins;
      if (one.storage) pin(*one.storage, /*writes=*/false, is_self ? self : pins);
      const Guard guard(mutex_);
      one.origin->dropped = false;
      if (!is_self) forget_lineage(*one.origin, trash);
    }
  }
}

void Lineages::before_free(c10::StorageImpl& storage) {
  {
    EngineLock lock = manager_.engine().lock();
    const Block* block = manager_.find(lock, storage);
    if (block != nullptr && manager_.announces_death(*block)) return;  // see keep_bytes()
  }
  c10::StorageImpl* const one = &storage;
  before_write({&one, 1});
}

void Lineages::never_drop(c10::StorageImpl& storage, Pins& pins) {
  const auto origin = find_origin(storage);
  if (!origin) return;
  Trash trash;
  for (;;) {
    {
      const Guard guard(mutex_);
      if (!origin->dropped) {
        trash.lineages.push_back(std::exchange(origin->calls, {}));
        origin->depth = 0;
        return;
      }
    }
    pin(storage, /*writes=*/false, pins);
  }
}

void Lineages::save_small(c10::StorageImpl& storage) {
  if (storage.device_type() == c10::DeviceType::CPU) return;  // these are copies
  std::shared_ptr<SmallSource> source;
  {
    const Guard guard(mutex_);
    const auto found = watched_.find(&storage);
    if (found == watched_.end()) return;
    source = found->second.lock();
    watched_.erase(found);
  }
  if (source) keep_contents(*source);
}

void Lineages::keep_contents(SmallSource& source) {
  c10::Storage copy;
  manager_.in_order([&] {
    const ReplayScope scope({});
    copy = copy_of(source.storage);
  });
  const Guard guard(mutex_);
  std::swap(source.storage, copy);
}

void Lineages::expose_small() {
  small_exposed_ = true;
  std::vector<std::shared_ptr<SmallSource>> sources;
  {
    const Guard guard(mutex_);
    for (const auto& [storage, source] : watched_) sources.push_back(source.lock());
    watched_.clear();
  }
  for (const auto& source : sources) {
    if (source) keep_contents(*source);
  }
}

}  // namespace lms::torch
