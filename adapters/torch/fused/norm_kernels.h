#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "adapters/torch/fused/kernels.h"
#include "adapters/torch/fused/norm_chain.h"

namespace lms::torch {

/// Where the tensors of a chain lie. All are on the device and stay there until the kernel has been
/// queued.
struct NormChainMemory {
  const void* input = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;
  const void* mean = nullptr;
  const void* deviation = nullptr;
  const void* other = nullptr;
  void* result = nullptr;  ///< of NormChain::bytes(); overlaps none of the others
};

/// What a batch norm that was run on its own showed.
struct NormTrial {
  Rounding rounding = Rounding::kOther;
  bool certain = false;  ///< false: the numbers did not tell; another time they may
  float ms = 0;          ///< that the kernel takes
};

/// One device's kernels for chains, made when the first chain of their kind comes. If one cannot be
/// made or queued, there are none for good. Thread-safe.
class NormKernels {
 public:
  explicit NormKernels(Kernels& kernels) : kernels_(kernels) {}

  /// False once it has turned out that there are none here.
  [[nodiscard]] bool available() const noexcept {
    return !failed_ && kernels_.multiprocessors() > 0;
  }
  /// Has the kernel for this chain made if there is none yet, which takes a while. False: it cannot
  /// be had.
  [[nodiscard]] bool prepare(const NormChain& chain) noexcept;
  /// Queues the kernel on the current stream, after prepare(). False: it has not been queued, and
  /// nothing was written.
  [[nodiscard]] bool launch(const NormChain& chain, const NormChainMemory& memory) noexcept;
  /// Compares what another kernel made of a float32 chain of a batch norm alone, in
  /// `memory.result`, with what the chain's kernel would, bit by bit. Waits for the device; the
  /// result is written over. `counts`: room for kTrialCounts numbers of 32 bits on the device.
  [[nodiscard]] NormTrial examine(const NormChain& chain, const NormChainMemory& memory,
                                  void* counts) noexcept;
  static constexpr int kTrialCounts = 8;

  [[nodiscard]] bool failed() const noexcept { return failed_; }

 private:
  /// How a kernel goes through memory: see kNormKernelSource.
  enum class Way : std::uint8_t { kElements, kChannels, kPlanes };
  [[nodiscard]] static Way way_of(const NormChain& chain);
  [[nodiscard]] static bool aligned(const NormChain& chain, const NormChainMemory& memory);
  /// Throws Error.
  [[nodiscard]] Kernels::Kernel kernel_for(const NormChain& chain, Way way);
  [[nodiscard]] Kernels::Kernel trial_for(Rounding rounding);
  [[nodiscard]] Kernels::Kernel make(const char* name, std::vector<std::string> options,
                                     Rounding rounding);
  [[nodiscard]] unsigned blocks_for(const NormChain& chain, Way way) const;

  Kernels& kernels_;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  ///< guards both below
  std::unordered_map<std::uint32_t, Kernels::Kernel> made_;
  std::map<Rounding, Kernels::Kernel> trials_;
};

}  // namespace lms::torch
