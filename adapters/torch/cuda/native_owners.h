#pragma once

#include <c10/util/SmallVector.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace lms::torch {

/// What is known of memory that PyTorch's own allocator has given out on one device: the stream
/// that owns it, which streams are said to use it, and what is of private pools and never managed.
/// Thread-safe; its lock is innermost.
class NativeOwners {
 public:
  using Streams = c10::SmallVector<cudaStream_t, 2>;

  explicit NativeOwners(int device) : device_(device) {}

  /// Begins anew, with what the allocator has given out already.
  void start();
  /// The allocator has given `data` on `stream`. `pooled`: of a private pool; `large`: it may be
  /// asked for.
  void allocated(void* data, cudaStream_t stream, bool pooled, bool large);
  [[nodiscard]] bool is_pooled(const void* data) {
    return any_pooled_.load(std::memory_order_relaxed) && pooled(data);
  }
  /// The stream that the allocator goes by, of what is large.
  [[nodiscard]] cudaStream_t owner_of(const void* data);
  /// It was given out since start(), on a stream that is neither the default one nor `main`.
  [[nodiscard]] bool is_beside(const void* data, cudaStream_t main);
  /// `stream` uses the memory, says the user.
  void add_user(const void* data, cudaStream_t stream);
  /// Who has been said to, and forgets it.
  [[nodiscard]] Streams take_users(const void* data);

 private:
  [[nodiscard]] bool pooled(const void* data);
  void prune_pooled();  ///< under the lock

  const int device_;
  std::mutex mutex_;                                      ///< guards all below
  std::unordered_map<const void*, cudaStream_t> owners_;  ///< allocations off the default stream
  struct Segment {
    std::uintptr_t begin, end;
    cudaStream_t stream;
  };
  std::vector<Segment> segments_;           ///< off the default stream, from before start()
  std::unordered_set<const void*> pooled_;  ///< memory of private pools
  std::atomic<bool> any_pooled_{false};     ///< there has ever been any; written under the lock
  std::size_t prune_pooled_at_ = 1024;      ///< so many: what is free again is looked for
  std::unordered_map<const void*, Streams> users_;
};

}  // namespace lms::torch
