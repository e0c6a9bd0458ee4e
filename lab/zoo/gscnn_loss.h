#pragma once

// The four terms of Gated-SCNN's loss (Takikawa et al. 2019, section 3.3). All compute in float32
// at least, whatever autocast does, without waiting for the device, and in formulations that repeat
// their bits.

#include <torch/torch.h>

namespace lms::zoo {

struct GscnnLossOptions {
  /// The released code's cross-entropy of the edges applies a sigmoid to what had one.
  bool second_sigmoid = true;
  /// The paper's magnitude of a boundary: that of the smoothed gradient. Released: of the values.
  bool gradients = false;
};

/// Sum over the images of the weighted mean of −log p at the labels, where class c weighs
/// 2 − (its share of the image's labels). An image without labels counts 0. `log_p`: N×C×H×W;
/// `labels`: int64, N×H×W, 255 is ignored.
torch::Tensor image_weighted_nll(const torch::Tensor& log_p, const torch::Tensor& labels);

/// Mean over all pixels of the binary cross-entropy, in which the edge pixels (1) weigh as much as
/// the share of the others (0), and the reverse; anything else weighs nothing. Both N×H×W.
torch::Tensor balanced_edge_loss(const torch::Tensor& edges, const torch::Tensor& target,
                                 bool second_sigmoid);

/// The L1 distance between the boundaries of a Gumbel-softmax sample (τ = 1/2) and of the labels,
/// each scaled to a largest magnitude of 1, averaged over where the one, and where the other, has
/// any: half each. The noise comes from the default generator of the device.
torch::Tensor dual_task_loss(const torch::Tensor& logits, const torch::Tensor& labels,
                             bool gradients);

/// image_weighted_nll + 20·balanced_edge_loss + image_weighted_nll where the predicted edge is
/// above 0.8 + dual_task_loss. `scores`: N×C×H×W; `edges`: N×1×H×W after a sigmoid; `target` and
/// `edge_target`: N×H×W of any integer type.
torch::Tensor gscnn_loss(const torch::Tensor& scores, const torch::Tensor& edges,
                         const torch::Tensor& target, const torch::Tensor& edge_target,
                         const GscnnLossOptions& options);

}  // namespace lms::zoo
