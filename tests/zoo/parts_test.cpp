// Losses, resizing and edges on their own.

#include <gtest/gtest.h>

#include <cmath>

#include "lab/zoo/canny.h"
#include "lab/zoo/gscnn_loss.h"
#include "lab/zoo/host_canny.h"
#include "lab/zoo/losses.h"
#include "lab/zoo/resize.h"
#include "zoo/procedural.h"

namespace lms::zoo::test {
namespace {

torch::Tensor values(const char* name, torch::IntArrayRef shape, double scale = 1) {
  const std::int64_t count = c10::multiply_integers(shape);
  return (uniform(name, count) * scale).to(torch::kFloat32).view(shape).clone();
}

double difference(const torch::Tensor& a, const torch::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

TEST(ZooBilinear, DeterministicIsStock) {
  Bilinear stock(false);
  Bilinear repeats(true);
  struct Case {
    std::int64_t height, width, to_height, to_width;
    bool align_corners;
  };
  for (const Case& c : {Case{5, 7, 20, 13, true}, Case{5, 7, 20, 13, false}, Case{9, 8, 4, 8, true},
                        Case{9, 8, 4, 3, false}, Case{1, 6, 4, 12, true}, Case{6, 1, 1, 5, false},
                        Case{4, 4, 1, 1, true}, Case{3, 3, 3, 3, true}, Case{1, 1, 7, 5, true}}) {
    torch::Tensor a = values("resize", {2, 3, c.height, c.width}).requires_grad_();
    torch::Tensor b = a.detach().clone().requires_grad_();
    const torch::Tensor from = stock(a, {c.to_height, c.to_width}, c.align_corners);
    const torch::Tensor to = repeats(b, {c.to_height, c.to_width}, c.align_corners);
    const torch::Tensor expected =
        at::upsample_bilinear2d(a, {c.to_height, c.to_width}, c.align_corners);
    ASSERT_EQ(to.sizes(), expected.sizes());
    EXPECT_LT(difference(from, expected), 1e-6);
    EXPECT_LT(difference(to, expected), 1e-6);
    const torch::Tensor weights = values("upstream", expected.sizes());
    expected.mul(weights).sum().backward();
    to.mul(weights).sum().backward();
    EXPECT_LT(difference(a.grad(), b.grad()), 1e-5);
  }
}

TEST(ZooBilinear, RowsSumToOne) {
  for (const bool align_corners : {true, false}) {
    const torch::Tensor matrix = interpolation_matrix(33, 129, align_corners);
    EXPECT_LT(difference(matrix.sum(1), torch::ones({129}, torch::kFloat64)), 1e-12);
    EXPECT_LE(matrix.ne(0).sum(1).max().item<std::int64_t>(), 2);
  }
}

TEST(ZooBilinear, MatricesMadeInInferenceModeServeTraining) {
  Bilinear resize(true);
  const torch::Tensor input = values("resize", {1, 2, 4, 4});
  {
    const c10::InferenceMode inference;
    (void)resize(input, {8, 8});
  }
  torch::Tensor leaf = input.clone().requires_grad_();
  resize(leaf, {8, 8}).sum().backward();
  EXPECT_NEAR(leaf.grad().sum().item<double>(), 2 * 64, 1e-4);
}

TEST(ZooCrossEntropy, BothFormulationsAreStock) {
  const torch::Tensor target = labels({2, 9, 11}, 6);
  torch::Tensor a = values("logits", {2, 6, 9, 11}, 4).requires_grad_();
  const torch::Tensor expected = torch::nn::functional::cross_entropy(
      a, target.to(torch::kInt64),
      torch::nn::functional::CrossEntropyFuncOptions().ignore_index(kIgnored));
  expected.backward();
  for (const bool deterministic : {false, true}) {
    torch::Tensor b = a.detach().clone().requires_grad_();
    const torch::Tensor loss = cross_entropy(b, target, deterministic);
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-6);
    loss.backward();
    EXPECT_LT(difference(a.grad(), b.grad()), 1e-7);
  }
}

TEST(ZooCrossEntropy, NothingToLearnFromCountsNothing) {
  const torch::Tensor target = torch::full({2, 4, 4}, 255, torch::kUInt8);
  for (const bool deterministic : {false, true}) {
    torch::Tensor logits = values("logits", {2, 3, 4, 4}).requires_grad_();
    const torch::Tensor loss = cross_entropy(logits, target, deterministic);
    loss.backward();
    EXPECT_EQ(loss.item<double>(), 0);
    EXPECT_EQ(logits.grad().abs().max().item<double>(), 0);
  }
}

TEST(ZooCrossEntropy, HalfPrecisionIsSummedInFloat32) {
  const torch::Tensor logits = values("logits", {1, 4, 64, 64}, 4);
  const torch::Tensor target = labels({1, 64, 64}, 4);
  const torch::Tensor rounded = logits.to(torch::kBFloat16);
  const double expected = cross_entropy(rounded.to(torch::kFloat32), target, true).item<double>();
  const torch::Tensor loss = cross_entropy(rounded, target, true);
  EXPECT_EQ(loss.scalar_type(), torch::kFloat32);
  EXPECT_NEAR(loss.item<double>(), expected, 1e-6);
}

TEST(ZooDice, ByHand) {
  // Label 0: 2·1.5/(2 + 2), label 1: nothing there, nothing said.
  const torch::Tensor p = torch::tensor({1.0F, 0.5F, 0.5F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F});
  const torch::Tensor t = torch::tensor({1, 1, 0, 0, 0, 0, 0, 0}, torch::kUInt8);
  const double smooth = 1e-5;
  const double first = (3 + smooth) / (4 + smooth);
  EXPECT_NEAR(dice_loss(p.view({1, 2, 1, 2, 2}), t.view({1, 2, 1, 2, 2})).item<double>(),
              1 - (first + 1) / 2, 1e-6);
}

TEST(ZooGscnnLoss, WeighsClassesByTheirShare) {
  // First image: three of class 0, one of class 1: weights 1.25 and 1.75. Second: void.
  const torch::Tensor logits = values("logits", {2, 3, 1, 4}).requires_grad_();
  const torch::Tensor log_p = logits.log_softmax(1);
  torch::Tensor target = torch::full({2, 1, 4}, 255, torch::kInt64);
  target[0] = torch::tensor({{0, 0, 0, 1}});
  const torch::Tensor loss = image_weighted_nll(log_p, target);
  const auto nll = [&](int pixel, int c) { return -log_p[0][c][0][pixel].item<double>(); };
  const double expected =
      (1.25 * (nll(0, 0) + nll(1, 0) + nll(2, 0)) + 1.75 * nll(3, 1)) / (3 * 1.25 + 1.75);
  EXPECT_NEAR(loss.item<double>(), expected, 1e-6);
  loss.backward();
  EXPECT_TRUE(logits.grad().isfinite().all().item<bool>());
  EXPECT_EQ(logits.grad()[1].abs().max().item<double>(), 0);
}

TEST(ZooGscnnLoss, EdgesAreBalanced) {
  // One edge pixel, two others, one that counts for nothing.
  const torch::Tensor edges = torch::tensor({0.9F, 0.2F, 0.4F, 0.7F}).view({1, 2, 2});
  const torch::Tensor target = torch::tensor({1, 0, 0, 255}, torch::kUInt8).view({1, 2, 2});
  const auto by_hand = [](auto probability) {
    const double positive = -std::log(probability(0.9)) * 2 / 3;
    const double negative = -std::log(1 - probability(0.2)) - std::log(1 - probability(0.4));
    return (positive + negative / 3) / 4;
  };
  EXPECT_NEAR(balanced_edge_loss(edges, target, false).item<double>(),
              by_hand([](double p) { return p; }), 1e-6);
  EXPECT_NEAR(balanced_edge_loss(edges, target, true).item<double>(),
              by_hand([](double p) { return 1 / (1 + std::exp(-p)); }), 1e-6);
}

TEST(ZooGscnnLoss, DualTaskAsReleasedAndAsInThePaper) {
  const nlohmann::json parts = load_golden("gscnn").at("parts");
  const torch::Tensor target = labels({2, 40, 33}, 19).to(torch::kInt64);
  for (const bool gradients : {false, true}) {
    const std::string name = gradients ? "dual_task_paper" : "dual_task_released";
    torch::Tensor scores = values("scores", {2, 19, 40, 33}, 3).requires_grad_();
    torch::manual_seed(7);
    const torch::Tensor loss = dual_task_loss(scores, target, gradients);
    const double expected = parts.at(name);
    EXPECT_NEAR(loss.item<double>(), expected, 1e-5 * expected) << name;
    loss.backward();
    const torch::Tensor flat = scores.grad().to(torch::kFloat64).flatten();
    const auto numbers = parts.at(name + "_gradient").get<std::vector<double>>();
    EXPECT_NEAR(flat.norm().item<double>(), numbers[0], 1e-4 * numbers[0]) << name;
    EXPECT_NEAR(flat.dot(uniform("projection:scores", flat.numel())).item<double>(), numbers[1],
                1e-4 * numbers[0])
        << name;
  }
}

/// The pictures of generate_torch.py's canny(): H×W×C, as C×H×W.
torch::Tensor canny_case(const nlohmann::json& golden, std::size_t index) {
  const auto size = golden.at("size").get<std::vector<std::int64_t>>();
  const std::int64_t cell = golden.at("cell");
  const std::int64_t down = (size[0] + cell - 1) / cell;
  const std::int64_t across = (size[1] + cell - 1) / cell;
  const std::string i = std::to_string(index);
  torch::Tensor pixels =
      (uniform("cells" + i, down * across * size[2]) + 1).mul(120).view({down, across, size[2]});
  pixels = pixels.repeat_interleave(cell, 0).repeat_interleave(cell, 1);
  pixels = pixels.narrow(0, 0, size[0]).narrow(1, 0, size[1]);
  pixels = pixels + uniform("noise" + i, pixels.numel()).view(pixels.sizes()) *
                        golden.at("noise").get<double>();
  return pixels.floor().clamp(0, 255).to(torch::kUInt8).permute({2, 0, 1}).contiguous();
}

TEST(ZooCanny, IsOpenCvs) {
  const nlohmann::json cases = load_golden("canny").at("cases");
  for (std::size_t index = 0; index < cases.size(); ++index) {
    const torch::Tensor image = canny_case(cases[index], index);
    const torch::Tensor edges = HostCanny(image.unsqueeze(0)).finish();
    ASSERT_EQ(edges.sizes(), torch::IntArrayRef({1, 1, image.size(1), image.size(2)}));
    EXPECT_EQ(edges.scalar_type(), torch::kFloat32);
    const std::string hex = cases[index].at("edges");
    for (std::int64_t i = 0; i < edges.numel(); ++i) {
      const int byte = std::stoi(hex.substr(i / 8 * 2, 2), nullptr, 16);
      const double expected = (byte >> (7 - i % 8)) & 1 ? 255 : 0;
      ASSERT_EQ(edges.flatten()[i].item<double>(), expected) << "picture " << index << ", " << i;
    }
  }
}

TEST(ZooCanny, BytesAsX86CutsThem) {
  const torch::Tensor values =
      torch::tensor({-2.1F, -1.0F, -0.9F, 0.0F, 0.99F, 1.5F, 2.6F, 300.0F});
  const torch::Tensor expected = torch::tensor({254, 255, 0, 0, 0, 1, 2, 44}, torch::kUInt8);
  EXPECT_TRUE(bytes_modulo_256(values).equal(expected));
}

TEST(ZooCanny, BytesOfWhatWasNormalised) {
  const torch::Tensor picture = labels({1, 3, 8, 8}, 256);
  const torch::Tensor mean = torch::tensor({0.485F, 0.456F, 0.406F}).view({3, 1, 1});
  const torch::Tensor deviation = torch::tensor({0.229F, 0.224F, 0.225F}).view({3, 1, 1});
  EXPECT_TRUE(bytes_of_imagenet((picture / 255.0 - mean) / deviation).equal(picture));
}

TEST(ZooCanny, ABatchIsItsImages) {
  const torch::Tensor images =
      (values("canny", {3, 3, 20, 17}) * 120 + 120).to(torch::kUInt8).contiguous();
  const torch::Tensor all = HostCanny(images).finish();
  for (std::int64_t i = 0; i < images.size(0); ++i) {
    EXPECT_TRUE(all[i].equal(HostCanny(images.narrow(0, i, 1)).finish()[0]));
  }
}

}  // namespace
}  // namespace lms::zoo::test
