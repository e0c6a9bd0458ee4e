// What an operator did becomes a lineage.

#include <algorithm>
#include <bit>
#include <utility>

#include "adapters/torch/device_manager.h"
#include "adapters/torch/replay/lineages.h"
#include "adapters/torch/replay/replay.h"
#include "base/mixed.h"

namespace lms::torch {
namespace {

/// A lineage of more calls than this is not worth keeping.
constexpr std::size_t kMostCalls = 16;

void fill_geometry(const at::Tensor& tensor, TensorSpec& spec) {
  spec.type = tensor.dtype();
  spec.keys = tensor.key_set();
  spec.sizes = tensor.sizes().vec();
  spec.strides = tensor.strides().vec();
  spec.offset = tensor.storage_offset();
  spec.requires_grad = tensor.requires_grad();
  spec.wrapped_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

/// A convolution whose forward pass is the backward pass of another.
bool is_transposed(const OpInfo& info, const c10::OperatorHandle& op, const c10::Stack& stack) {
  if (!info.has_algorithms) return false;
  if (info.name.find("transpose") != std::string::npos) return true;
  const auto& arguments = op.schema().arguments();
  const std::size_t first = stack.size() - arguments.size();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = stack[first + i];
    if (arguments[i].name() == "transposed" && value.isBool()) return value.toBool();
  }
  return false;
}

/// Without lock(), whose result may be the last reference, to be destroyed under a lock.
bool is_same(const std::weak_ptr<Origin>& one, const std::shared_ptr<Origin>& other) {
  return !one.owner_before(other) && !other.owner_before(one);
}

/// Every byte of its storage belongs to one element.
bool covers_storage(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && tensor.nbytes() == tensor.storage().nbytes();
}

}  // namespace

bool Lineages::describe(const at::Tensor& tensor, c10::StorageImpl* self, TensorSpec& spec) {
  if (!is_plain(tensor)) return false;
  fill_geometry(tensor, spec);
  c10::StorageImpl* storage = storage_of(tensor);
  if (storage == self) {
    spec.source = TensorSpec::Source::kSelf;
    return true;
  }
  if (tensor.device() != manager_.device()) {
    // A number in a tensor of another device. (A copy of it has no lazy conjugation any more.)
    if (tensor.dim() != 0 || tensor.device().type() != c10::DeviceType::CPU) return false;
    if (tensor.is_conj() || tensor.is_neg()) return false;
    spec.source = TensorSpec::Source::kSmall;
    spec.offset = 0;
    spec.small = std::make_shared<SmallSource>(tensor.clone().storage());
    return true;
  }
  {
    EngineLock lock = manager_.engine().lock();
    if (auto* block = static_cast<StorageBlock*>(manager_.find(lock, *storage))) {
      if (block->kept || block->died) return false;
      if (!manager_.announces_death(*block)) spec.held = share(tensor.storage());
      spec.source = TensorSpec::Source::kOrigin;
      spec.origin = origin_of(*block, *storage);
      const Guard guard(mutex_);
      spec.version = spec.origin->version;
      return true;
    }
  }
  if (static_cast<Bytes>(storage->nbytes()) >= manager_.min_block()) return false;
  spec.source = TensorSpec::Source::kSmall;
  spec.small = small_source(tensor);
  return true;
}

bool Lineages::describe_arguments(const std::vector<c10::IValue>& values, Draft& draft,
                                  Call& call) {
  const auto add = [&](const at::Tensor& tensor, Call::Argument& argument) {
    if (!tensor.defined()) {
      argument.tensors.push_back(-1);
      return true;
    }
    argument.tensors.push_back(static_cast<int>(call.tensors.size()));
    draft.inputs.push_back(tensor.has_storage() ? storage_of(tensor) : nullptr);
    return describe(tensor, draft.self, call.tensors.emplace_back());
  };
  for (const c10::IValue& value : values) {
    Call::Argument& argument = call.arguments.emplace_back();
    if (value.isTensor()) {
      argument.kind = Call::Argument::Kind::kTensor;
      if (!add(value.toTensor(), argument)) return false;
    } else if (value.isTensorList()) {
      argument.kind = Call::Argument::Kind::kTensors;
      for (const auto& element : value.toTensorVector()) {
        if (!add(element, argument)) return false;
      }
    } else if (value.isOptionalTensorList()) {
      argument.kind = Call::Argument::Kind::kMaybeTensors;
      for (const auto& element : value.toOptionalTensorVector()) {
        if (!add(element.value_or(at::Tensor()), argument)) return false;
      }
    } else {
      argument.value = value;
    }
  }
  return true;
}

std::optional<Draft> Lineages::prepare(const OpInfo& info, const c10::SafeKernelFunction& kernel,
                                       const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                       const c10::Stack& stack) {
  // Within an access scope raw pointers are in use: what is read may be written at any moment.
  if (!repeatable_now(info) || !thread_state().access_scopes.empty()) return std::nullopt;
  if (!manager_.records_here()) return std::nullopt;
  const bool transposed = is_transposed(info, op, stack);
  if (!manager_.changed_algorithms().repeat(info, transposed)) return std::nullopt;
  const auto reads = replay_arguments(info, op, stack);
  if (!reads) return std::nullopt;
  Draft draft{.transposed = transposed};
  auto call = std::make_shared<Call>();
  call->info = &info;
  call->kernel = &kernel;
  call->op = op;
  call->keys = keys;
  call->grad_mode = c10::GradMode::is_enabled();
  const auto numerics = Numerics::now();
  if (!numerics) return std::nullopt;
  if (!plain_environments() && manager_.device().is_cpu()) return std::nullopt;
  call->numerics = *numerics;
  try {
    call->draws = draws_of(info, reads->values, manager_.device());
  } catch (const c10::Error&) {
    return std::nullopt;  // within a graph capture that nobody has announced
  }
  call->epoch = epoch_;
  if (reads->written.defined()) {
    if (!is_plain(reads->written)) return std::nullopt;
    draft.self = storage_of(reads->written);
    draft.overwrites = info.rerun == Rerun::kOverwrites && covers_storage(reads->written);
    EngineLock lock = manager_.engine().lock();
    auto* block = static_cast<StorageBlock*>(manager_.find(lock, *draft.self));
    if (block == nullptr || block->kept || !manager_.announces_death(*block)) {
      return std::nullopt;
    }
    draft.target = origin_of(*block, *draft.self);
  }
  if (!describe_arguments(reads->values, draft, *call)) return std::nullopt;
  // What it overwrites it may read first: x.copy_(x.conj()).
  const auto is_self = [](const TensorSpec& spec) {
    return spec.source == TensorSpec::Source::kSelf;
  };
  if (std::ranges::count_if(call->tensors, is_self) > 1) draft.overwrites = false;
  any_ = true;
  draft.call = std::move(call);
  return draft;
}

namespace {

/// Without dimensions of size 1: cuDNN's plans of one dimension are those of two.
std::uint64_t number_of(std::span<const std::int64_t> sizes) {
  std::uint64_t number = 0;
  for (const std::int64_t size : sizes) {
    if (size != 1) number = mixed(number, static_cast<std::uint64_t>(size));
  }
  return number;
}

}  // namespace

void Lineages::note_convolution(const Call& call, bool transposed) {
  const Guard guard(mutex_);
  convolved_back_ = convolved_back_ || transposed;
  for (const TensorSpec& spec : call.tensors) convolved_.insert(number_of(spec.sizes));
}

bool Lineages::may_need_algorithm_of(std::span<const c10::IValue> arguments) {
  const Guard guard(mutex_);
  // The backward pass of a transposed one is another's forward pass, of sizes that nobody has
  // noted.
  const bool transposed = std::ranges::any_of(
      arguments, [](const c10::IValue& value) { return value.isBool() && value.toBool(); });
  if (convolved_back_ || (transposed && !convolved_.empty())) return true;
  return std::ranges::all_of(arguments, [&](const c10::IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined()) return true;
    return convolved_.contains(number_of(value.toTensor().sizes()));
  });
}

