// Tries on the CPU: what each method computes, and what their records say.
#include <ATen/autocast_mode.h>
#include <ftw.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "lab/records/files.h"
#include "lab/studies/bounds.h"
#include "lab/studies/worker/offload.h"
#include "lab/studies/worker/run_try.h"
#include "lab/studies/worker/timeline.h"
#include "lab/studies/worker/workload.h"
#include "lab/zoo/checkpoint.h"

namespace lms::studies {
namespace {

namespace fs = std::filesystem;

std::string folder() {
  static const std::string kFolder = [] {
    std::string name = (fs::temp_directory_path() / "lms-tries-XXXXXX").string();
    return std::string(::mkdtemp(name.data()));
  }();
  return kFolder;
}

Record make(Values values) {
  static int number = 0;
  const std::string out = folder() + "/try" + std::to_string(++number) + ".json";
  Values all = {{"device", "cpu"},     {"model", "resnet50"}, {"classes", "5"}, {"batch", "2"},
                {"sides", "32x32"},    {"warmup", "1"},       {"steps", "2"},   {"threads", "1"},
                {"precision", "fp32"}, {"out", out}};
  for (const auto& [key, value] : values) all[key] = value;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> log(
      std::fopen((folder() + "/log").c_str(), "a"), &std::fclose);
  run_try(spec_of(all), log.get(), /*leave=*/false);
  return records::read_record(out).value();
}

class Tries : public testing::Test {
 protected:
  // Not std::filesystem::remove_all: PyTorch's libraries export one of another libstdc++.
  static void TearDownTestSuite() {
    ::nftw(
        folder().c_str(),
        [](const char* each, const struct stat*, int, struct FTW*) { return std::remove(each); },
        16, FTW_DEPTH | FTW_PHYS);
  }
};

TEST_F(Tries, SavingOnTheHostChangesNoBits) {
  const Record plain = make({});
  ASSERT_EQ(plain.outcome, Outcome::kOk) << plain.message;
  EXPECT_EQ(plain.steps.size(), 2U);
  EXPECT_EQ(plain.losses.size(), 3U);
  EXPECT_NE(plain.losses[0], plain.losses[2]);
  ASSERT_FALSE(plain.weights.empty());
  const Record offloaded = make({{"method", "save_on_cpu"}});
  ASSERT_EQ(offloaded.outcome, Outcome::kOk) << offloaded.message;
  EXPECT_EQ(offloaded.losses, plain.losses);
  EXPECT_EQ(offloaded.weights, plain.weights);
  EXPECT_GT(offloaded.bytes_to_host.value_or(0), 1 << 20);
  EXPECT_EQ(offloaded.bytes_to_host, offloaded.bytes_to_device);
  EXPECT_GT(offloaded.peak_host.value_or(0), 1 << 20);
  EXPECT_EQ(offload_counts().live, 0);
  // Off again.
  EXPECT_EQ(make({}).losses, plain.losses);
}

TEST_F(Tries, SavingMoreThanTheHostHolds) {
  const Record record = make({{"method", "save_on_cpu"}, {"host_budget", "100000"}});
  EXPECT_EQ(record.outcome, Outcome::kHost) << record.message;
  EXPECT_EQ(offload_counts().live, 0);
}

TEST_F(Tries, LmsChangesNoBits) {
  const Record plain = make({{"warmup", "2"}});
  const Record lms = make({{"method", "lms"},
                           {"cap", "240MiB"},
                           {"min_block", "16384"},
                           {"warmup", "1"},
                           {"settle", "2"},
                           {"plan_seconds", "0.1"}});
  ASSERT_EQ(lms.outcome, Outcome::kOk) << lms.message;
  ASSERT_EQ(lms.losses.size(), plain.losses.size());
  EXPECT_EQ(lms.losses, plain.losses);
  EXPECT_EQ(lms.weights, plain.weights);
  EXPECT_EQ(lms.limit.value_or(0), 240 << 20);
  EXPECT_LE(lms.peak_allocated.value_or(0), 240 << 20);
  EXPECT_GT(lms.stats.at("evictions"), 0);
  EXPECT_GT(lms.stats.at("operators"), 0);
  EXPECT_FALSE(lms.partial);
  EXPECT_NE(lms.message.find("not settled"), std::string::npos) << lms.message;
}

TEST_F(Tries, AnImpossibleLimitIsOutOfMemory) {
  const Record record = make({{"method", "lms"}, {"cap", "2MiB"}, {"min_block", "4096"}});
  EXPECT_EQ(record.outcome, Outcome::kOom) << record.message;
  EXPECT_FALSE(record.message.empty());
}

TEST_F(Tries, WhatCannotBeHasFailed) {
  EXPECT_EQ(make({{"model", "resnet51"}}).outcome, Outcome::kFailed);
  EXPECT_EQ(make({{"model", "unet3d"}, {"sides", "8x8x8"}}).outcome, Outcome::kFailed);
  EXPECT_EQ(make({{"link", "pcie3"}}).outcome, Outcome::kFailed);
}

/// Every model, at its smallest: loss and gradients are those of the plain run, bit by bit, under
/// dropout, and where blocks change tensors in place. In DeepLabv3+ what the first block gives is
/// used by the decoder, and twice by the second block: a sum of three gradients, of which a
/// checkpointed block adds its two first. What comes before it inherits another rounding: that of
/// double precision, in which the model is compared.
class Checkpointed : public testing::TestWithParam<const char*> {};

TEST_P(Checkpointed, HasTheSameBits) {
  const std::string model = GetParam();
  const auto losses = [&](bool checkpoint) {
    torch::manual_seed(3);
    zoo::ModelOptions options;
    options.checkpoint = checkpoint;
    options.classes = model == "unet3d" ? 3 : 4;
    const auto made = zoo::make_model(model, options);
    made->train();
    const bool precise = model == "deeplabv3plus";
    if (precise) made->to(torch::kFloat64);
    zoo::Batch batch;
    const std::vector<std::int64_t> shape = model == "unet3d"
                                                ? std::vector<std::int64_t>{1, 4, 16, 16, 16}
                                                : std::vector<std::int64_t>{2, 3, 33, 33};
    batch.input = torch::randn(shape, precise ? torch::kFloat64 : torch::kFloat32);
    if (model == "unet3d") {
      batch.target = batch.input.slice(1, 0, 3).gt(0.5).to(torch::kUInt8);
    } else if (model == "resnet50" || model == "googlenet") {
      batch.target = torch::tensor({1, 3}, torch::kInt64);
    } else {
      batch.target = torch::randint(4, {2, 33, 33}, torch::kUInt8);
      batch.extras.push_back(torch::randint(2, {2, 33, 33}, torch::kUInt8));
    }
    const torch::Tensor loss = made->loss(made->forward(batch.input), batch);
    loss.backward();
    train::NamedTensors all = {{"loss", loss.detach()}};
    for (const auto& each : made->named_parameters()) {
      if (each.value().grad().defined()) all.emplace_back(each.key(), each.value().grad());
    }
    all.emplace_back("random", torch::randn({4}));  // the generator has gone on as far
    return all;
  };
  const auto plain = losses(false);
  const auto again = losses(true);
  ASSERT_EQ(plain.size(), again.size());
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const auto& [name, value] = plain[i];
    const bool before_sum =
        name.rfind("backbone.block1.", 0) == 0 || name.rfind("backbone.conv1", 0) == 0 ||
        name.rfind("backbone.conv2", 0) == 0 || name.rfind("backbone.bn1", 0) == 0 ||
        name.rfind("backbone.bn2", 0) == 0;
    if (model == "deeplabv3plus" && before_sum) {
      const double apart = (value - again[i].second).norm().item<double>();
      // A bias that a batch norm takes out again has a gradient of rounding alone.
      EXPECT_LT(apart, 1e-12 * value.norm().item<double>() + 1e-13) << name;
    } else {
      EXPECT_TRUE(torch::equal(value, again[i].second)) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Zoo, Checkpointed,
                         testing::Values("resnet50", "googlenet", "deeplabv3plus", "unet3d",
                                         "gscnn"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Checkpoint, KeepsItsInputsAlone) {
  int runs = 0;
  const zoo::Block block = [&runs](const std::vector<torch::Tensor>& inputs) {
    ++runs;
    return inputs[0].sigmoid().sigmoid() + inputs[1];
  };
  const torch::Tensor first = torch::randn({3}, torch::requires_grad());
  const torch::Tensor second = torch::randn({3});
  const torch::Tensor result = zoo::run_block(true, block, {first, second});
  EXPECT_EQ(runs, 1);
  result.sum().backward();
  EXPECT_EQ(runs, 2);
  const torch::Tensor copy = first.detach().clone().set_requires_grad(true);
  zoo::run_block(false, block, {copy, second}).sum().backward();
  EXPECT_TRUE(torch::equal(first.grad(), copy.grad()));
  const torch::NoGradGuard none;
  zoo::run_block(true, block, {first, second});
  EXPECT_EQ(runs, 4);
}

TEST(Checkpoint, RunsAgainUnderTheSameAutocast) {
  const auto gradient = [](bool on) {
    torch::manual_seed(5);
    const torch::Tensor weight = torch::randn({8, 8}, torch::requires_grad());
    const torch::Tensor second = torch::randn({8, 8}, torch::requires_grad());
    const torch::Tensor input = torch::randn({8, 8}, torch::requires_grad());
    at::autocast::set_autocast_enabled(torch::kCPU, true);
    at::autocast::set_autocast_dtype(torch::kCPU, torch::kBFloat16);
    const zoo::Block block = [&](const std::vector<torch::Tensor>& inputs) {
      return torch::mm(torch::mm(inputs[0], weight), second);
    };
    const torch::Tensor result = zoo::run_block(on, block, {input});
    EXPECT_EQ(result.scalar_type(), torch::kBFloat16);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(torch::kCPU, false);
    result.to(torch::kFloat32).sum().backward();
    return std::pair(weight.grad(), input.grad());
  };
  const auto [weight, input] = gradient(false);
  const auto [weight_again, input_again] = gradient(true);
  EXPECT_TRUE(torch::equal(input, input_again));
  EXPECT_TRUE(torch::equal(weight, weight_again));
}

TEST(Timelines, MergeSpans) {
  EXPECT_EQ(merged({{2, 3}, {0, 1}, {0.5, 1.5}}, 10), (std::vector<Interval>{{0, 1.5}, {2, 3}}));
  EXPECT_EQ(merged({{0, 1}, {1.1, 2}, {5, 6}, {9, 10}}, 3),
            (std::vector<Interval>{{0, 2}, {5, 6}, {9, 10}}));
  EXPECT_EQ(merged({}, 3), std::vector<Interval>{});
}

}  // namespace
}  // namespace lms::studies
