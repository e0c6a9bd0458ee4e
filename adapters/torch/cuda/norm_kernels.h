#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "adapters/torch/cuda/kernel_maker.h"
#include "adapters/torch/fused/norm_chain.h"

namespace lms::torch {

/// One device's kernels for chains, made when the first chain of their kind comes. If one cannot be
/// made or queued, there are none for good.
class NormKernels final : public NormChains {
 public:
  explicit NormKernels(int device) : device_(device) {}

  [[nodiscard]] bool available() const noexcept override;
  /// The device must be the current one.
  [[nodiscard]] bool prepare(const NormChain& chain) noexcept override;
  [[nodiscard]] bool launch(const NormChain& chain,
                            const NormChainMemory& memory) noexcept override;
  [[nodiscard]] NormTrial examine(const NormChain& chain, const NormChainMemory& memory,
                                  void* counts) noexcept override;

  /// Kernels that could not be made or queued: 0 or 1.
  [[nodiscard]] std::int64_t failures() const noexcept { return failed_ ? 1 : 0; }

 private:
  /// How a kernel goes through memory: see kNormKernelSource.
  enum class Way : std::uint8_t { kElements, kChannels, kPlanes };
  void make_current() const;  ///< throws Error
  [[nodiscard]] static Way way_of(const NormChain& chain);
  [[nodiscard]] static bool aligned(const NormChain& chain, const NormChainMemory& memory);
  /// Throws Error.
  [[nodiscard]] CUfunction kernel_for(const NormChain& chain, Way way);
  [[nodiscard]] CUfunction trial_for(Rounding rounding);
  [[nodiscard]] CUfunction make(const char* name, std::vector<std::string> options,
                                Rounding rounding);
  [[nodiscard]] float time(const NormChain& chain, const NormChainMemory& memory);
  [[nodiscard]] unsigned blocks_for(const NormChain& chain, Way way) const;

  const int device_;
  std::atomic<bool> failed_{false};
  mutable std::atomic<int> multiprocessors_{-1};  ///< 0: a device for which there are no kernels
  std::mutex mutex_;                              ///< guards all below
  std::optional<KernelMaker> maker_;
  std::unordered_map<std::uint32_t, CUfunction> kernels_;
  std::map<Rounding, CUfunction> trials_;
};

}  // namespace lms::torch