void Lineages::commit(Draft draft, const c10::Stack& stack, std::size_t base,
                      std::uint32_t most_depth) {
  if (const FusedRule* rule = manager_.fused_rule(*draft.call->info)) {
    save_results(*rule, *draft.call, stack, base);
  }
  if (draft.call->info->has_algorithms) note_convolution(*draft.call, draft.transposed);
  if (draft.target) {
    commit_write(draft, most_depth);
  } else {
    commit_results(draft, stack, base, most_depth);
  }
}

bool Lineages::all_there(const Call& call) const {
  return std::ranges::all_of(call.tensors, [&](const TensorSpec& spec) {
    const Origin* origin = spec.origin.get();
    if (origin == nullptr) return true;
    return origin->version == spec.version &&
           (!origin->storage.expired() || origin->ghost || known(*origin));
  });
}

std::uint32_t Lineages::depth_of(const Call& call) const {
  std::uint32_t depth = 0;
  for (const TensorSpec& spec : call.tensors) {
    if (spec.origin && known(*spec.origin)) depth = std::max(depth, spec.origin->depth + 1);
  }
  return depth;
}

void Lineages::add_dependent(const Call& call, const std::shared_ptr<Origin>& origin) {
  for (const TensorSpec& spec : call.tensors) {
    if (!spec.origin || spec.origin == origin) continue;
    auto& dependents = spec.origin->dependents;
    if (!dependents.empty() && is_same(dependents.back(), origin)) continue;
    if (dependents.size() >= kPrune && std::has_single_bit(dependents.size())) {
      std::erase_if(dependents, [](const auto& dependent) { return dependent.expired(); });
    }
    dependents.push_back(origin);
  }
}

