#include "zoo/procedural.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

namespace lms::zoo::test {
namespace {

constexpr double kTolerance = 1e-4;    // in float32
constexpr double kTolerance64 = 1e-6;  // in float64
constexpr double kRounding = 1e-2;     // of the tolerance, for gradients that are zero but for it

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

double gain_of(const std::string& parameter) {
  if (ends_with(parameter, "fuse.weight")) return 8;
  for (const char* end : {".bn3.weight", ".rep.7.weight", ".rep.8.weight", ".convs.conv2.weight",
                          ".convs.conv3.weight"}) {
    if (ends_with(parameter, end)) return 0.25;
  }
  return 1;
}

torch::Tensor of_output(const torch::Tensor& tensor) {
  return tensor.detach().to(torch::kFloat64).reshape({-1});
}

void expect_output(const nlohmann::json& golden, const torch::Tensor& output, double tolerance) {
  EXPECT_EQ(golden.at("shape").get<std::vector<std::int64_t>>(), output.sizes().vec());
  const torch::Tensor flat = of_output(output);
  const double norm = golden.at("norm");
  EXPECT_NEAR(flat.norm().item<double>(), norm, tolerance * norm);
  EXPECT_NEAR(flat.dot(uniform("output", flat.numel())).item<double>(), golden.at("projection"),
              tolerance * norm);
  const auto values = golden.at("values").get<std::vector<double>>();
  const auto picks = static_cast<std::int64_t>(values.size());
  const double typical = norm / std::sqrt(static_cast<double>(flat.numel()));
  for (std::int64_t i = 0; i < picks; ++i) {
    EXPECT_NEAR(flat[i * (flat.numel() - 1) / (picks - 1)].item<double>(), values[i],
                tolerance * (typical + std::abs(values[i])));
  }
}

void expect_gradients(const nlohmann::json& golden, torch::nn::Module& model, double relative) {
  double all = 0;
  for (const auto& numbers : golden) all = std::hypot(all, numbers.at(0).get<double>());
  std::size_t seen = 0;
  double worst = 0;
  for (const auto& item : model.named_parameters()) {
    const torch::Tensor& gradient = item.value().grad();
    const auto found = golden.find(item.key());
    EXPECT_EQ(gradient.defined(), found != golden.end()) << item.key();
    if (!gradient.defined() || found == golden.end()) continue;
    ++seen;
    const torch::Tensor flat = of_output(gradient);
    const double norm = found->at(0);
    const double tolerance = relative * (norm + kRounding * all);
    const double at_norm = flat.norm().item<double>() - norm;
    const double at_projection =
        flat.dot(uniform("projection:" + item.key(), flat.numel())).item<double>() -
        found->at(1).get<double>();
    EXPECT_NEAR(at_norm, 0, tolerance) << item.key() << ", whose gradient's norm is " << norm;
    EXPECT_NEAR(at_projection, 0, tolerance) << item.key() << ", whose norm is " << norm;
    worst = std::max({worst, std::abs(at_norm) / tolerance, std::abs(at_projection) / tolerance});
  }
  EXPECT_EQ(seen, golden.size());
  std::printf("             largest error of a gradient: %.1e\n", worst * relative);
}

void expect_counts(const nlohmann::json& golden, const torch::nn::Module& model) {
  std::map<std::string, std::int64_t> modules;
  std::int64_t all = 0;
  for (const auto& item : model.named_parameters()) {
    modules[item.key().substr(0, item.key().find('.'))] += item.value().numel();
    all += item.value().numel();
  }
  EXPECT_EQ(all, golden.at("parameters").get<std::int64_t>());
  EXPECT_EQ(modules, (golden.at("modules").get<std::map<std::string, std::int64_t>>()));
}

}  // namespace

torch::Tensor uniform(const std::string& name, std::int64_t count) {
  std::uint32_t seed = 2166136261U;
  for (const char c : name) seed = (seed ^ static_cast<unsigned char>(c)) * 16777619U;
  torch::Tensor values = torch::empty({count}, torch::kFloat64);
  auto* out = values.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t x = static_cast<std::uint32_t>(i) * 0x9E3779B9U + seed;
    x ^= x >> 16;
    x *= 0x7FEB352DU;
    x ^= x >> 15;
    x *= 0x846CA68BU;
    x ^= x >> 16;
    out[i] = static_cast<double>(x >> 8) * 0x1p-23 - 1.0;
  }
  return values;
}

torch::Tensor picture(torch::IntArrayRef shape) {
  return (uniform("input", c10::multiply_integers(shape)) * 2).to(torch::kFloat32).view(shape);
}

