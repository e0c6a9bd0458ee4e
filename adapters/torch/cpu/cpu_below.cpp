#include "adapters/torch/cpu/cpu_below.h"

#include <cstring>
#include <utility>

#include "adapters/torch/thread_state.h"

namespace lms::torch {
namespace {

char* at(Block& block, Bytes offset) {
  return static_cast<char*>(static_cast<CpuBlock&>(block).region.data()) + offset;
}

}  // namespace

bool CpuBelow::writable(const Block& block) {
  return static_cast<const CpuBlock&>(block).region.usable_below(*mover_.store);
}

Below::Made CpuBelow::make(Bytes bytes) {
  const Bytes size = round_up(bytes, FileStore::kAlignment);
  Engine& engine = manager_.engine();
  PagedRegion region =
      take_below(engine, size, [&] { return PagedRegion::make_below(*mover_.store, bytes); });
  void* const data = region.data();
  CpuBlock* block = nullptr;
  {
    EngineLock lock = engine.lock(may_wait_as());
    block = add(lock, std::move(region), size);
  }
  manager_.note_below(mover_.store->stats().used);
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), c10::SymInt(bytes),
      c10::DataPtr{data, data, memory_.deleter, c10::kCPU}, memory_.allocator,
      /*resizable=*/true);
  return {std::move(storage), block};
}

CpuBlock* CpuBelow::add(EngineLock& lock, PagedRegion region, Bytes size) {
  auto made = std::make_unique<CpuBlock>(blocks_, std::move(region), size);
  const void* const data = made->region.data();
  made->uid = Pilot::new_uid();
  auto* const block = static_cast<CpuBlock*>(&manager_.engine().add_lent(lock, std::move(made)));
  blocks_.emplace(data, block);
  return block;
}

c10::DataPtr CpuBelow::allocate(Bytes bytes) {
  PagedRegion region = PagedRegion::make_below(*mover_.store, bytes);
  void* const data = region.data();
  manager_.note_below(mover_.store->stats().used);
  EngineLock lock = manager_.engine().lock();
  allocated_.emplace(data, std::move(region));
  return {data, data, memory_.deleter, c10::kCPU};
}

PagedRegion CpuBelow::take(EngineLock& /*lock*/, const void* data) {
  const auto found = allocated_.find(data);
  if (found == allocated_.end()) return {};
  PagedRegion region = std::move(found->second);
  allocated_.erase(found);
  return region;
}

Block* CpuBelow::adopt(c10::StorageImpl& storage) {
  EngineLock lock = manager_.engine().lock(may_wait_as());
  PagedRegion region = take(lock, storage._mutable_data_ptr_no_checks().get());
  if (!region) return nullptr;
  const Bytes size = round_up(region.size(), FileStore::kAlignment);
  return add(lock, std::move(region), size);
}

void CpuBelow::isolate_in_child() {
  for (auto& [data, region] : allocated_) region.isolate_in_child();
}

Below::Copy CpuBelow::read(Block& block, Bytes offset, void* to, Bytes bytes) {
  std::memcpy(to, at(block, offset), static_cast<std::size_t>(bytes));
  return {};
}

Below::Copy CpuBelow::write(Block& block, Bytes offset, const void* from, Bytes bytes) {
  std::memcpy(at(block, offset), from, static_cast<std::size_t>(bytes));
  return {};
}

void CpuBelow::end(Block& block, bool /*written*/) {
  static_cast<CpuBlock&>(block).region.drop_cache(*mover_.store);
}

}  // namespace lms::torch
