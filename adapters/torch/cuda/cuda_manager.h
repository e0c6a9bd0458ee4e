#pragma once

#include <c10/util/flat_hash_map.h>
#include <unistd.h>

#include <atomic>
#include <functional>

#include "adapters/torch/cuda/cuda_below.h"
#include "adapters/torch/cuda/cuda_block.h"
#include "adapters/torch/cuda/cuda_kernels.h"
#include "adapters/torch/cuda/cuda_memory.h"
#include "adapters/torch/cuda/cuda_mover.h"
#include "adapters/torch/cuda/cuda_pilot.h"
#include "adapters/torch/device_manager.h"

namespace lms::torch {

/// CUDA storages of one device, with pinned host memory below: which storages are blocks, and who
/// has used them. Their memory is CudaMemory's, their bytes are moved by CudaMover, and plans are
/// made and followed with CudaPilotDevice.
class CudaManager final : public DeviceManager {
 public:
  explicit CudaManager(int index);

  [[nodiscard]] c10::Device device() const override { return device_; }
  [[nodiscard]] Engine& engine() override { return engine_; }
  [[nodiscard]] bool manages() const override { return on() && process_ == getpid(); }
  void start(const Options& settings) override;
  void stop() override;
  Block* find_or_track(EngineLock& lock, c10::StorageImpl& storage) override;
  Block* find(EngineLock& lock, c10::StorageImpl& storage) override;
  void note_use(EngineLock& lock, std::span<const Use> uses,
                const std::optional<c10::Stream>& other) override;
  void memory_goes(c10::StorageImpl& storage) override;
  [[nodiscard]] Below* below() override { return &below_; }
  void reclaim_everything() override { memory_.reclaim_everything(); }
  bool clear_what_failed() override { return memory_.clear_what_failed(); }
  [[nodiscard]] bool announces_death(const Block& block) const override;
  void make_plain(c10::StorageImpl& storage) override { memory_.make_plain(storage); }
  [[nodiscard]] bool is_in_order() override;
  [[nodiscard]] bool records_here() override;
  void in_order(const std::function<void()>& work) override;
  void used_late(c10::StorageImpl& storage) override { memory_.used_late(storage); }
  [[nodiscard]] bool operators_write(const c10::DataPtr& data) const override {
    return memory_.on_device(data);
  }
  void capture_begin() override;
  void capture_end() override;
  void emulate_link(double rate) override;
  [[nodiscard]] bool capturing() const override;
  [[nodiscard]] Bytes least_limit(Bytes needed, Bytes requested) override {
    return memory_.least_limit(needed, requested);
  }
  [[nodiscard]] Bytes ample_limit(Bytes requested) override {
    return memory_.ample_limit(requested);
  }
  [[nodiscard]] std::string what_is_wasted() override { return memory_.what_is_wasted(); }
  void operator_ended() override { memory_.operator_ended(); }
  void add_stats(std::map<std::string, std::int64_t>& stats) override;
  void reset_peak() override;

  /// For the allocator bridge.
  [[nodiscard]] CudaMemory& memory() { return memory_; }

  /// What the user has bounded the device's memory to (set_per_process_memory_fraction), before
  /// enable() or after: the limit is no more than that.
  [[nodiscard]] double memory_fraction() const { return fraction_; }
  /// Likewise. As enable() with another limit.
  void set_memory_fraction(double fraction);

  // For memory and mover.

  /// PyTorch's allocator keeps to so many bytes from now on.
  void bound_native(Bytes bytes);
  /// A block that is born below, of a storage that nobody else knows yet.
  CudaBlock& add_lent(EngineLock& lock, std::unique_ptr<CudaBlock> block);
  /// A storage stands for no block any more.
  void forget(EngineLock& lock, c10::StorageImpl& storage, CudaBlock& block);
  /// True if what is dropped needs the bytes behind `data`, whose storage is dying: they live on.
  bool keep_for_lineages(CudaBlock& block, BlockUid uid, c10::DataPtr data);

 private:
  friend class CudaBlock;

  void rename(EngineLock& lock, c10::StorageImpl& from, c10::StorageImpl& to) override;
  /// The block is this storage's from now on.
  void give(CudaBlock& block, c10::StorageImpl& storage);
  /// What find_or_track() does not find at once; `known`: the block that was the storage's.
  Block* find_or_track_again(EngineLock& lock, c10::StorageImpl& storage, CudaBlock* known);
  void start_with(const Options& settings, bool was_on);
  /// The memory fraction that makes PyTorch's allocator keep to `limit`.
  [[nodiscard]] double fraction_of(Bytes limit, std::size_t total) const;
  [[nodiscard]] bool may_manage(const c10::StorageImpl& storage);

  const c10::Device device_;
  CudaKernels kernels_;
  CudaMemory memory_;
  CudaMover mover_;
  CudaBelow below_;
  CudaPilotDevice pilot_device_;
  Engine engine_;
  ska::flat_hash_map<c10::StorageImpl*, CudaBlock*> blocks_;  ///< guarded by the engine's lock
  std::atomic<double> fraction_ = 1.0;                        ///< the user's
  Options settings_;                                          ///< as given to start()
  std::size_t total_ = 0;                                     ///< bytes of the device
  pid_t process_ = 0;                                         ///< that has it on
  std::atomic<int> captures_{0};
};

}  // namespace lms::torch
