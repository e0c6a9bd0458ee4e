#include "lab/zoo/model.h"

#include "lab/zoo/deeplabv3plus.h"
#include "lab/zoo/googlenet.h"
#include "lab/zoo/gscnn.h"
#include "lab/zoo/resnet50.h"
#include "lab/zoo/unet3d.h"

namespace lms::zoo {
namespace {

struct Entry {
  const char* name;
  std::shared_ptr<Model> (*make)(const ModelOptions&);
};

template <typename Made>
std::shared_ptr<Model> make(const ModelOptions& options) {
  return std::make_shared<Made>(options);
}

constexpr Entry kModels[] = {
    {"resnet50", make<ResNet50>},
    {"googlenet", make<GoogLeNet>},
    {"deeplabv3plus", make<DeepLabV3Plus>},
    {"unet3d", make<UNet3d>},
    {"gscnn", make<GatedScnn>},
};

}  // namespace

torch::Tensor Model::predict(const std::vector<torch::Tensor>& outputs) {
  const torch::Tensor output = outputs.at(0).detach();
  switch (task()) {
    case Task::kClassification:
      return output.argmax(1);
    case Task::kSegmentation:
      return output.argmax(1).to(torch::kUInt8);
    case Task::kVolumes:
      return output.gt(0.5).to(torch::kUInt8);
  }
  TORCH_INTERNAL_ASSERT(false);
}

std::vector<ParameterGroup> Model::parameter_groups() {
  ParameterGroup all;
  for (const torch::Tensor& parameter : parameters()) {
    if (parameter.requires_grad()) all.parameters.push_back(parameter);
  }
  return {all};
}

std::shared_ptr<Model> make_model(const std::string& name, const ModelOptions& options) {
  std::string names;
  for (const Entry& entry : kModels) {
    if (name == entry.name) return entry.make(options);
    names += (names.empty() ? "" : ", ") + std::string(entry.name);
  }
  TORCH_CHECK_VALUE(false, "there is no model '", name, "'; there are: ", names);
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kModels) names.emplace_back(entry.name);
  return names;
}

}  // namespace lms::zoo