torch::Tensor classes(std::int64_t count, std::int64_t classes) {
  return ((uniform("classes", count) + 1) / 2 * classes).floor().to(torch::kInt64);
}

torch::Tensor labels(torch::IntArrayRef shape, std::int64_t classes) {
  const std::int64_t count = c10::multiply_integers(shape);
  const torch::Tensor ids = ((uniform("labels", count) + 1) / 2 * classes).floor();
  return ids.masked_fill(uniform("ignored", count).gt(0.8), 255).to(torch::kUInt8).view(shape);
}

torch::Tensor binary(const std::string& name, torch::IntArrayRef shape) {
  return uniform(name, c10::multiply_integers(shape)).gt(0.5).to(torch::kUInt8).view(shape);
}

void fill(torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  for (auto& item : model.named_parameters()) {
    torch::Tensor& parameter = item.value();
    torch::Tensor values = uniform(item.key(), parameter.numel());
    const double gain = gain_of(item.key());
    if (parameter.dim() > 1) {
      const std::int64_t fan_in = parameter.numel() / parameter.size(0);
      values *= gain * std::sqrt(6.0 / static_cast<double>(fan_in));
    } else if (ends_with(item.key(), "bias")) {
      values *= 0.1;
    } else {
      values = (1 + values * 0.25) * gain;
    }
    parameter.copy_(values.view(parameter.sizes()));
  }
}

nlohmann::json load_golden(const std::string& name) {
  const char* other = std::getenv("LMS_ZOO_GOLDENS");
  const std::string folder = other != nullptr ? other : LMS_ZOO_GOLDENS;
  const std::string path = folder + "/" + name + ".json";
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path);
  return nlohmann::json::parse(file);
}

std::shared_ptr<Model> model_of(const nlohmann::json& golden, bool deterministic) {
  ModelOptions options;
  options.classes = golden.value("classes", 0);
  options.deterministic = deterministic;
  options.variants = golden.at("variants").get<std::map<std::string, std::string>>();
  const std::string name = golden.at("model");
  const bool drops = name != "resnet50" && name != "googlenet";
  if (drops) options.variants["dropout"] = "off";
  auto model = make_model(name, options);
  fill(*model);
  model->train();
  return model;
}

Batch batch_of(const nlohmann::json& golden, Task task) {
  const auto shape = golden.at("input").get<std::vector<std::int64_t>>();
  const auto classes_of = [&](std::int64_t own) { return golden.value("classes", own); };
  Batch batch;
  batch.input = picture(shape);
  switch (task) {
    case Task::kClassification:
      batch.target = classes(shape[0], classes_of(1001));
      break;
    case Task::kSegmentation: {
      const bool gated = golden.at("model") == "gscnn";
      batch.target = labels({shape[0], shape[2], shape[3]}, gated ? 19 : 21);
      if (gated) batch.extras = {binary("edges", {shape[0], shape[2], shape[3]})};
      break;
    }
    case Task::kVolumes:
      batch.target = binary("labels", {shape[0], 3, shape[2], shape[3], shape[4]});
      break;
  }
  return batch;
}

void expect_golden(const std::string& name, bool deterministic) {
  torch::set_num_threads(1);  // small work, and other tests run beside it
  const nlohmann::json golden = load_golden(name);
  const auto model = model_of(golden, deterministic);
  expect_counts(golden, *model);
  Batch batch = batch_of(golden, model->task());
  const double expected = golden.at("loss");
  const auto expect_forward = [&](double tolerance) {
    torch::manual_seed(11);  // Gated-SCNN's loss draws noise
    const auto outputs = model->forward(batch.input);
    EXPECT_EQ(outputs.size(), golden.at("outputs").size());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      expect_output(golden.at("outputs")[i], outputs[i], tolerance);
    }
    torch::Tensor loss = model->loss(outputs, batch);
    EXPECT_EQ(loss.scalar_type(), batch.input.scalar_type());
    EXPECT_NEAR(loss.item<double>(), expected, tolerance * std::abs(expected));
    return loss;
  };

  double tolerance = kTolerance;
  if (golden.at("type") == "float64") {
    {
      const torch::NoGradGuard no_grad;
      expect_forward(tolerance);
    }
    model->to(torch::kFloat64);
    batch.input = batch.input.to(torch::kFloat64);
    tolerance = kTolerance64;
  }
  expect_forward(tolerance).backward();
  expect_gradients(golden.at("gradients"), *model, tolerance);
}

}  // namespace lms::zoo::test
