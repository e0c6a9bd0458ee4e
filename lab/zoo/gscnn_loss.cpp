#include "lab/zoo/gscnn_loss.h"

#include <array>

#include "lab/zoo/losses.h"
#include "lab/zoo/precision.h"

namespace lms::zoo {
namespace {

/// Pixels of each class: N×C, of log_p's type. One comparison a class: no atomics, little memory.
torch::Tensor class_counts(const torch::Tensor& log_p, const torch::Tensor& labels) {
  std::vector<torch::Tensor> counts;
  for (std::int64_t c = 0; c < log_p.size(1); ++c) counts.push_back(labels.eq(c).sum({1, 2}));
  return torch::stack(counts, 1).to(log_p.scalar_type());
}

/// Smoothing with a triangle of radius 4 along both axes. The borders mirror: the pixel at the
/// border counts twice.
torch::Tensor smoothed(const torch::Tensor& input) {
  static constexpr std::int64_t kRadius = 4;
  const auto along = [](const torch::Tensor& values, std::int64_t axis) {
    const std::int64_t size = values.size(axis);
    TORCH_CHECK_VALUE(size >= kRadius, "gscnn: dual_task = 'paper' takes sides of at least ",
                      kRadius, ", not ", size);
    const torch::Tensor before = values.narrow(axis, 0, kRadius).flip(axis);
    const torch::Tensor after = values.narrow(axis, size - kRadius, kRadius).flip(axis);
    const torch::Tensor padded = torch::cat({before, values, after}, axis);
    torch::Tensor sum;
    for (std::int64_t i = 0; i <= 2 * kRadius; ++i) {
      const std::int64_t weight = kRadius + 1 - std::abs(i - kRadius);
      const torch::Tensor part = padded.narrow(axis, i, size) *
                                 (static_cast<double>(weight) / ((kRadius + 1) * (kRadius + 1)));
      sum = sum.defined() ? sum + part : part;
    }
    return sum;
  };
  return along(along(input, 3), 2);
}

/// Half the difference of both neighbours; beyond the border there is 0.
torch::Tensor central_difference(const torch::Tensor& input, std::int64_t axis) {
  const std::int64_t size = input.size(axis);
  std::array<std::int64_t, 4> pad{};
  const std::size_t first = axis == 3 ? 0 : 2;
  pad[first] = pad[first + 1] = 1;
  const torch::Tensor padded = torch::constant_pad_nd(input, pad);
  return (padded.narrow(axis, 2, size) - padded.narrow(axis, 0, size)) * 0.5;
}

torch::Tensor boundary_magnitude(const torch::Tensor& values, bool gradients) {
  torch::Tensor squares;
  if (gradients) {
    const torch::Tensor smooth = smoothed(values);
    squares = central_difference(smooth, 3).square() + central_difference(smooth, 2).square();
  } else {
    squares = 2 * values.square();
  }
  const torch::Tensor magnitude = (squares + 1e-6).sqrt();
  return magnitude / magnitude.max();
}

}  // namespace

torch::Tensor image_weighted_nll(const torch::Tensor& log_p, const torch::Tensor& labels) {
  const torch::Tensor counts = class_counts(log_p, labels);
  const torch::Tensor shares = counts / counts.sum(1, /*keepdim=*/true).clamp_min(1);
  const torch::Tensor ignored = labels.eq(kIgnored);
  const torch::Tensor index = labels.masked_fill(ignored, 0);
  const torch::Tensor weights =
      (2 - shares).gather(1, index.flatten(1)).masked_fill(ignored.flatten(1), 0);
  const torch::Tensor nll = log_p.gather(1, index.unsqueeze(1)).flatten(1).neg();
  const torch::Tensor total = weights.sum(1);
  return ((weights * nll).sum(1) / total.masked_fill(total.eq(0), 1)).sum();
}

torch::Tensor balanced_edge_loss(const torch::Tensor& edges, const torch::Tensor& target,
                                 bool second_sigmoid) {
  const torch::ScalarType type = edges.scalar_type();
  const torch::Tensor positive = target.eq(1).to(type);
  const torch::Tensor negative = target.eq(0).to(type);
  const torch::Tensor positives = positive.sum();
  const torch::Tensor negatives = negative.sum();
  const torch::Tensor total = (positives + negatives).clamp_min(1);
  const torch::Tensor weights = positive * (negatives / total) + negative * (positives / total);
  if (second_sigmoid) {
    return at::binary_cross_entropy_with_logits(edges, positive, weights, {}, at::Reduction::Mean);
  }
  return at::binary_cross_entropy(edges, positive, weights, at::Reduction::Mean);
}

torch::Tensor dual_task_loss(const torch::Tensor& logits, const torch::Tensor& labels,
                             bool gradients) {
  constexpr double kTau = 0.5;
  constexpr double kAny = 1e-8;
  constexpr double kTiny = 1e-10;
  const std::int64_t n = logits.size(0);
  const std::int64_t classes = logits.size(1);
  const torch::Tensor ignored = labels.eq(kIgnored).unsqueeze(1);
  const torch::Tensor known = logits.masked_fill(ignored, 0);
  const torch::Tensor uniform = torch::rand({n, classes, logits.size(2) * logits.size(3)},
                                            logits.options().dtype(torch::kFloat32));
  const torch::Tensor gumbel = (kTiny - (uniform + kTiny).log()).log().neg().view(logits.sizes());
  const torch::Tensor sample = ((known + gumbel) / kTau).softmax(1);

  const torch::Tensor truth = labels.masked_fill(labels.eq(kIgnored), 0);
  const torch::Tensor ids = torch::arange(classes, labels.options()).view({1, classes, 1, 1});
  const torch::Tensor one_hot = truth.unsqueeze(1).eq(ids).to(logits.scalar_type());

  const torch::Tensor predicted = boundary_magnitude(sample, gradients);
  const torch::Tensor expected = boundary_magnitude(one_hot, gradients);
  const torch::Tensor distance = (predicted - expected).abs();
  const auto mean_where = [&](const torch::Tensor& magnitude) {
    const torch::Tensor mask = magnitude.detach().ge(kAny).to(distance.scalar_type());
    return (distance * mask).sum() / (mask.sum() + kTiny);
  };
  return 0.5 * mean_where(predicted) + 0.5 * mean_where(expected);
}

torch::Tensor gscnn_loss(const torch::Tensor& scores, const torch::Tensor& edges,
                         const torch::Tensor& target, const torch::Tensor& edge_target,
                         const GscnnLossOptions& options) {
  constexpr double kEdgeWeight = 20;
  constexpr double kSureEdge = 0.8;
  const WithoutAutocast outside;
  const torch::Tensor logits = at_least_float(scores);
  const torch::Tensor edge_map = at_least_float(edges).squeeze(1);
  const torch::Tensor labels = target.to(torch::kInt64);
  const torch::Tensor log_p = logits.log_softmax(1);
  const torch::Tensor near_edges = labels.masked_fill(edge_map.detach().le(kSureEdge), kIgnored);
  return image_weighted_nll(log_p, labels) +
         kEdgeWeight * balanced_edge_loss(edge_map, edge_target, options.second_sigmoid) +
         image_weighted_nll(log_p, near_edges) + dual_task_loss(logits, labels, options.gradients);
}

}  // namespace lms::zoo
