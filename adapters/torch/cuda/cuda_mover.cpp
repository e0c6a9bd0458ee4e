#include "adapters/torch/cuda/cuda_mover.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "adapters/torch/cuda/cuda_manager.h"
#include "adapters/torch/cuda/on_device.h"
#include "adapters/torch/registry.h"
#include "adapters/torch/replay/lineages.h"
#include "adapters/torch/thread_state.h"
#include "cuda/device.h"
#include "cuda/profiler.h"

namespace lms::torch {

using cuda::Event;

CudaMover::CudaMover(CudaManager& manager, Engine& engine, CudaMemory& memory, c10::Device device)
    : manager_(manager), engine_(engine), memory_(memory), device_(device) {}

void CudaMover::start(Bytes limit) {
  const auto index = device_.index();
  if (!out_) out_.emplace(index, /*out=*/true);
  if (!in_) in_.emplace(index, /*out=*/false);
  // Enough of them that one can be emptied into the others; few, as each takes a call to pin it.
  const Bytes step = std::clamp(limit / 32, 16 * kMiB, 1 * kGiB);
  host_.emplace(
      HostArena::Options{.limit = limit, .step = step, .numa_node = cuda::numa_node(index)},
      std::make_shared<cuda::Pinning>());
}

void CudaMover::finish() {
  cuda::check(cudaStreamSynchronize(in_->stream()), "cudaStreamSynchronize");
  cuda::check(cudaStreamSynchronize(out_->stream()), "cudaStreamSynchronize");
}

void CudaMover::slow_down(double out, double in) {
  out_->slow_down(out);
  in_->slow_down(in);
}

void CudaMover::add_stats(std::map<std::string, std::int64_t>& stats) const {
  stats["host.bytes.allocated"] = stats["host.bytes.freed"] = host_allocated_.load();
  if (!host_) return;
  const auto host = host_->stats();
  stats["host.bytes.current"] = host.used;
  stats["host.bytes.peak"] = host.peak_used;
  stats["host.bytes.freed"] -= host.used;
  stats["host.bytes.reserved"] = host.reserved;
  stats["host.pending"] = host.pending;
  stats["host.segments"] = host.segments;
  stats["host.mapped"] = host.mapped;
  stats["host.moved"] = host_moved_.load();
}

void CudaMover::delete_absent(void* context) {
  auto* block = static_cast<CudaBlock*>(context);
  CudaManager& manager = block->manager();
  try {
    // A kernel that LMS cannot see may still be reading the copy over the bus.
    const int index = manager.device().index();
    const OnDevice guard(index);
    if (block->slot_used) block->slot_used->block(block->home);
    for (const cudaStream_t stream : block->recorded) {
      if (stream != block->home) Event::record(index, stream)->block(block->home);
    }
    block->slot_used = Event::record(index, block->home);
  } catch (const std::exception&) {
    // The runtime is being torn down: nothing runs any more.
  }
  const BlockUid uid = block->uid;
  if (block->ahead_of_use) {
    c10::DataPtr ahead;  // dies without the lock, and says of what is in the arena whose it was
    EngineLock lock = manager.engine().lock();
    ahead = std::exchange(block->ahead, {});
    block->ahead_of_use = false;
    block->slot.release(block->last_copy());
    if (block->place != nullptr) return;
    manager.engine().remove(lock, *block);
    lock.unlock();
    manager.pilot().released(uid);
    return;
  }
  if (manager.lineages().any()) {
    c10::DataPtr data{block->slot.data(), block, &delete_absent, manager.device()};
    if (manager.keep_for_lineages(*block, uid, std::move(data))) return;
  }
  {
    EngineLock lock = manager.engine().lock();
    manager.engine().remove(lock, *block);
  }
  manager.pilot().released(uid);
}

void CudaMover::gather_users(CudaBlock& block, const void* data) {
  const auto add = [&](cudaStream_t stream) {
    if (block.used_on(stream)) return;
    // Whoever is in the list has waited; a block that came ahead has been waited for by nobody.
    if (block.copied_in) memory_.wait_on(stream, block.copied_in);
    block.streams.push_back(stream);
  };
  add(c10::cuda::getCurrentCUDAStream(device_.index()).stream());
  add(memory_.owner_of(data));
  add(block.home);
  for (const cudaStream_t stream : block.recorded) add(stream);
}

void CudaMover::prepare_copy_out(CudaBlock& block, const void* data) {
  gather_users(block, data);
  for (cudaStream_t stream : block.streams) {
    out_->wait_for(Event::record(device_.index(), stream));
  }
}

bool CudaMover::holds(const c10::StorageImpl& storage, const CudaBlock& block) const {
  const c10::DataPtr& data = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  return memory_.on_device(data) && static_cast<Bytes>(storage.nbytes()) == block.size;
}

bool CudaMover::points_below(const c10::StorageImpl& storage, const CudaBlock& block) {
  const c10::DataPtr& data = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  return data.get_deleter() == &delete_absent && data.get_context() == &block;
}

void CudaMover::release_in_order(CudaBlock& block, const void* data) {
  const cudaStream_t owner = memory_.owner_of(data);
  // After the copies from and to it, and after what other streams still read.
  if (block.being_copied) {
    // The storage is about to point at that copy.
    gather_users(block, data);
    for (cudaStream_t stream : block.streams) memory_.wait_on(stream, block.being_copied);
  }
  if (block.copied_in && !block.used_on(owner)) memory_.wait_on(owner, block.copied_in);
  for (cudaStream_t stream : block.streams) {
    if (stream != owner) memory_.wait_on(owner, Event::record(device_.index(), stream));
  }
}

cuda::EventPtr CudaMover::copy_out(const CudaBlock& block, const HostSlot& to, const void* from) {
  return memory_.laps().copy(*out_, /*out=*/true, block.uid, to.data(), from, block.size);
}

cuda::EventPtr CudaMover::copy_in(const CudaBlock& block, void* to) {
  return memory_.laps().copy(*in_, /*out=*/false, block.uid, to, block.slot.data(), block.size);
}

void CudaMover::arrive(CudaBlock& block, c10::StorageImpl& storage) {
  if (!block.ahead_of_use) return;
  block.ahead_of_use = false;
  if (!block.recorded.empty())
    memory_.claim(block, block.ahead, memory_.owner_of(block.ahead.get()));
  c10::DataPtr absent = storage.set_data_ptr(std::exchange(block.ahead, {}));
  absent.release_context();  // the storage lives on; only its address has changed
}

void CudaMover::arrive_all(EngineLock& lock,
                           std::vector<c10::intrusive_ptr<c10::StorageImpl>>& held) {
  engine_.for_each(lock, [&](Block& base) {
    auto& block = static_cast<CudaBlock&>(base);
    if (!block.ahead_of_use) return;
    auto storage = block.storage.lock();
    if (!storage) return;
    arrive(block, *storage);
    block.slot.release(block.last_copy());
    held.push_back(std::move(storage));
  });
}

bool CudaMover::keeps_copies() const {
  const auto host = host_->stats();
  return host.used <= host.limit / 4 * 3;
}

HostSlot CudaMover::take_slot(Bytes bytes) {
  HostSlot slot = acquire(bytes);
  manager_.note_below(host_->stats().used);
  return slot;
}

std::optional<Bytes> CudaMover::page_out(Block& base, bool clean) {
  auto& block = static_cast<CudaBlock&>(base);
  auto storage = block.storage.lock();
  if (storage && block.ahead_of_use) {
    arrive(block, *storage);
    clean = true;  // nobody has used it, and the copy is there
  }
  if (!storage || !holds(*storage, block)) return std::nullopt;
  void* const data = storage->_mutable_data_ptr_no_checks().get();
  const cuda::ScopedRange range(clean ? "evict, clean" : "evict", block.size);
  mark_pressed();
  manager_.pilot().wake();
  const OnDevice guard(device_.index());
  Bytes copied = 0;
  memory_.inherit_users(block, data);
  if (clean) {
    release_in_order(block, data);
  } else {
    HostSlot slot = acquire(block.size);
    prepare_copy_out(block, data);
    block.copied_out = block.slot_used = copy_out(block, slot, data);
    for (cudaStream_t stream : block.streams) memory_.wait_on(stream, block.copied_out);
    block.slot = std::move(slot);
    copied = block.size;
    manager_.note_below(host_->stats().used);
  }
  block.copied_in.reset();
  block.being_copied.reset();
  block.streams.clear();
  if (block.place != nullptr) memory_.arena()->disown(std::exchange(block.place, nullptr));
  storage->set_data_ptr_noswap({block.slot.data(), &block, &delete_absent, device_});
  return copied;
}

std::optional<Bytes> CudaMover::copy_below(Block& base) {
  auto& block = static_cast<CudaBlock&>(base);
  auto storage = block.storage.lock();
  // Memory of PyTorch's allocator would die without a word, and serve others during the copy.
  if (!storage || !holds(*storage, block) || block.place == nullptr ||
      (memory_.in_pool() && manager_.capturing())) {
    return std::nullopt;
  }
  const cuda::ScopedRange range("copy out", block.size);
  const OnDevice guard(device_.index());
  HostSlot slot = acquire(block.size);
  const void* data = storage->_mutable_data_ptr_no_checks().get();
  memory_.inherit_users(block, data);
  prepare_copy_out(block, data);
  block.copied_out = block.slot_used = copy_out(block, slot, data);
  block.being_copied = block.copied_out;
  if (block.slot) block.slot.release(block.last_copy());
  block.slot = std::move(slot);
  manager_.note_below(host_->stats().used);
  return block.size;
}

c10::DataPtr CudaMover::take_place(CudaBlock& block, cudaStream_t owner, bool in_arena,
                                   bool ahead) {
  c10::DataPtr fresh;
  if (in_arena) {
    const Bytes home = manager_.pilot().home_of(block);
    const auto take = [&] {
      return memory_.take_in_arena(block.size, block.uid, home, /*evict=*/!ahead);
    };
    fresh = ahead ? take() : memory_.take_or_wait<c10::DataPtr>(take);
  } else {
    // PyTorch's allocator is not told whom to wait for when it dies: the program's own order holds.
    const c10::cuda::CUDAStreamGuard on_home(memory_.stream_of(owner));
    const auto bytes = static_cast<std::size_t>(block.size);
    fresh = ahead ? memory_.take_if_free(bytes)
                  : c10::cuda::CUDACachingAllocator::get()->allocate(bytes);
  }
  if (!fresh)
    throw OutOfMemory("no place on the device for a block of " + format_bytes(block.size));
  block.place = in_arena ? fresh.get() : nullptr;
  if (in_arena) memory_.arena()->set_block(block.place, &block);
  return fresh;
}

std::optional<Bytes> CudaMover::page_in(Block& base, bool ahead) {
  auto& block = static_cast<CudaBlock&>(base);
  auto storage = block.storage.lock();
  if (!storage) return std::nullopt;
  if (!points_below(*storage, block)) return std::nullopt;
  if (manager_.capturing()) {
    throw Error("LMS: a graph capture uses a tensor of " + format_bytes(block.size) +
                " that is not on the device and does not fit there; raise the limit, or free "
                "memory before the capture");
  }
  const cuda::ScopedRange range(ahead ? "page in, ahead" : "page in", block.size);
  int& arrivals = thread_state().arrivals;
  const std::unique_ptr<int, void (*)(int*)> arriving(&++arrivals, [](int* count) { --*count; });
  const int index = device_.index();
  const OnDevice guard(device_.index());
  const cudaStream_t current = c10::cuda::getCurrentCUDAStream(device_.index()).stream();
  // What lineages need must not die unheard, as PyTorch's memory does.
  const bool in_arena = memory_.serves(current) || memory_.serves(block.home) ||
                        (block.origin && memory_.serves(memory_.main_stream()));
  const cudaStream_t owner = in_arena ? memory_.main_stream() : block.home;
  c10::DataPtr fresh = take_place(block, owner, in_arena, ahead);
  memory_.claim(block, fresh, owner);
  in_->wait_for(Event::record(index, current));
  if (owner != current) in_->wait_for(Event::record(index, owner));
  if (block.home != current && block.home != owner) {
    in_->wait_for(Event::record(index, block.home));
  }
  in_->wait_for(block.copied_out);
  // Kernels may be reading it where it lies: the slot serves others only after them.
  if (block.slot_used != block.copied_out) in_->wait_for(block.slot_used);
  block.copied_in = block.slot_used = copy_in(block, fresh.get());
  block.streams.clear();
  const auto wait_here = [&](cudaStream_t stream) {
    memory_.wait_on(stream, block.copied_in);
    block.streams.push_back(stream);
  };
  if (!ahead) wait_here(current);
  // It may die before its owner has used it.
  if (!block.used_on(owner)) {
    if (in_arena) {
      memory_.arena()->set_arriving(block.place, block.copied_in);
    } else {
      wait_here(owner);
    }
  }

  block.ahead = std::move(fresh);
  block.ahead_of_use = true;
  block.has_copy = false;
  if (ahead) return block.size;  // who uses it, and waits for the copy, sees it
  arrive(block, *storage);
  block.has_copy = keeps_copies();
  if (!block.has_copy) block.slot.release(block.last_copy());
  return block.size;
}

bool CudaMover::relocate(Block& base) {
  auto& block = static_cast<CudaBlock&>(base);
  auto storage = block.storage.lock();
  if (!storage || !holds(*storage, block) || block.place == nullptr || manager_.capturing())
    return false;
  const int index = device_.index();
  const OnDevice guard(device_.index());
  const cudaStream_t main = c10::cuda::getCurrentCUDAStream(index).stream();
  const Bytes home = manager_.pilot().home_of(block);
  if (home == kNoAddress || !memory_.serves(main)) return false;
  void* const place = memory_.take_wanted(block.size, block.uid, home);
  if (place == nullptr) return false;
  c10::DataPtr fresh{place, place, &CudaMemory::delete_in_arena, device_};
  // The copy comes after whoever has written the bytes, and the next user of their old place after
  // whoever still reads them.
  if (block.being_copied) memory_.wait_on(main, block.being_copied);
  if (block.copied_in && !block.used_on(main)) memory_.wait_on(main, block.copied_in);
  memory_.inherit_users(block, block.place);
  for (const auto& streams : {block.streams, block.recorded}) {
    for (cudaStream_t stream : streams) {
      if (stream != main) memory_.wait_on(main, Event::record(index, stream));
    }
  }
  if (block.home != main) memory_.wait_on(main, Event::record(index, block.home));
  cuda::check(cudaMemcpyAsync(place, block.place, static_cast<std::size_t>(block.size),
                              cudaMemcpyDeviceToDevice, main),
              "cudaMemcpyAsync");
  block.being_copied.reset();
  block.copied_in = Event::record(index, main);
  block.streams = {main};
  memory_.arena()->disown(std::exchange(block.place, place));
  memory_.arena()->set_block(place, &block);
  memory_.claim(block, fresh, main);
  (void)storage->set_data_ptr(std::move(fresh));  // the old place is free
  return true;
}

void CudaMover::drop_copy(Block& base) noexcept {
  auto& block = static_cast<CudaBlock&>(base);
  block.slot.release(block.last_copy());
}

bool CudaMover::copy_matches(Block& base) {
  auto& block = static_cast<CudaBlock&>(base);
  auto storage = block.storage.lock();
  if (!storage || !block.slot) return true;
  if (!holds(*storage, block)) return true;
  const c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
  const OnDevice guard(device_.index());
  if (block.being_copied) block.being_copied->wait();
  HostSlot slot = host_->acquire(block.size);
  for (cudaStream_t stream : block.streams) {
    out_->wait_for(Event::record(device_.index(), stream));
  }
  out_->copy(slot.data(), data.get(), block.size)->wait();
  return std::memcmp(slot.data(), block.slot.data(), static_cast<std::size_t>(block.size)) == 0;
}

}  // namespace lms::torch
