#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "adapters/torch/operators/call.h"

namespace lms::torch {

/// The head of a lineage that one pass over memory can compute: a batch norm from its saved
/// statistics, then perhaps other + result, then perhaps relu(result) or leaky_relu(result), in
/// place. The specs belong to the calls.
struct NormChain {
  std::size_t calls = 0;  ///< that are taken
  c10::ScalarType type = c10::ScalarType::Undefined;
  c10::ScalarType parameters =
      c10::ScalarType::Undefined;  ///< of weight and bias, if there are any
  const TensorSpec* input = nullptr;
  const TensorSpec* weight = nullptr;  ///< null: 1
  const TensorSpec* bias = nullptr;    ///< null: 0
  const TensorSpec* mean = nullptr;
  const TensorSpec* deviation = nullptr;  ///< inverse
  const TensorSpec* other = nullptr;      ///< null: nothing is added
  bool relu = false;                      ///< or, with a slope, leaky_relu
  std::optional<float> slope;
  Rounding rounding = Rounding::kPlain;
  /// Element i, as memory has them, is of channel (i / plane) % channels.
  std::uint32_t elements = 0;
  std::uint32_t channels = 0;
  std::uint32_t plane = 0;

  [[nodiscard]] Bytes bytes() const;
  /// Sets how elements and channels lie. False: no kernel knows tensors like these.
  [[nodiscard]] bool set_geometry(std::span<const std::int64_t> sizes,
                                  std::span<const std::int64_t> strides);
};

/// Nothing unless the calls begin with a chain on `device` of which it is certain that one kernel
/// (see NormChains) gives the same bits as one call after the other.
std::optional<NormChain> find_norm_chain(std::span<const std::shared_ptr<const Call>> calls,
                                         c10::Device device);

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

/// A device's kernels for chains. Thread-safe.
class NormChains {
 public:
  virtual ~NormChains() = default;

  /// False once it has turned out that there are none here.
  [[nodiscard]] virtual bool available() const noexcept = 0;
  /// Has the kernel for this chain made if there is none yet, which takes a while. False: it cannot
  /// be had.
  [[nodiscard]] virtual bool prepare(const NormChain& chain) noexcept = 0;
  /// Queues the kernel on the current stream, after prepare(). False: it has not been queued, and
  /// nothing was written.
  [[nodiscard]] virtual bool launch(const NormChain& chain,
                                    const NormChainMemory& memory) noexcept = 0;
  /// Compares what another kernel made of a float32 chain of a batch norm alone, in
  /// `memory.result`, with what the chain's kernel would, bit by bit. Waits for the device; the
  /// result is written over. `counts`: room for kTrialCounts numbers of 32 bits on the device.
  [[nodiscard]] virtual NormTrial examine(const NormChain& chain, const NormChainMemory& memory,
                                          void* counts) noexcept = 0;
  static constexpr int kTrialCounts = 8;
};

}  // namespace lms::torch
