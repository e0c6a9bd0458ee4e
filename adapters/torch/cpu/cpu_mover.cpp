#include "adapters/torch/cpu/cpu_mover.h"

#include <cstring>

#include "adapters/torch/registry.h"
#include "adapters/torch/replay/lineages.h"
#include "base/error.h"
#include "tiers/digest.h"

namespace lms::torch {
namespace {

Digest digest(const void* data, const CpuBlock& block) {
  return digest_of(data, static_cast<std::size_t>(block.region.size()));
}

PagedRegion& region(Block& block) { return static_cast<CpuBlock&>(block).region; }

}  // namespace

std::optional<Bytes> CpuMover::page_out(Block& block, bool clean) {
  mark_pressed();
  manager_.pilot().wake();
  const auto began = CpuTimer::Clock::now();
  const Bytes bytes = region(block).leave(*store, !clean);
  if (bytes > 0) manager_.note_below(store->stats().used);
  timer.copied(block, bytes, /*is_out=*/true, began);
  return bytes;
}

std::optional<Bytes> CpuMover::page_in(Block& block, bool /*ahead*/) {
  const auto began = CpuTimer::Clock::now();
  const Bytes bytes = region(block).come_back(*store, /*keep_copy=*/true);
  block.has_copy = region(block).has_copy();
  timer.copied(block, bytes, /*is_out=*/false, began);
  return bytes;
}

bool CpuMover::usable_below(Block& block) { return region(block).usable_below(*store); }

void CpuMover::drop_copy(Block& block) noexcept { region(block).drop_copy(); }

bool CpuMover::drop(Block& base, Bytes most) {
  auto& block = static_cast<CpuBlock&>(base);
  if (!manager_.lineages().drop(block, most)) return false;
  try {
    block.dropped = digest(block.region.data(), block);
    block.region.discard();
  } catch (...) {
    manager_.lineages().made(block);
    throw;
  }
  return true;
}

// Kernels make new memory; a tensor's address on the CPU never changes.
bool CpuMover::rematerialise(Block& base, const std::function<void()>& take) {
  auto& block = static_cast<CpuBlock&>(base);
  Lineages::Made made = manager_.lineages().remake(block, {});
  if (digest(made.storage->data(), block) != block.dropped) {
    throw Error("LMS: " + format_bytes(block.size) +
                " that were computed again have other contents than before: somebody has written "
                "them, or what they are computed from, by a pointer that LMS did not see; call "
                "torch.ops.lms.access(tensor) before, or turn recompute off");
  }
  if (adopt_(*made.storage, block)) {
    made.pins.release();  // it counts no more, and the block does not yet
    try {
      take();
    } catch (...) {
      block.region.discard();
      throw;
    }
  } else {
    take();
    block.region.renew();
    std::memcpy(block.region.data(), made.storage->data(),
                static_cast<std::size_t>(block.region.size()));
  }
  manager_.lineages().made(block);
  return true;
}

// The file's bytes, read beside those in memory.
bool CpuMover::copy_matches(Block& block) { return region(block).copy_matches(*store); }

void CpuMover::fetch(Block& block) noexcept {
  try {
    (void)region(block).come_back(*store, /*keep_copy=*/false);
  } catch (const std::exception&) {
    // Its mapping of the file is as good.
  }
}

}  // namespace lms::torch
