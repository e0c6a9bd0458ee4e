#include "lab/studies/worker/workload.h"

#include "base/error.h"
#include "lab/studies/worker/offload.h"
#include "lab/train/state_file.h"

namespace lms::studies {
namespace {

constexpr double kEdgeShare = 0.05;

std::int64_t channels_of(const std::string& model) { return model == "unet3d" ? 4 : 3; }

zoo::Batch random_batch(const TrySpec& spec, const zoo::Model& model, const torch::Device& device) {
  const auto real = torch::TensorOptions().device(device).dtype(torch::kFloat32);
  const auto byte = real.dtype(torch::kUInt8);
  const std::int64_t classes = class_count(spec);
  std::vector<std::int64_t> plane = {spec.batch};
  plane.insert(plane.end(), spec.sides.begin(), spec.sides.end());
  std::vector<std::int64_t> shape = plane;
  shape.insert(shape.begin() + 1, channels_of(spec.model));
  zoo::Batch batch;
  batch.input = torch::randn(shape, real);
  switch (model.task()) {
    case zoo::Task::kClassification:
      batch.target = torch::randint(classes, {spec.batch}, real.dtype(torch::kInt64));
      break;
    case zoo::Task::kSegmentation:
      batch.target = torch::randint(classes, plane, byte);
      break;
    case zoo::Task::kVolumes:
      // Labels that can be learnt: a threshold of each of the first modalities.
      batch.target = batch.input.slice(1, 0, classes).gt(0.5).to(torch::kUInt8);
      break;
  }
  if (spec.model == "gscnn") {
    batch.extras.push_back(torch::zeros(plane, byte).bernoulli_(kEdgeShare));
  }
  return batch;
}

}  // namespace

train::Settings training_settings(const TrySpec& spec) {
  train::Settings settings;
  for (const std::string& pair : train::study_settings(spec.model)) {
    train::apply_override(settings, pair);
  }
  for (const auto& [name, value] : spec.training) train::set_key(settings, name, value);
  settings.model = spec.model;
  settings.batch = spec.batch;
  settings.precision = spec.precision;
  settings.device = spec.device;
  settings.threads = spec.threads;
  settings.seed = spec.seed;
  settings.deterministic = spec.deterministic ? "warn" : "false";
  settings.lms = "false";
  return settings;
}

std::int64_t class_count(const TrySpec& spec) {
  if (spec.classes > 0) return spec.classes;
  if (spec.model == "resnet50") return 1000;
  if (spec.model == "googlenet") return 1001;
  if (spec.model == "deeplabv3plus") return 21;
  return spec.model == "unet3d" ? 3 : 19;
}

Workload::Workload(const TrySpec& spec, const train::Settings& settings,
                   const train::Machine& machine, std::int64_t host_budget)
    : offload_(spec.method == "save_on_cpu"), host_budget_(host_budget), machine_(machine) {
  zoo::ModelOptions options;
  options.classes = class_count(spec);
  options.deterministic = spec.deterministic;
  options.checkpoint = spec.method == "checkpoint";
  options.variants = spec.variants;
  model_ = zoo::make_model(spec.model, options);
  for (const std::int64_t side : spec.sides) {
    if (side <= 0 || side % model_->side_divisor() != 0) {
      throw BadSetting("sides: " + spec.model + " wants multiples of " +
                       std::to_string(model_->side_divisor()));
    }
  }
  model_->to(machine.device());
  model_->train();
  optimizer_.emplace(train::optimizer_options(settings, settings.batch),
                     model_->parameter_groups());
  if (settings.precision == "fp16") {
    const bool dynamic = settings.loss_scale == "dynamic";
    constexpr double kFirstScale = 65536;
    scaler_ = train::LossScaler(machine.device(),
                                dynamic ? kFirstScale : std::stod(settings.loss_scale), dynamic);
  }
  batch_ = random_batch(spec, *model_, machine.device());
  loss_ = torch::empty({}, torch::dtype(torch::kFloat32).pinned_memory(machine.device().is_cuda()));
}

void Workload::step() {
  torch::Tensor loss;
  {
    const train::Autocast autocast(machine_);
    std::optional<OffloadScope> offload;
    if (offload_) offload.emplace(host_budget_);
    loss = model_->loss(model_->forward(batch_.input), batch_);
  }
  scaler_.scaled(loss).backward();
  loss = loss.detach();
  const torch::Tensor found_inf = scaler_.unscale(optimizer_->gradients());
  optimizer_->step(1, found_inf);
  scaler_.update();
  optimizer_->zero_grad();
  // In every step, so that all are alike, as plans want.
  loss_.copy_(loss, /*non_blocking=*/true);
}

double Workload::loss() const { return *loss_.const_data_ptr<float>(); }

std::string Workload::fingerprint() const {
  train::NamedTensors all;
  for (const auto& each : model_->named_parameters()) all.emplace_back(each.key(), each.value());
  return train::fingerprint(all);
}

}  // namespace lms::studies
