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
  auto made = std::make_unique<CpuBlock>(blocks_, std::move(region), size);
  void* const data = made->region.data();
  made->uid = Pilot::new_uid();
  CpuBlock* block = nullptr;
  {
    EngineLock lock = engine.lock(may_wait_as());
    block = static_cast<CpuBlock*>(&engine.add_lent(lock, std::move(made)));
    blocks_.emplace(data, block);
  }
  manager_.note_below(mover_.store->stats().used);
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), c10::SymInt(bytes),
      c10::DataPtr{data, data, memory_.deleter, c10::kCPU}, memory_.allocator,
      /*resizable=*/true);
  return {std::move(storage), block};
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
