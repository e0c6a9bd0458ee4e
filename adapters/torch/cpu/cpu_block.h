#pragma once

#include <unordered_map>
#include <utility>

#include "adapters/torch/operators/call.h"
#include "tiers/digest.h"
#include "tiers/paged_region.h"

namespace lms::torch {

class CpuBlock;
/// By address; guarded by the engine's lock.
using CpuBlocks = std::unordered_map<const void*, CpuBlock*>;

/// One allocation of the CPU allocator: its address never changes, its bytes may be in the file.
class CpuBlock final : public StorageBlock {
 public:
  CpuBlock(CpuBlocks& blocks, PagedRegion memory, Bytes size)
      : StorageBlock(size), region(std::move(memory)), blocks_(blocks) {}

  void forgotten() noexcept override { blocks_.erase(region.data()); }

  PagedRegion region;
  Digest dropped;  ///< of the bytes that were dropped, while they are

 private:
  CpuBlocks& blocks_;
};

}  // namespace lms::torch
