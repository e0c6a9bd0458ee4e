#pragma once

// SGD and Adam(W) by PyTorch's fused operators: a few kernels for all weights, and a step that the
// device itself leaves out where gradients have overflowed, without asking the host.

#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "lab/train/settings.h"
#include "lab/zoo/model.h"

namespace lms::train {

struct OptimizerOptions {
  std::string kind = "sgd";  ///< sgd, adam, adamw
  double lr = 0.01;
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
};

/// As the settings say; `samples`: of a step, to which the learning rate is scaled if they say so.
OptimizerOptions optimizer_options(const Settings& settings, std::int64_t samples);

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

/// The arithmetic is that of torch.optim.SGD (dampening 0), Adam and AdamW.
class Optimizer {
 public:
  /// State tensors are made at once, on the parameters' devices.
  Optimizer(OptimizerOptions options, std::vector<zoo::ParameterGroup> groups);

  /// One step on the gradients as they are, at `factor` × lr × the group's factor. Parameters
  /// without a gradient stay as they are. Where `found_inf` (of one float) is 1, nothing changes.
  void step(double factor, const torch::Tensor& found_inf = {});

  /// Drops the gradients.
  void zero_grad();

  /// All gradients that there are.
  [[nodiscard]] std::vector<torch::Tensor> gradients() const;

  /// The tensors of the state, to be saved, or copied into.
  [[nodiscard]] NamedTensors state() const;

 private:
  struct Group {
    std::vector<torch::Tensor> parameters;
    double rate_factor = 1;
    std::vector<torch::Tensor> first;   ///< momentum; of Adam, the mean of the gradients
    std::vector<torch::Tensor> second;  ///< of Adam, the mean of their squares
    torch::Tensor steps;                ///< of Adam: taken so far
  };

  OptimizerOptions options_;
  std::vector<Group> groups_;
};

/// Scales the gradients such that their norm over all is at most `most`.
void clip_norm(const std::vector<torch::Tensor>& gradients, double most);

/// Loss scaling for fp16. All of it stays on the device.
class LossScaler {
 public:
  /// Off.
  LossScaler() = default;
  /// With a constant scale; or a dynamic one, which halves when a gradient overflows, and doubles
  /// after `interval` steps in which none has.
  LossScaler(const torch::Device& device, double scale, bool dynamic, std::int64_t interval = 2000);

  [[nodiscard]] bool active() const { return scale_.defined(); }
  [[nodiscard]] torch::Tensor scaled(const torch::Tensor& loss) const;
  /// Takes the scale off the gradients. Returns what Optimizer::step() wants: 1 where one of them
  /// is not finite; undefined where scaling is off.
  torch::Tensor unscale(const std::vector<torch::Tensor>& gradients);
  /// After the step.
  void update();

  [[nodiscard]] NamedTensors state() const;

 private:
  torch::Tensor scale_;
  torch::Tensor growth_;
  torch::Tensor found_inf_;
  bool dynamic_ = false;
  std::int64_t interval_ = 2000;
};

}  // namespace lms::train
