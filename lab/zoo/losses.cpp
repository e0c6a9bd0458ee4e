#include "lab/zoo/losses.h"

#include "lab/zoo/precision.h"

namespace lms::zoo {

torch::Tensor cross_entropy(const torch::Tensor& logits, const torch::Tensor& target,
                            bool deterministic) {
  const WithoutAutocast outside;
  const torch::Tensor scores = at_least_float(logits).log_softmax(1);
  const torch::Tensor labels = target.to(torch::kInt64);
  const torch::Tensor valid = labels.ne(kIgnored);
  torch::Tensor sum;
  if (deterministic) {
    const torch::Tensor index = labels.masked_fill(valid.logical_not(), 0).unsqueeze(1);
    const torch::Tensor picked = scores.gather(1, index).squeeze(1);
    sum = picked.masked_fill(valid.logical_not(), 0).sum().neg();
  } else {
    sum = at::nll_loss_nd(scores, labels, {}, at::Reduction::Sum, kIgnored);
  }
  return sum / valid.sum().clamp_min(1);
}

torch::Tensor dice_loss(const torch::Tensor& probabilities, const torch::Tensor& target,
                        double smooth) {
  const WithoutAutocast outside;
  const torch::Tensor p = at_least_float(probabilities).flatten(2);
  const torch::Tensor t = target.to(p.scalar_type()).flatten(2);
  const torch::Tensor both = (p * t).sum(2);
  const torch::Tensor either = p.sum(2) + t.sum(2);
  return 1 - ((2 * both + smooth) / (either + smooth)).mean();
}

}  // namespace lms::zoo
