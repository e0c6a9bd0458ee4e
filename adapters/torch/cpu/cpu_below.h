#pragma once

#include <c10/core/Allocator.h>

#include "adapters/torch/cpu/cpu_block.h"
#include "adapters/torch/cpu/cpu_mover.h"
#include "adapters/torch/slices/below.h"

namespace lms::torch {

/// Blocks of the CPU in the file, where slices read and write them through their mappings.
class CpuBelow final : public Below {
 public:
  /// How tensors of the CPU come and go.
  struct Memory {
    c10::DeleterFnPtr deleter = nullptr;
    c10::Allocator* allocator = nullptr;
  };
  /// `blocks` is guarded by the lock of the manager's engine.
  CpuBelow(DeviceManager& manager, CpuMover& mover, CpuBlocks& blocks, Memory memory)
      : manager_(manager), mover_(mover), blocks_(blocks), memory_(memory) {}

  [[nodiscard]] bool writable(const Block& block) override;
  Made make(Bytes bytes) override;
  Copy read(Block& block, Bytes offset, void* to, Bytes bytes) override;
  Copy write(Block& block, Bytes offset, const void* from, Bytes bytes) override;
  void wait(const Copy& /*copy*/) override {}
  void end(Block& block, bool written) override;

  [[nodiscard]] bool like_memory() const override { return true; }
  bool begin(Block& /*block*/, bool /*writes*/) override { return true; }
  c10::DataPtr allocate(Bytes bytes) override;
  Block* adopt(c10::StorageImpl& storage) override;
  /// The region of allocate() at this address, which is nobody's any more; empty: there is none.
  [[nodiscard]] PagedRegion take(EngineLock& lock, const void* data);
  /// In a child after fork(): as PagedRegion::isolate_in_child().
  void isolate_in_child();

 private:
  CpuBlock* add(EngineLock& lock, PagedRegion region, Bytes size);

  DeviceManager& manager_;
  CpuMover& mover_;
  CpuBlocks& blocks_;
  const Memory memory_;
  /// Those of allocate(), by address; guarded by the engine's lock.
  std::unordered_map<const void*, PagedRegion> allocated_;
};

}  // namespace lms::torch
