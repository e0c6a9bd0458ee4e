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

 private:
  DeviceManager& manager_;
  CpuMover& mover_;
  CpuBlocks& blocks_;
  const Memory memory_;
};

}  // namespace lms::torch
