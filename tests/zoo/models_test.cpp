// Options, errors and the parts of the contract that all models share.

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <set>

#include "zoo/procedural.h"

namespace lms::zoo::test {
namespace {

std::int64_t count(const torch::nn::Module& model, const std::string& prefix = "") {
  std::int64_t all = 0;
  for (const auto& item : model.named_parameters()) {
    if (item.key().rfind(prefix, 0) == 0) all += item.value().numel();
  }
  return all;
}

template <typename Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

void expect_error(const std::string& error, std::initializer_list<const char*> parts) {
  for (const char* part : parts) EXPECT_NE(error.find(part), std::string::npos) << error;
}

ModelOptions with(std::map<std::string, std::string> variants) {
  ModelOptions options;
  options.variants = std::move(variants);
  return options;
}

TEST(ZooModels, Names) {
  EXPECT_EQ(model_names(), (std::vector<std::string>{"resnet50", "googlenet", "deeplabv3plus",
                                                     "unet3d", "gscnn"}));
  expect_error(error_of([] { make_model("resnet51"); }), {"resnet51", "resnet50", "gscnn"});
}

TEST(ZooModels, UnknownVariantsAndValues) {
  expect_error(error_of([] {
                 make_model("googlenet", with({{"dropout", "off"}}));
               }),
               {"googlenet", "dropout", "none"});
  expect_error(error_of([] {
                 make_model("unet3d", with({{"norms", "fused"}}));
               }),
               {"unet3d", "norms", "dropout, norm, padding"});
  expect_error(error_of([] {
                 make_model("deeplabv3plus", with({{"output_stride", "32"}}));
               }),
               {"output_stride", "'32'", "16, 8"});
  ModelOptions negative;
  negative.classes = -1;
  expect_error(error_of([&] { make_model("unet3d", negative); }), {"unet3d", "classes", "-1"});
}

TEST(ZooModels, ResNet50OfImageNet) {
  const auto model = make_model("resnet50");
  EXPECT_EQ(count(*model), 25557032);
  EXPECT_EQ(model->task(), Task::kClassification);
  EXPECT_EQ(model->side_divisor(), 1);
  const auto names = model->named_parameters();
  EXPECT_TRUE(names.contains("layer4.0.downsample.1.weight"));
  EXPECT_TRUE(model->named_buffers().contains("layer3.5.bn2.running_mean"));
  expect_error(error_of([&] {
                 model->forward(torch::zeros({1, 4, 32, 32}));
               }),
               {"resnet50", "[1, 4, 32, 32]", "3×H×W"});
  expect_error(error_of([&] {
                 model->forward(torch::zeros({1, 3, 32, 32}, torch::kUInt8));
               }),
               {"floating point"});
  model->eval();
  const torch::NoGradGuard no_grad;
  const auto outputs = model->forward(picture({2, 3, 33, 40}));
  const torch::Tensor ids = model->predict(outputs);
  EXPECT_EQ(ids.sizes(), torch::IntArrayRef({2}));
  EXPECT_EQ(ids.scalar_type(), torch::kInt64);
  Batch batch;
  batch.target = torch::zeros({3}, torch::kInt64);
  expect_error(error_of([&] { model->loss(outputs, batch); }), {"target", "[3]", "[2]"});
}

TEST(ZooModels, DeepLabV3Plus) {
  ModelOptions options;
  options.classes = 11;
  const auto model = make_model("deeplabv3plus", options);
  EXPECT_EQ(count(*model, "backbone."), 37867312);
  EXPECT_EQ(count(*model, "aspp."), 15535104);
  EXPECT_EQ(count(*model, "decoder."), 1302901 - 10 * 257);
  EXPECT_TRUE(model->named_parameters().contains("backbone.block20.rep.7.pointwise.weight"));

  const auto groups = model->parameter_groups();
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].rate_factor, 1);
  EXPECT_EQ(groups[1].rate_factor, 10);
  std::set<const void*> seen;
  std::int64_t grouped = 0;
  for (const ParameterGroup& group : groups) {
    for (const torch::Tensor& parameter : group.parameters) {
      seen.insert(parameter.unsafeGetTensorImpl());
      ++grouped;
    }
  }
  EXPECT_EQ(grouped, static_cast<std::int64_t>(model->parameters().size()));
  EXPECT_EQ(seen.size(), model->parameters().size());

  expect_error(error_of([&] { model->forward(torch::zeros({1, 3, 33, 33})); }), {"batch of one"});
  model->eval();
  const torch::NoGradGuard no_grad;
  const auto outputs = model->forward(picture({1, 3, 33, 50}));
  EXPECT_EQ(outputs[0].sizes(), torch::IntArrayRef({1, 11, 33, 50}));
  const torch::Tensor ids = model->predict(outputs);
  EXPECT_EQ(ids.sizes(), torch::IntArrayRef({1, 33, 50}));
  EXPECT_EQ(ids.scalar_type(), torch::kUInt8);
  Batch batch;
  batch.target = labels({1, 33, 49}, 11);
  expect_error(error_of([&] { model->loss(outputs, batch); }), {"target", "[1, 33, 49]"});
}

TEST(ZooModels, DeepLabV3PlusReleasedLossIsDividedByTheBatch) {
  const torch::Tensor scores = picture({2, 21, 5, 6});
  Batch batch;
  batch.target = labels({2, 5, 6}, 21);
  const auto mean = make_model("deeplabv3plus");
  const auto released = make_model("deeplabv3plus", with({{"loss", "released"}}));
  EXPECT_NEAR(mean->loss({scores}, batch).item<double>(),
              2 * released->loss({scores}, batch).item<double>(), 1e-5);
}

