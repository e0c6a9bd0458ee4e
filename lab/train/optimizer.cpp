#include "lab/train/optimizer.h"

namespace lms::train {
namespace {

using torch::Tensor;

constexpr double kGrowth = 2.0;
constexpr double kBackoff = 0.5;

}  // namespace

OptimizerOptions optimizer_options(const Settings& settings, std::int64_t samples) {
  OptimizerOptions options;
  options.kind = settings.optimizer;
  options.lr = settings.lr;
  if (settings.lr_batch > 0) {
    options.lr *= static_cast<double>(samples) / settings.lr_batch;
  }
  options.momentum = settings.momentum;
  options.nesterov = settings.nesterov;
  options.weight_decay = settings.weight_decay;
  options.beta1 = settings.beta1;
  options.beta2 = settings.beta2;
  options.eps = settings.eps;
  return options;
}

Optimizer::Optimizer(OptimizerOptions options, std::vector<zoo::ParameterGroup> groups)
    : options_(std::move(options)) {
  const torch::NoGradGuard no_grad;
  const bool adam = options_.kind != "sgd";
  for (zoo::ParameterGroup& given : groups) {
    if (given.parameters.empty()) continue;
    Group group;
    group.rate_factor = given.rate_factor;
    group.parameters = std::move(given.parameters);
    for (const Tensor& parameter : group.parameters) {
      if (adam || options_.momentum != 0) group.first.push_back(torch::zeros_like(parameter));
      if (adam) group.second.push_back(torch::zeros_like(parameter));
    }
    if (adam) {
      group.steps =
          torch::zeros({}, torch::dtype(torch::kFloat32).device(group.parameters.front().device()));
    }
    groups_.push_back(std::move(group));
  }
}

void Optimizer::step(double factor, const Tensor& found_inf) {
  const torch::NoGradGuard no_grad;
  const auto stop = found_inf.defined() ? std::optional<Tensor>(found_inf) : std::nullopt;
  for (Group& group : groups_) {
    std::vector<Tensor> parameters;
    std::vector<Tensor> gradients;
    std::vector<Tensor> first;
    std::vector<Tensor> second;
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      Tensor gradient = group.parameters[i].grad();
      if (!gradient.defined()) continue;
      // Of sides of 1, autograd lets strides differ; the fused operators on CUDA do not.
      if (gradient.strides() != group.parameters[i].strides()) {
        gradient = torch::empty_like(group.parameters[i]).copy_(gradient);
      }
      parameters.push_back(group.parameters[i]);
      gradients.push_back(gradient);
      if (!group.first.empty()) first.push_back(group.first[i]);
      if (!group.second.empty()) second.push_back(group.second[i]);
    }
    if (parameters.empty()) continue;
    const double rate = options_.lr * factor * group.rate_factor;
    if (options_.kind == "sgd") {
      // The momentum starts as zeros, and so needs no first step of its own kind.
      at::_fused_sgd_(parameters, gradients, first, options_.weight_decay, options_.momentum, rate,
                      /*dampening=*/0, options_.nesterov, /*maximize=*/false,
                      /*is_first_step=*/false, {}, stop);
      continue;
    }
    if (found_inf.defined()) {
      group.steps += 1 - found_inf.reshape({});
    } else {
      group.steps += 1;
    }
    const std::vector<Tensor> steps(parameters.size(), group.steps);
    if (options_.kind == "adam") {
      at::_fused_adam_(parameters, gradients, first, second, {}, steps, rate, options_.beta1,
                       options_.beta2, options_.weight_decay, options_.eps, /*amsgrad=*/false,
                       /*maximize=*/false, {}, stop);
    } else {
      at::_fused_adamw_(parameters, gradients, first, second, {}, steps, rate, options_.beta1,
                        options_.beta2, options_.weight_decay, options_.eps, /*amsgrad=*/false,
                        /*maximize=*/false, {}, stop);
    }
  }
}

void Optimizer::zero_grad() {
  for (Group& group : groups_) {
    for (Tensor& parameter : group.parameters) parameter.mutable_grad() = Tensor();
  }
}

std::vector<Tensor> Optimizer::gradients() const {
  std::vector<Tensor> all;
  for (const Group& group : groups_) {
    for (const Tensor& parameter : group.parameters) {
      if (parameter.grad().defined()) all.push_back(parameter.grad());
    }
  }
  return all;
}

NamedTensors Optimizer::state() const {
  NamedTensors all;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::string prefix = std::to_string(g) + ".";
    const Group& group = groups_[g];
    for (std::size_t i = 0; i < group.first.size(); ++i) {
      all.emplace_back(prefix + "first." + std::to_string(i), group.first[i]);
    }
    for (std::size_t i = 0; i < group.second.size(); ++i) {
      all.emplace_back(prefix + "second." + std::to_string(i), group.second[i]);
    }
    if (group.steps.defined()) all.emplace_back(prefix + "steps", group.steps);
  }
  return all;
}

void clip_norm(const std::vector<Tensor>& gradients, double most) {
  if (gradients.empty()) return;
  const torch::NoGradGuard no_grad;
  const Tensor norm = torch::stack(at::_foreach_norm(gradients)).norm();
  at::_foreach_mul_(gradients, (most / (norm + 1e-6)).clamp_max(1.0));
}

LossScaler::LossScaler(const torch::Device& device, double scale, bool dynamic,
                       std::int64_t interval)
    : dynamic_(dynamic), interval_(interval) {
  const auto options = torch::dtype(torch::kFloat32).device(device);
  scale_ = torch::full({}, scale, options);
  growth_ = torch::zeros({}, options.dtype(torch::kInt32));
  found_inf_ = torch::zeros({}, options);
}

Tensor LossScaler::scaled(const Tensor& loss) const { return active() ? loss * scale_ : loss; }

Tensor LossScaler::unscale(const std::vector<Tensor>& gradients) {
  if (!active()) return {};
  const torch::NoGradGuard no_grad;
  found_inf_.zero_();
  const Tensor inverse = scale_.to(torch::kFloat64).reciprocal().to(torch::kFloat32);
  if (!gradients.empty()) {
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf_, inverse);
  }
  return found_inf_;
}

void LossScaler::update() {
  if (!active() || !dynamic_) return;
  const torch::NoGradGuard no_grad;
  at::_amp_update_scale_(scale_, growth_, found_inf_, kGrowth, kBackoff, interval_);
}

NamedTensors LossScaler::state() const {
  if (!active()) return {};
  return {{"scale", scale_}, {"growth", growth_}};
}

}  // namespace lms::train
