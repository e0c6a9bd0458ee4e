#pragma once

// A model of the studies: a module with its loss and its prediction. What each model is: the page
// of its header. Sources: torchvision's ResNet (He et al. 2015), GoogLeNet (Szegedy et al. 2014),
// DeepLabv3+ (Chen et al. 2018), 3D U-Net (Isensee et al. 2017), Gated-SCNN (Takikawa et al. 2019).

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace lms::zoo {

/// What a loss may need of a batch, on the device of the model.
struct Batch {
  torch::Tensor input;   ///< float, N×C×H×W or N×C×D×H×W
  torch::Tensor target;  ///< classification: long N. Segmentation: uint8 N×H×W, 255 is ignored.
                         ///< Volumes: uint8 N×L×D×H×W of 0 and 1
  std::vector<torch::Tensor> extras;  ///< as the model's header says
};

/// What the outputs are to be compared with, and measured by.
enum class Task {
  kClassification,  ///< outputs[0]: N×classes
  kSegmentation,    ///< outputs[0]: N×classes×H×W
  kVolumes,         ///< outputs[0]: N×labels×D×H×W, after a sigmoid
};

struct ModelOptions {
  std::int64_t classes = 0;   ///< classes or labels; 0: the model's own
  std::int64_t channels = 0;  ///< of the input; 0: the model's own
  /// Formulations whose kernels give the same bits in every run.
  bool deterministic = false;
  /// The repeating blocks keep their inputs alone, and are run again in the backward pass: see
  /// checkpoint.h.
  bool checkpoint = false;
  /// What only some models have, such as {"output_stride", "8"}: see their headers. An unknown name
  /// or value is an error.
  std::map<std::string, std::string> variants = {};
};

struct ParameterGroup {
  std::vector<torch::Tensor> parameters;
  double rate_factor = 1;  ///< times the learning rate
};

/// Not thread-safe, as any module. Errors: c10::ValueError, for shapes that the model cannot take.
class Model : public torch::nn::Module {
 public:
  [[nodiscard]] virtual Task task() const = 0;
  virtual std::vector<torch::Tensor> forward(const torch::Tensor& input) = 0;
  /// A scalar, in float32 whatever autocast does. Under train() and eval() alike.
  virtual torch::Tensor loss(const std::vector<torch::Tensor>& outputs, const Batch& batch) = 0;
  /// Class ids (uint8; long for classification), or 0 and 1 (uint8) of every label.
  virtual torch::Tensor predict(const std::vector<torch::Tensor>& outputs);
  /// Every parameter that requires a gradient, once.
  virtual std::vector<ParameterGroup> parameter_groups();
  /// The sides (H, W or D, H, W) of the input are to be divisible by this.
  [[nodiscard]] virtual std::int64_t side_divisor() const { return 1; }
};

/// Parameters are initialised from PyTorch's default generator. Throws c10::ValueError for an
/// unknown name or option, naming those that there are.
std::shared_ptr<Model> make_model(const std::string& name, const ModelOptions& options = {});

/// "resnet50", "googlenet", "deeplabv3plus", "unet3d", "gscnn".
std::vector<std::string> model_names();

}  // namespace lms::zoo