TEST(ZooModels, UNet3d) {
  const auto model = make_model("unet3d");
  EXPECT_EQ(count(*model), 8269561);
  EXPECT_EQ(model->side_divisor(), 16);
  expect_error(error_of([&] {
                 model->forward(torch::zeros({1, 4, 16, 24, 16}));
               }),
               {"[1, 4, 16, 24, 16]", "divisible by 16"});

  // Dropout draws anew in training, not in evaluation.
  const torch::Tensor input = picture({1, 4, 16, 16, 16});
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(model->forward(input)[0].equal(model->forward(input)[0]));
  model->eval();
  const auto outputs = model->forward(input);
  EXPECT_TRUE(outputs[0].equal(model->forward(input)[0]));
  const torch::Tensor present = model->predict(outputs);
  EXPECT_EQ(present.sizes(), torch::IntArrayRef({1, 3, 16, 16, 16}));
  EXPECT_EQ(present.scalar_type(), torch::kUInt8);
  EXPECT_TRUE(present.eq(1).equal(outputs[0].gt(0.5)));
}

TEST(ZooModels, UNet3dPaddingsAreMirrorImages) {
  const auto symmetric = make_model("unet3d", with({{"dropout", "off"}}));
  const auto same = make_model("unet3d", with({{"dropout", "off"}, {"padding", "same"}}));
  fill(*symmetric);
  const torch::NoGradGuard no_grad;
  const std::vector<std::int64_t> axes = {2, 3, 4};
  for (const auto& item : symmetric->named_parameters()) {
    const torch::Tensor& from = item.value();
    same->named_parameters()[item.key()].copy_(from.dim() > 1 ? from.flip(axes) : from);
  }
  const torch::Tensor input = picture({1, 4, 16, 16, 16});
  const torch::Tensor expected = symmetric->forward(input)[0];
  EXPECT_LT((same->forward(input.flip(axes))[0].flip(axes) - expected).abs().max().item<double>(),
            1e-4);
}

TEST(ZooModels, GatedScnn) {
  ModelOptions options = with({{"canny", "image"}, {"edge_loss", "paper"}, {"dual_task", "paper"}});
  options.classes = 5;
  const auto model = make_model("gscnn", options);
  EXPECT_EQ(count(*model), 137278190 - 14 * 256);
  EXPECT_EQ(count(*model, "dsn1."), 65);
  expect_error(error_of([&] { model->forward(torch::zeros({1, 3, 16, 16})); }), {"batch of one"});
  model->eval();
  const torch::NoGradGuard no_grad;
  const auto outputs = model->forward(picture({1, 3, 21, 26}));
  ASSERT_EQ(outputs.size(), 2U);
  EXPECT_EQ(outputs[0].sizes(), torch::IntArrayRef({1, 5, 21, 26}));
  EXPECT_EQ(outputs[1].sizes(), torch::IntArrayRef({1, 1, 21, 26}));
  EXPECT_TRUE(outputs[1].ge(0).logical_and(outputs[1].le(1)).all().item<bool>());
  EXPECT_EQ(model->predict(outputs).sizes(), torch::IntArrayRef({1, 21, 26}));
  Batch batch;
  batch.target = labels({1, 21, 26}, 5);
  expect_error(error_of([&] { model->loss(outputs, batch); }), {"extras[0]", "edges"});
  batch.extras = {binary("edges", {1, 21, 25})};
  expect_error(error_of([&] { model->loss(outputs, batch); }), {"edge map", "[1, 21, 25]"});
  batch.extras = {binary("edges", {1, 21, 26})};
  EXPECT_TRUE(model->loss(outputs, batch).isfinite().item<bool>());
  options.classes = 256;
  expect_error(error_of([&] { make_model("gscnn", options); }), {"256", "at most 255"});
}

/// bfloat16 on the CPU for a scope, whatever is thrown in it.
class CpuAutocast {
 public:
  CpuAutocast() { at::autocast::set_autocast_enabled(at::kCPU, true); }
  ~CpuAutocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  CpuAutocast(const CpuAutocast&) = delete;
  CpuAutocast& operator=(const CpuAutocast&) = delete;
};

/// On some processors oneDNN's gradient of the weights of a convolution over few voxels, in
/// bfloat16, is not finite now and then: as if it read memory that nobody has written.
class WithoutOneDnn {
 public:
  WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(false); }
  ~WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(true); }
  WithoutOneDnn(const WithoutOneDnn&) = delete;
  WithoutOneDnn& operator=(const WithoutOneDnn&) = delete;
};

TEST(ZooModels, AutocastTrainsAndLosesInFloat32) {
  const WithoutOneDnn without;
  const auto model = make_model("unet3d", with({{"dropout", "off"}}));
  fill(*model);  // the same weights whatever other tests have drawn
  Batch batch;
  batch.input = picture({1, 4, 16, 16, 16});
  batch.target = binary("labels", {1, 3, 16, 16, 16});
  const double expected = model->loss(model->forward(batch.input), batch).item<double>();
  std::vector<torch::Tensor> outputs;
  torch::Tensor loss;
  {
    const CpuAutocast autocast;
    outputs = model->forward(batch.input);
    loss = model->loss(outputs, batch);
  }
  EXPECT_EQ(outputs[0].scalar_type(), torch::kBFloat16);
  EXPECT_EQ(loss.scalar_type(), torch::kFloat32);
  EXPECT_NEAR(loss.item<double>(), expected, 1e-3);
  loss.backward();
  for (const auto& item : model->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
  }
}

}  // namespace
}  // namespace lms::zoo::test
