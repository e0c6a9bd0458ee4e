#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include "adapters/torch/version.h"

namespace lms::torch {

/// A CUDA allocator that passes everything on to PyTorch's own. The list of virtual functions is
/// PyTorch's, release by release.
class ForwardingAllocator : public c10::cuda::CUDACachingAllocator::CUDAAllocator {
 protected:
  using Native = c10::cuda::CUDACachingAllocator::CUDAAllocator;
  using Index = c10::DeviceIndex;
  using Pool = c10::MempoolId_t;

  Native* native_ = nullptr;

 public:
  [[nodiscard]] Native* native() const { return native_; }

  // c10::Allocator
  c10::DataPtr allocate(size_t n) override { return native_->allocate(n); }
  [[nodiscard]] bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return native_->is_simple_data_ptr(data);
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return native_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t n) const override {
    native_->copy_data(to, from, n);
  }

  // c10::DeviceAllocator
  bool initialized() override { return native_->initialized(); }
  void emptyCache(Pool pool) override { native_->emptyCache(pool); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(Index device) override {
    return native_->getDeviceStats(device);
  }
  void resetAccumulatedStats(Index device) override { native_->resetAccumulatedStats(device); }
  void resetPeakStats(Index device) override { native_->resetPeakStats(device); }
  std::pair<size_t, size_t> getMemoryInfo(Index device) override {
    return native_->getMemoryInfo(device);
  }

  // CUDAAllocator
  void* raw_alloc(size_t n) override { return native_->raw_alloc(n); }
  void* raw_alloc_with_stream(size_t n, cudaStream_t stream) override {
    return native_->raw_alloc_with_stream(n, stream);
  }
  void raw_delete(void* p) override { native_->raw_delete(p); }
  void init(int count) override { native_->init(count); }
  double getMemoryFraction(Index device) override { return native_->getMemoryFraction(device); }
  void setMemoryFraction(double fraction, Index device) override {
    native_->setMemoryFraction(fraction, device);
  }
  std::vector<c10::cuda::CUDACachingAllocator::StreamSegmentSize> getExpandableSegmentSizes(
      Index device) override {
    return native_->getExpandableSegmentSizes(device);
  }
  void enable(bool value) override { native_->enable(value); }
  [[nodiscard]] bool isEnabled() const override { return native_->isEnabled(); }
  void cacheInfo(Index device, size_t* largest) override { native_->cacheInfo(device, largest); }
  void* getBaseAllocation(void* p, size_t* n) override { return native_->getBaseAllocation(p, n); }
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    native_->recordStream(data, stream);
  }
  c10::cuda::CUDACachingAllocator::SnapshotInfo snapshot(Pool pool, bool traces) override {
    return native_->snapshot(pool, traces);
  }
  void beginAllocateToPool(Index device, Pool pool,
                           std::function<bool(cudaStream_t)> filter) override {
    native_->beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(Index device, Pool pool) override {
    native_->endAllocateToPool(device, pool);
  }
  void releasePool(Index device, Pool pool) override { native_->releasePool(device, pool); }
  int getPoolUseCount(Index device, Pool pool) override {
    return native_->getPoolUseCount(device, pool);
  }
  void createOrIncrefPool(Index device, Pool pool, std::shared_ptr<CUDAAllocator> own) override {
    native_->createOrIncrefPool(device, pool, std::move(own));
  }
  void setUseOnOOM(Index device, Pool pool, bool use) override {
    native_->setUseOnOOM(device, pool, use);
  }
  void setNoSplit(Index device, Pool pool) override { native_->setNoSplit(device, pool); }
  bool checkPoolLiveAllocations(Index device, Pool pool,
                                const std::unordered_set<void*>& expected) override {
    return native_->checkPoolLiveAllocations(device, pool, expected);
  }
  c10::cuda::CUDACachingAllocator::ShareableHandle shareIpcHandle(void* p) override {
    return native_->shareIpcHandle(p);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return native_->getIpcDevPtr(std::move(handle));
  }
  bool isHistoryEnabled() override { return native_->isHistoryEnabled(); }
  void recordHistory(bool enabled, c10::cuda::CUDACachingAllocator::CreateContextFn recorder,
                     size_t entries, c10::cuda::CUDACachingAllocator::RecordContext when,
                     bool clear, const std::vector<std::string>& skip) override {
    native_->recordHistory(enabled, recorder, entries, when, clear, skip);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& md) override {
    native_->recordAnnotation(md);
  }
  void pushCompileContext(std::string& md) override { native_->pushCompileContext(md); }
  void popCompileContext() override { native_->popCompileContext(); }
  void setUserMetadata(const std::string& text) override { native_->setUserMetadata(text); }
  std::string getUserMetadata() override { return native_->getUserMetadata(); }
  void attachOutOfMemoryObserver(
      c10::cuda::CUDACachingAllocator::OutOfMemoryObserver observer) override {
    native_->attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(
      c10::cuda::CUDACachingAllocator::AllocatorTraceTracker tracker) override {
    native_->attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(Index from, Index to) override { native_->enablePeerAccess(from, to); }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t n,
                          cudaStream_t stream, bool p2p) override {
    return native_->memcpyAsync(to, to_device, from, from_device, n, stream, p2p);
  }
  std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> getCheckpointState(
      Index device, Pool id) override {
    return native_->getCheckpointState(device, id);
  }
  c10::cuda::CUDACachingAllocator::CheckpointDelta setCheckpointPoolState(
      Index device,
      std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> state) override {
    return native_->setCheckpointPoolState(device, std::move(state));
  }
  std::string name() override { return native_->name(); }

  LMS_FORWARD_NEWER_ALLOCATOR_FUNCTIONS
};

}  // namespace lms::torch
