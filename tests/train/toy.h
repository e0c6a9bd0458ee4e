#pragma once

// A model of a few weights, with what makes resuming hard: dropout, batch normalisation, two rates.

#include <ftw.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lab/datasets/augment.h"
#include "lab/datasets/open.h"
#include "lab/datasets/wrap.h"
#include "lab/train/parts.h"
#include "lab/train/settings.h"
#include "lab/zoo/model.h"

namespace lms::train::testing {

class Toy : public zoo::Model {
 public:
  explicit Toy(std::int64_t classes)
      : body_(register_module(
            "body", torch::nn::Sequential(
                        torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)),
                        torch::nn::BatchNorm2d(8), torch::nn::ReLU(), torch::nn::Dropout(0.3)))),
        head_(register_module("head", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, classes, 1)))) {
  }
  [[nodiscard]] zoo::Task task() const override { return zoo::Task::kSegmentation; }
  std::vector<torch::Tensor> forward(const torch::Tensor& input) override {
    return {head_(body_->forward(input))};
  }
  torch::Tensor loss(const std::vector<torch::Tensor>& outputs, const zoo::Batch& batch) override {
    return torch::nn::functional::cross_entropy(
        outputs[0].to(torch::kFloat32), batch.target.to(torch::kInt64),
        torch::nn::functional::CrossEntropyFuncOptions().ignore_index(255));
  }
  std::vector<zoo::ParameterGroup> parameter_groups() override {
    return {{body_->parameters(), 1}, {head_->parameters(), 10}};
  }

 private:
  torch::nn::Sequential body_;
  torch::nn::Conv2d head_;
};

/// Not std::filesystem::remove_all: PyTorch's libraries export one of another libstdc++, which
/// faults.
inline void remove_tree(const std::string& path) {
  ::nftw(
      path.c_str(),
      [](const char* each, const struct stat*, int, struct FTW*) { return std::remove(each); }, 16,
      FTW_DEPTH | FTW_PHYS);
}

/// A folder of its own, removed in the end.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "lms-train-test-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { remove_tree(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline Settings toy_settings(const std::string& out, const std::vector<std::string>& more = {}) {
  Settings settings;
  for (const char* text :
       {"model=toy", "data=synthetic:", "device=cpu", "lr=0.05", "batch=2", "steps=14", "workers=2",
        "progress=quiet", "weight_decay=1e-4", "threads=1", "val_every=1", "plan_cache=off"}) {
    apply_override(settings, text);
  }
  settings.out = out;
  settings.classes = 3;
  for (const std::string& text : more) apply_override(settings, text);
  return settings;
}

inline Parts toy_parts() {
  Parts parts;
  parts.model = std::make_shared<Toy>(3);
  const auto make = [](const std::string& split) {
    return data::transformed(
        data::open_dataset("synthetic:?size=16&classes=3&count=10&split=" + split),
        {data::random_scale_crop(0.5, 2, 12, 12), data::random_flip()});
  };
  parts.train = make("train");
  parts.val = make("val");
  return parts;
}

}  // namespace lms::train::testing
