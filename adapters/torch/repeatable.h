#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

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

}  // namespace lms::torch