void Lineages::commit_write(const Draft& draft, std::uint32_t most_depth) {
  Trash trash;
  const Guard guard(mutex_);
  const std::uint32_t depth = depth_of(*draft.call);
  Origin& origin = *draft.target;
  auto before = std::exchange(origin.calls_before, {});
  if (draft.overwrites) {
    trash.lineages.push_back(std::exchange(before, {}));
    origin.result = Origin::kNoResult;
  } else if (before.empty()) {
    return;
  }
  if (depth > most_depth || before.size() >= kMostCalls || !all_there(*draft.call)) {
    trash.lineages.push_back(std::move(before));
    return;
  }
  origin.depth = std::max(depth, draft.overwrites ? 0 : origin.depth);
  origin.calls = std::move(before);
  origin.calls.push_back(draft.call);
  add_dependent(*draft.call, draft.target);
}

void Lineages::commit_results(const Draft& draft, const c10::Stack& stack, std::size_t base,
                              std::uint32_t most_depth) {
  std::uint32_t depth = 0;
  {
    const Guard guard(mutex_);
    depth = depth_of(*draft.call);
  }
  if (depth > most_depth) return;
  for (std::size_t i = base; i < stack.size(); ++i) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    const at::Tensor& result = stack[i].toTensor();
    if (!is_plain(result)) continue;
    c10::StorageImpl* storage = storage_of(result);
    if (std::ranges::find(draft.inputs, storage) != draft.inputs.end()) continue;
    std::shared_ptr<Origin> origin;
    {
      EngineLock lock = manager_.engine().lock();
      auto* block = static_cast<StorageBlock*>(manager_.find(lock, *storage));
      if (block == nullptr || block->kept || block->died) continue;
      if (!manager_.announces_death(*block)) continue;
      origin = origin_of(*block, *storage);
    }
    const Guard guard(mutex_);
    if (!origin->calls.empty() || !all_there(*draft.call)) continue;
    origin->calls = {draft.call};
    origin->result = i - base;
    origin->depth = depth;
    add_dependent(*draft.call, origin);
  }
}

void Lineages::save_results(const FusedRule& rule, Call& call, const c10::Stack& stack,
                            std::size_t base) {
  const std::size_t count = rule.saves(call.info->fused.role);
  if (count == 0) return;
  // Of the first result's inputs these are all; small, or it is simply run again.
  for (std::size_t i = base + 1; i < std::min(base + 1 + count, stack.size()); ++i) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) break;
    const at::Tensor& tensor = stack[i].toTensor();
    TensorSpec spec;
    if (tensor.numel() == 0 || !describe(tensor, nullptr, spec) ||
        spec.source != TensorSpec::Source::kSmall) {
      break;  // without training there are none
    }
    call.saved.push_back(std::move(spec));
  }
  if (call.saved.size() == count && rule.settle(call)) {
    call.saved_for = &rule;
  } else {
    call.saved.clear();
  }
}

}  // namespace lms::torch
