#include "lab/zoo/checkpoint.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include <utility>

namespace lms::zoo {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The default generators of the CPU and of a device, as they are when this is made.
class Generators {
 public:
  explicit Generators(const torch::Device& device) {
    add(torch::kCPU);
    if (!device.is_cpu()) add(device);
  }

  void restore() const {
    for (const auto& [generator, state] : states_) {
      at::Generator target = generator;
      const std::lock_guard<std::mutex> lock(target.mutex());
      target.set_state(state);
    }
  }

 private:
  void add(const torch::Device& device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
  }

  std::vector<std::pair<at::Generator, Tensor>> states_;
};

/// How the forward pass ran, for running it again on another thread.
struct Again : torch::CustomClassHolder {
  Again(Block run, const torch::Device& on)
      : block(std::move(run)),
        device(on),
        generators(on),
        autocast(at::autocast::is_autocast_enabled(on.type())),
        autocast_type(at::autocast::get_autocast_dtype(on.type())) {}

  Block block;
  torch::Device device;
  Generators generators;
  bool autocast;
  torch::ScalarType autocast_type;
};

/// Casts are not kept while it lives.
class NoCastCache {
 public:
  NoCastCache() : was_on_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~NoCastCache() { at::autocast::set_autocast_cache_enabled(was_on_); }
  NoCastCache(const NoCastCache&) = delete;
  NoCastCache& operator=(const NoCastCache&) = delete;

 private:
  bool was_on_;
};

/// Generators of an earlier moment for a scope.
class GeneratorsAgain {
 public:
  GeneratorsAgain(const Generators& then, const torch::Device& device) : now_(device) {
    then.restore();
  }
  ~GeneratorsAgain() { now_.restore(); }
  GeneratorsAgain(const GeneratorsAgain&) = delete;
  GeneratorsAgain& operator=(const GeneratorsAgain&) = delete;

 private:
  Generators now_;
};

/// Autocast as it was, without the cache of casts: what the forward pass put there has no gradient.
class AutocastAgain {
 public:
  explicit AutocastAgain(const Again& was)
      : type_(was.device.type()),
        on_(at::autocast::is_autocast_enabled(type_)),
        dtype_(at::autocast::get_autocast_dtype(type_)) {
    at::autocast::set_autocast_enabled(type_, was.autocast);
    at::autocast::set_autocast_dtype(type_, was.autocast_type);
  }
  ~AutocastAgain() {
    at::autocast::set_autocast_dtype(type_, dtype_);
    at::autocast::set_autocast_enabled(type_, on_);
  }
  AutocastAgain(const AutocastAgain&) = delete;
  AutocastAgain& operator=(const AutocastAgain&) = delete;

 private:
  c10::DeviceType type_;
  bool on_;
  torch::ScalarType dtype_;
  NoCastCache no_cache_;
};

class Checkpoint : public torch::autograd::Function<Checkpoint> {
 public:
  /// `anchor` requires a gradient, so that the block's result does, whatever its inputs are.
  static Tensor forward(AutogradContext* context, const Tensor& /*anchor*/, const Block& block,
                        at::TensorList inputs) {
    auto again = c10::make_intrusive<Again>(block, inputs.at(0).device());
    context->saved_data["again"] = c10::IValue::make_capsule(again);
    context->save_for_backward(inputs.vec());
    // Casts of weights that are made here, without a gradient, are nobody else's.
    const NoCastCache no_cache;
    return block(inputs.vec());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto held = context->saved_data["again"].toCapsule();
    const auto& again = static_cast<const Again&>(*held);
    variable_list inputs;
    for (const Tensor& saved : context->get_saved_variables()) {
      inputs.push_back(saved.detach().set_requires_grad(saved.requires_grad()));
    }
    Tensor output;
    {
      const torch::AutoGradMode recorded(true);
      const AutocastAgain autocast(again);
      const GeneratorsAgain generators(again.generators, again.device);
      output = again.block(inputs);
    }
    torch::autograd::backward({output}, {gradients.at(0)});
    variable_list result = {{}, {}};  // of the anchor, and of the block
    for (const Tensor& input : inputs) result.push_back(input.grad());
    return result;
  }
};

}  // namespace

Tensor run_block(bool on, const Block& block, const std::vector<Tensor>& inputs) {
  if (!on || !torch::GradMode::is_enabled()) return block(inputs);
  const Tensor anchor = torch::empty({0}, torch::requires_grad());
  return Checkpoint::apply(anchor, block, at::TensorList(inputs));
}

}  // namespace lms::zoo
