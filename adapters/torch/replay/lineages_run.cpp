// Dropped bytes, and how they are computed again.

#include <algorithm>
#include <utility>

#include "adapters/torch/device_manager.h"
#include "adapters/torch/errors.h"
#include "adapters/torch/fused/rule.h"
#include "adapters/torch/replay/lineages.h"
#include "adapters/torch/replay/lineages_order.h"
#include "adapters/torch/replay/replay.h"
#include "adapters/torch/thread_state.h"
#include "base/error.h"

namespace lms::torch {
namespace {

const void* address_in(c10::StorageImpl& storage, const TensorSpec& spec) {
  const auto* data = static_cast<const char*>(storage._mutable_data_ptr_no_checks().get());
  return data + spec.offset * static_cast<Bytes>(spec.type.itemsize());
}

}  // namespace

bool Lineages::drop(const StorageBlock& block, Bytes most) {
  Trash trash;
  const Guard guard(mutex_);
  if (!block.origin || !known(*block.origin) || block.origin->wanted > 0) return false;
  Origin& origin = *block.origin;
  if (most < Mover::kUnlimited) {
    ++visit_;
    if (others_wait_for(origin, trash) || bytes_at_once(origin) > most) return false;
  }
  return origin.dropped = true;
}

Bytes Lineages::bytes_at_once(const Origin& origin) {
  Bytes made = 0;
  Bytes read = 0;  // by any one call: they run one after the other
  std::vector<const Origin*> away{&origin};
  while (!away.empty()) {
    const Origin& one = *away.back();
    away.pop_back();
    made += one.bytes;
    for (const auto& call : one.calls) {
      std::vector<const Origin*> here;
      for (const TensorSpec& spec : call->tensors) {
        const Origin* const input = spec.origin.get();
        if (input == nullptr || input == &origin) continue;
        if (input->ghost || (!input->storage.expired() && !input->dropped)) {
          if (std::ranges::find(here, input) == here.end()) here.push_back(input);
        } else if (std::exchange(spec.origin->visit, visit_) != visit_) {
          away.push_back(input);
        }
      }
      Bytes inputs = 0;
      for (const Origin* const input : here) inputs += input->bytes;
      read = std::max(read, inputs);
    }
  }
  return made + read;
}

bool Lineages::others_wait_for(const Origin& origin, Trash& trash) {
  return std::ranges::any_of(origin.dependents, [&](const auto& weak) {
    const auto dependent = weak.lock();
    if (!dependent) return false;
    trash.origins.push_back(dependent);
    return dependent->dropped || (dependent->storage.expired() && !dependent->ghost);
  });
}

void Lineages::pin(c10::StorageImpl& storage, bool writes, Pins& pins) {
  const StorageUse use{&storage, writes};
  pins.add({&use, 1});
}

Lineages::Storage Lineages::bytes_of(const std::shared_ptr<Origin>& origin, std::uint32_t version,
                                     const Order& order, Pins& pins) {
  Storage storage = order.find(*origin);
  {
    const Guard guard(mutex_);
    if (origin->version != version) {
      throw Error("LMS: internal error: what a lineage reads has been written since");
    }
    if (!storage) storage = origin->storage.lock();
    if (!storage) storage = origin->ghost;
  }
  // Not one of the order's: a kernel that would have done without it could not run.
  if (!storage) return run(origin, {}, pins);
  pin(*storage, /*writes=*/false, pins);
  return storage;
}

Lineages::Storage Lineages::source_of(const TensorSpec& spec, const Order& order, Pins& pins) {
  if (spec.source == TensorSpec::Source::kOrigin) {
    return bytes_of(spec.origin, spec.version, order, pins);
  }
  const Guard guard(mutex_);
  return share(spec.small->storage);
}

std::size_t Lineages::run_fused(std::span<const std::shared_ptr<const Call>> calls, Bytes bytes,
                                const Order& order, Storage& self) {
  const auto run = [&] {
    const Guard guard(mutex_);
    return find_fused(calls);
  }();
  if (!run || run->bytes != bytes || (run->prepare && !run->prepare())) return 0;
  Pins inputs;
  std::vector<Storage> held;  // until the kernel has been queued
  std::vector<const void*> addresses;
  Storage made;
  try {
    for (const TensorSpec* spec : run->reads) {
      if (spec != nullptr) held.push_back(source_of(*spec, order, inputs));
      addresses.push_back(spec != nullptr ? address_in(*held.back(), *spec) : nullptr);
    }
    made = take_memory(manager_.device(), bytes);
  } catch (const Shortage&) {
    return 0;  // one call after the other does not need all of them at once
  } catch (const c10::OutOfMemoryError&) {
    return 0;
  }
  if (!run->launch(addresses, made->_mutable_data_ptr_no_checks().get())) return 0;
  ++manager_.chains_replayed;
  self = std::move(made);
  return run->calls;
}

std::shared_ptr<const Call> Lineages::maker_of_missing(const TensorSpec& spec) const {
  if (spec.source != TensorSpec::Source::kOrigin) return nullptr;
  const Origin& origin = *spec.origin;
  const bool missing = origin.storage.expired() && !origin.ghost && known(origin);
  if (!missing || origin.version != spec.version || origin.calls.size() != 1 ||
      origin.result != 0) {
    return nullptr;
  }
  return origin.calls.front();
}

std::optional<FusedRun> Lineages::find_fused(
    std::span<const std::shared_ptr<const Call>> calls) const {
  FusedRule* const rule = manager_.fused_rule(*calls.front()->info);
  if (rule == nullptr) return std::nullopt;
  return rule->find(calls, [&](const TensorSpec& spec) { return maker_of_missing(spec); });
}

std::vector<const TensorSpec*> Lineages::specs_read(const Origin& origin) const {
  std::vector<const TensorSpec*> specs;
  std::size_t done = 0;
  if (!origin.calls.empty() && origin.result == 0) {
    // What is missing is not made for a kernel that does without it.
    const auto run = find_fused(origin.calls);
    if (run && run->maker && run->bytes == origin.bytes) {
      specs = run->reads;
      done = run->calls;
    }
  }
  for (const auto& call : std::span(origin.calls).subspan(done)) {
    for (const TensorSpec& spec : call->tensors) specs.push_back(&spec);
  }
  std::erase_if(specs, [](const TensorSpec* spec) { return spec == nullptr || !spec->origin; });
  return specs;
}

Lineages::Storage Lineages::run(const std::shared_ptr<Origin>& origin, std::vector<Bytes> addresses,
                                Pins& pins) {
  Order order(*this, origin);
  for (const Step& step : order.dropped()) {
    const ReplayScope scope({});
    Pins once;
    pin(*step.dropped, /*writes=*/false, once);
    order.is_there(step);
  }
  for (const Step& step : order.ghosts()) {
    const ReplayScope scope({});
    Pins once;
    order.put(step, run_calls(step, order, once));
  }
  const ReplayScope scope(std::move(addresses));
  return run_calls(order.goal(), order, pins);
}

Lineages::Storage Lineages::run_calls(const Step& step, const Order& order, Pins& pins) {
  const Bytes bytes = step.origin->bytes;
  if (step.calls.empty()) throw Error("LMS: internal error: dropped bytes have no lineage");
  Storage self;
  if (step.result == Origin::kNoResult) self = take_memory(manager_.device(), bytes);
  std::size_t done = 0;
  if (step.result == 0) done = run_fused(step.calls, bytes, order, self);
  if (done > 0) pin(*self, /*writes=*/false, pins);
  for (const auto& call : std::span(step.calls).subspan(done)) {
    Pins inputs;
    std::vector<Storage> storages;
    for (const TensorSpec& spec : call->tensors) {
      storages.push_back(spec.source == TensorSpec::Source::kSelf ? self
                                                                  : source_of(spec, order, inputs));
    }
    std::vector<Storage> saved;
    for (const TensorSpec& spec : call->saved) saved.push_back(source_of(spec, order, inputs));
    const NumericsScope numerics(call->numerics);
    // The first call makes the storage, the others write it.
    const std::size_t wanted = self ? Origin::kNoResult : step.result;
    Storage made = run_call(*call, storages, saved, wanted, manager_.device());
    if (!self) self = std::move(made);
    pin(*self, /*writes=*/false, pins);
    // What the operators within it have pinned: the next call finds as much room as it had when it
    // ran by itself.
    thread_state().operator_pins.release();
  }
  if (static_cast<Bytes>(self->nbytes()) != bytes) {
    throw Error("LMS: internal error: computing a tensor again gave another size");
  }
  return self;
}

Lineages::Made Lineages::remake(const StorageBlock& block, std::vector<Bytes> addresses) {
  std::shared_ptr<Origin> origin;
  {
    const Guard guard(mutex_);
    origin = block.origin;
  }
  Made made;
  made.storage = run(origin, std::move(addresses), made.pins);
  return made;
}

void Lineages::made(const StorageBlock& block) {
  const Guard guard(mutex_);
  block.origin->dropped = false;
}

// Ghosts

bool Lineages::keep_bytes(const StorageBlock& block, Trash& trash) {
  std::vector<Dropped> dropped;
  const Guard guard(mutex_);
  const auto& origin = block.origin;
  if (!origin) return false;
  origin->storage.reset();
  // What is dropped has no bytes to keep, however old its lineage is.
  if (origin->dropped || known(*origin)) {
    origin->dropped = false;
    if (ghosts_.size() >= prune_at_) prune();
    ghosts_[origin->uid] = origin;
    kept_.notify_all();
    return false;
  }
  ++visit_;
  find_dropped(*origin, /*last=*/false, dropped, trash);
  if (!dropped.empty()) return true;
  forget(*origin, trash);
  return false;
}

std::shared_ptr<Origin> Lineages::keep(StorageBlock& block, Storage storage) {
  const Guard guard(mutex_);
  block.origin->ghost = std::move(storage);
  kept_.notify_all();
  // The storage lives as long as the origin: the block must not keep that alive.
  return std::exchange(block.origin, nullptr);
}

void Lineages::prune() {
  std::erase_if(watched_, [](const auto& entry) { return entry.second.expired(); });
  std::erase_if(ghosts_, [](const auto& entry) { return entry.second.expired(); });
  prune_at_ = 2 * ghosts_.size() + kPrune;
}

void Lineages::remake_ghost(BlockUid uid, std::vector<Bytes> addresses) {
  std::shared_ptr<Origin> origin;
  {
    const Guard guard(mutex_);
    const auto found = ghosts_.find(uid);
    if (found == ghosts_.end()) return;
    origin = found->second.lock();
    if (!origin || origin->ghost || !known(*origin)) return;
  }
  Pins pins;
  Storage storage = run(origin, std::move(addresses), pins);
  const Guard guard(mutex_);
  if (!origin->ghost) origin->ghost.swap(storage);
}

void Lineages::drop_ghost(BlockUid uid) {
  Storage gone;
  std::shared_ptr<Origin> origin;
  const Guard guard(mutex_);
  const auto found = ghosts_.find(uid);
  if (found == ghosts_.end()) return;
  origin = found->second.lock();
  if (origin && !origin->calls.empty()) gone = std::exchange(origin->ghost, {});
}

void Lineages::drop_ghosts() {
  std::vector<Storage> gone;
  std::vector<std::shared_ptr<Origin>> held;
  const Guard guard(mutex_);
  for (auto& [uid, weak] : ghosts_) {
    auto origin = weak.lock();
    if (!origin) continue;
    if (!origin->calls.empty()) gone.push_back(std::exchange(origin->ghost, {}));
    held.push_back(std::move(origin));
  }
  prune();
}

}  // namespace lms::torch
