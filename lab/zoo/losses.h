#pragma once

// Losses that several models share. All compute in float32 at least, whatever autocast does, and
// without waiting for the device.

#include <torch/torch.h>

#include <cstdint>

namespace lms::zoo {

/// The label that no class has: such pixels count for nothing.
constexpr std::int64_t kIgnored = 255;

/// The mean of −log softmax(logits) at the targets over all that are not kIgnored; 0 if all are.
/// `logits`: N×C×…, `target`: N×… of any integer type. The deterministic formulation gathers:
/// stock nll_loss2d sums with atomics on CUDA.
torch::Tensor cross_entropy(const torch::Tensor& logits, const torch::Tensor& target,
                            bool deterministic);

/// 1 − mean over samples and labels of (2·Σpt + smooth) / (Σp + Σt + smooth). Both N×L×D×H×W.
torch::Tensor dice_loss(const torch::Tensor& probabilities, const torch::Tensor& target,
                        double smooth = 1e-5);

}  // namespace lms::zoo
