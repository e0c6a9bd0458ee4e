#include "adapters/torch/operators/draws.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <mutex>
#include <utility>

namespace lms::torch {
namespace {

at::Generator clone_of(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.clone();
}

/// What go_on() makes the generator go on from.
at::Generator state_of(at::Generator generator) {
  if (!generator.device().is_cuda()) return clone_of(std::move(generator));
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.graphsafe_get_state();
}

/// Makes `generator` go on where `state` is, and nothing else.
void go_on(at::Generator& generator, const at::Generator& state) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  if (generator.device().is_cuda()) {
    // Not by its seed: cuDNN's recurrent networks would draw their dropout masks anew.
    generator.graphsafe_set_state(state);
    return;
  }
  auto* target = at::check_generator<at::CPUGeneratorImpl>(generator);
  auto* source = at::check_generator<at::CPUGeneratorImpl>(state);
  target->set_engine(source->engine());
  target->set_next_float_normal_sample(source->next_float_normal_sample());
  target->set_next_double_normal_sample(source->next_double_normal_sample());
}

}  // namespace

std::optional<Draws> draws_of(const OpInfo& info, const std::vector<c10::IValue>& arguments,
                              c10::Device device) {
  if (!info.random) return std::nullopt;
  if (info.dropout != OpInfo::kNoArgument) {
    const c10::IValue& dropout = arguments[info.dropout];
    if (dropout.isDouble() && dropout.toDouble() == 0) return std::nullopt;
  }
  Draws draws;
  draws.argument = info.generator;
  const bool given =
      info.generator != OpInfo::kNoArgument && arguments[info.generator].isGenerator();
  draws.before = clone_of(given ? arguments[info.generator].toGenerator()
                                : at::globalContext().defaultGenerator(device));
  return draws;
}

DrawAgain::DrawAgain(const Draws& draws, c10::Device device) : again_(clone_of(draws.before)) {
  if (draws.argument != OpInfo::kNoArgument) return;
  device_ = at::globalContext().defaultGenerator(device);
  kept_ = state_of(device_);
  go_on(device_, again_);
}

DrawAgain::~DrawAgain() {
  if (device_.defined()) go_on(device_, kept_);
}

}  // namespace lms::torch
