#pragma once

// Block checkpointing, as users write it by hand: a block keeps its inputs alone, and is run again
// in the backward pass.

#include <torch/torch.h>

#include <functional>
#include <vector>

namespace lms::zoo {

/// A part of a model, from tensors to one tensor. It must not change its inputs, and outlive the
/// backward pass with all that it refers to.
using Block = std::function<torch::Tensor(const std::vector<torch::Tensor>&)>;

/// block(inputs). With `on`, and where gradients are recorded, what the block saves for its
/// gradient is forgotten, and computed again when the gradient comes, from the same random numbers
/// and under the same autocast. Results and gradients have the same bits, but that gradients of an
/// input which others use, too, are added in another order; the statistics of batch norm see the
/// batch twice.
torch::Tensor run_block(bool on, const Block& block, const std::vector<torch::Tensor>& inputs);

/// The same for a module with forward(Tensor).
template <typename Module>
torch::Tensor run_block(bool on, const std::shared_ptr<Module>& module,
                        const torch::Tensor& input) {
  if (!on) return module->forward(input);
  return run_block(on,
                   [held = module.get()](const std::vector<torch::Tensor>& inputs) {
                     return held->forward(inputs[0]);
                   },
                   {input});
}

}  // namespace lms::zoo
