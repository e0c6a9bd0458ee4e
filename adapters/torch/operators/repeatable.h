#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <cstdint>

namespace lms::torch {

struct OpInfo;

/// What is known of running an operator's kernel again on the same bytes, and the same random
/// numbers (draws.h).
enum class Rerun : std::uint8_t {
  kNever,       ///< not known to give the same bits, or has other effects
  kSame,        ///< gives the same bits, and does nothing else
  kOverwrites,  ///< likewise; and nothing of what it writes was there before
  kBatchNorm,   ///< likewise, if it leaves the running statistics alone
};

/// The rule for an operator of ATen. What is not listed, or tagged by PyTorch as computing each
/// element by itself, is never run again.
Rerun rerun_rule(const c10::OperatorHandle& op);

/// False if the operator is never run again, or not under the settings that hold now: while cuDNN's
/// algorithms are chosen by trying them out (torch.backends.cudnn.benchmark), each thread chooses
/// for itself, so that a convolution could get other bits in the backward pass's.
bool repeatable_now(const OpInfo& info);

/// Convolutions that went on with another algorithm than PyTorch's first choice, for which the
/// limit has no room. Their threads do so from then on, until the process ends, and others perhaps
/// not: which algorithm runs again is not known any more. Thread-safe.
class ChangedAlgorithms {
 public:
  void add(const OpInfo& info);
  /// `transposed`: a convolution that is the backward pass of another.
  [[nodiscard]] bool repeat(const OpInfo& info, bool transposed = false) const;

 private:
  std::atomic<bool> forward_{false};
  std::atomic<bool> backward_{false};
};

}  // namespace lms::torch
