#pragma once

#include <functional>
#include <memory>

#include "adapters/torch/cpu/cpu_block.h"
#include "adapters/torch/cpu/cpu_timer.h"
#include "adapters/torch/device_manager.h"
#include "engine/mover.h"
#include "tiers/file_store.h"

namespace lms::torch {

/// Moves the bytes of CPU tensors between memory and a file, at addresses that stay theirs.
class CpuMover final : public Mover {
 public:
  /// The memory of `made` moves to a dropped block's address. False if it cannot.
  using Adopt = std::function<bool(c10::StorageImpl& made, CpuBlock& block)>;

  CpuMover(DeviceManager& manager, Adopt adopt) : manager_(manager), adopt_(std::move(adopt)) {}

  std::optional<Bytes> page_out(Block& block, bool clean) override;
  std::optional<Bytes> page_in(Block& block, bool ahead) override;
  bool usable_below(Block& block) override;
  void drop_copy(Block& block) noexcept override;
  bool drop(Block& block, Bytes most) override;
  bool rematerialise(Block& block, const std::function<void()>& take) override;
  bool copy_matches(Block& block) override;

  /// Brings what is used where it lies, in the file, into memory. If there is none it stays there,
  /// and keeps its slot.
  void fetch(Block& block) noexcept;

  std::unique_ptr<FileStore> store;  ///< while LMS is on
  CpuTimer timer;

 private:
  DeviceManager& manager_;
  Adopt adopt_;
};

}  // namespace lms::torch
