#include "adapters/torch/replay/replay.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "adapters/torch/fused/rule.h"
#include "base/error.h"

namespace lms::torch {
namespace {

using Storage = c10::intrusive_ptr<c10::StorageImpl>;

at::Tensor tensor_over(const TensorSpec& spec, const Storage& storage) {
  auto tensor =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), spec.keys, spec.type);
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(spec.sizes, spec.strides, spec.offset);
  if (spec.wrapped_number) impl->set_wrapped_number(true);
  if (spec.requires_grad) impl->set_requires_grad(true);
  return tensor;
}

}  // namespace

c10::DispatchKeySet above_kernels() {
  using K = c10::DispatchKey;
  return c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
         c10::DispatchKeySet({K::Python, K::PythonTLSSnapshot, K::PythonDispatcher,
                              K::FuncTorchDynamicLayerBackMode, K::FuncTorchDynamicLayerFrontMode,
                              K::Functionalize, K::PreDispatch});
}

// ReplayScope

ReplayScope::ReplayScope(std::vector<Bytes> addresses)
    : state_(thread_state()),
      replay_{std::move(addresses), 0},
      outer_(state_.replay),
      outer_depth_(state_.depth),
      below_(above_kernels()) {
  outer_pins_.swap(state_.operator_pins);
  state_.replay = &replay_;
  state_.depth = 1;
}

ReplayScope::~ReplayScope() {
  state_.operator_pins.release();
  state_.operator_pins.swap(outer_pins_);
  state_.replay = outer_;
  state_.depth = outer_depth_;
}

// Calls

std::optional<ReplayArguments> replay_arguments(const OpInfo& info, const c10::OperatorHandle& op,
                                                const c10::Stack& stack) {
  if (info.rerun == Rerun::kNever) return std::nullopt;
  const std::size_t first = stack.size() - info.argument_count;
  ReplayArguments result;
  result.values.assign(stack.begin() + static_cast<std::ptrdiff_t>(first), stack.end());
  const auto& schema = op.schema().arguments();
  bool statistics_written = false;
  for (std::size_t i = 0; i < schema.size(); ++i) {
    const auto& name = schema[i].name();
    const c10::IValue& value = result.values[i];
    if (name == "training" && value.isBool()) statistics_written = value.toBool();
  }
  for (const auto& argument : info.arguments) {
    if (!argument.writes) continue;
    c10::IValue& value = result.values[argument.index];
    if (value.isNone() || (value.isTensor() && !value.toTensor().defined())) continue;
    if (info.rerun == Rerun::kBatchNorm) {
      if (statistics_written) value = c10::IValue();
      continue;
    }
    if (!value.isTensor() || result.written.defined()) return std::nullopt;
    result.written = value.toTensor();
  }
  return result;
}

Storage run_call(const Call& call, const std::vector<Storage>& storages,
                 const std::vector<Storage>& saved, std::size_t result, c10::Device device) {
  const c10::AutoGradMode grad_mode(call.grad_mode);
  const auto tensor = [&](int position) {
    if (position < 0) return at::Tensor();
    const auto at = static_cast<std::size_t>(position);
    return tensor_over(call.tensors[at], storages[at]);
  };
  c10::Stack stack;
  for (const Call::Argument& argument : call.arguments) {
    switch (argument.kind) {
      case Call::Argument::Kind::kValue:
        stack.push_back(argument.value);
        break;
      case Call::Argument::Kind::kTensor:
        stack.emplace_back(tensor(argument.tensors.front()));
        break;
      case Call::Argument::Kind::kTensors: {
        c10::List<at::Tensor> list;
        for (const int position : argument.tensors) list.push_back(tensor(position));
        stack.emplace_back(std::move(list));
        break;
      }
      case Call::Argument::Kind::kMaybeTensors: {
        c10::List<std::optional<at::Tensor>> list;
        for (const int position : argument.tensors) {
          list.push_back(position < 0 ? std::nullopt : std::optional(tensor(position)));
        }
        stack.emplace_back(std::move(list));
        break;
      }
    }
  }
  if (call.saved_for != nullptr && result == 0) {
    std::vector<at::Tensor> results;
    for (std::size_t i = 0; i < saved.size(); ++i) {
      results.push_back(tensor_over(call.saved[i], saved[i]));
    }
    const at::Tensor made = call.saved_for->from_saved(call, stack, results);
    if (made.defined()) return share(made.storage());
  }
  std::optional<DrawAgain> again;
  if (call.draws) {
    again.emplace(*call.draws, device);
    if (call.draws->argument != OpInfo::kNoArgument) {
      stack[call.draws->argument] = again->generator();
    }
  }
  call.kernel->callBoxed(*call.op, call.keys, &stack);
  if (result == Origin::kNoResult) return {};
  return share(stack.at(result).toTensor().storage());
}

Storage take_memory(c10::Device device, Bytes bytes) {
  return share(at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device)).storage());
}

c10::Storage copy_of(const c10::Storage& storage) {
  auto bytes = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage),
      c10::DispatchKeySet(storage.device_type() == c10::DeviceType::CUDA ? c10::DispatchKey::CUDA
                                                                         : c10::DispatchKey::CPU),
      caffe2::TypeMeta::Make<std::uint8_t>());
  bytes.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<std::int64_t>(storage.nbytes())});
  return bytes.clone().storage();
}

}  // namespace lms::torch
