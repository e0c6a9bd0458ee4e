// Operators whose result waits for who uses it, row by row perhaps (slices/unmade.h).

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <span>
#include <utility>

#include "adapters/torch/deferred/deferred.h"
#include "adapters/torch/operators/call.h"
#include "adapters/torch/operators/results.h"
#include "adapters/torch/replay/replay.h"
#include "adapters/torch/slices/cut.h"
#include "base/mixed.h"

namespace lms::torch {
namespace {

/// What begins a chain takes this part of the limit at least.
constexpr Bytes kLargeResult = 32;
/// And its rows are so long: one number for each class of a vocabulary. What is shorter goes to a
/// product or a convolution next, which wants all of it.
constexpr std::int64_t kLongRow = 16384;
constexpr Bytes kPart = 32 * kMiB;

/// Of a vocabulary's numbers, and who uses what it makes mostly goes through that once.
bool begins_chain(const OpInfo& info, const at::Tensor& self) {
  if (self.dim() < 2 || self.size(-1) < kLongRow) return false;
  return info.name == "aten::_log_softmax" ||
         (info.name == "aten::_to_copy" && self.element_size() < 4);
}

bool may_begin_chain(const OpInfo& info, const c10::Stack& stack) {
  for (const c10::IValue& value : std::span(stack).last(info.argument_count)) {
    if (value.isTensor() && value.toTensor().defined()) return begins_chain(info, value.toTensor());
  }
  return false;
}

/// Where the meta kernel and the cut do not agree how the result lies, the kernel may agree with
/// either: of a factor that is expanded and 16-bit numbers in another order than their sizes', the
/// meta kernel's product lies in the order of the sizes, the kernel's as the numbers do.
bool lies_as(const CutResult& cut, const at::Tensor& foreseen) {
  if (cut.strides.empty()) return foreseen.is_contiguous();
  return foreseen.sizes() == cut.sizes &&
         strides_alike(foreseen.sizes(), foreseen.strides(), cut.strides);
}

/// As far as the cut says.
bool has_sizes(const CutResult& cut, c10::IntArrayRef sizes) {
  if (!cut.sizes.empty()) return sizes == cut.sizes;
  return sizes.size() >= cut.leading.size() && sizes.slice(0, cut.leading.size()) == cut.leading;
}

}  // namespace

bool are_worth_waiting_for(const OpInfo& info, const StorageUses& uses) {
  return std::ranges::any_of(uses, [&](const StorageUse& use) {
    DeviceManager* const manager = active_manager(use.storage->device());
    if (manager == nullptr) return false;
    const bool any_size =
        manager->slice_mode() == SliceMode::kChains || manager->deferred().has_waited(info);
    const Bytes least = any_size ? manager->min_block() : manager->limit() / (2 * kLargeResult);
    return static_cast<Bytes>(use.storage->nbytes()) >= least;
  });
}

std::unique_ptr<Part> rows_that_may_wait(DeviceManager& manager, const OpInfo& info,
                                         const c10::SafeKernelFunction& kernel,
                                         const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                         const c10::Stack& stack, bool chain) {
  auto part = std::make_unique<Part>();
  part->arguments.assign(stack.end() - info.argument_count, stack.end());
  const at::Tensor* first = nullptr;
  for (const c10::IValue& value : part->arguments) {
    if (value.isTensorList() || value.isOptionalTensorList()) return nullptr;
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor& tensor = value.toTensor();
    if (!is_plain(tensor) || tensor.is_conj() || tensor.is_neg()) return nullptr;
    if (first == nullptr) first = &tensor;
  }
  if (first == nullptr || !has_plain_type(*first) || first->device() != manager.device()) {
    return nullptr;
  }
  const bool all = manager.slice_mode() == SliceMode::kChains;
  const c10::impl::ExcludeDispatchKeyGuard below(above_kernels());
  const c10::impl::DisablePythonDispatcher no_python;
  auto [result, asked] =
      thread_state().foreseen.of(info.key, op, part->arguments, manager.device());
  if (!result.defined() || !has_plain_type(result)) return nullptr;
  const auto bytes = static_cast<Bytes>(result.nbytes());
  if (bytes < manager.min_block() || !result.is_non_overlapping_and_dense()) return nullptr;
  if (!all && !chain && bytes < manager.limit() / kLargeResult) return nullptr;
  c10::Allocator* const allocator = storage_of(*first)->allocator();
  StorageUses small;
  {
    EngineLock lock = manager.engine().lock();
    for (const c10::IValue& value : part->arguments) {
      if (!value.isTensor() || !value.toTensor().defined()) continue;
      const at::Tensor& tensor = value.toTensor();
      const bool is_small = tensor.device() != manager.device() ||
                            static_cast<Bytes>(storage_of(tensor)->nbytes()) < manager.min_block();
      if (is_small) {
        if (static_cast<Bytes>(tensor.nbytes()) >= manager.min_block()) return nullptr;
        small.push_back({storage_of(tensor), /*writes=*/false});
      } else if (!may_wait_for(lock, manager, tensor)) {
        return nullptr;
      } else {
        part->uses.push_back({storage_of(tensor), /*writes=*/false});
      }
    }
  }
  if (part->uses.empty()) return nullptr;
  const InParts in_parts;
  for (c10::IValue& value : part->arguments) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor tensor = value.toTensor();
    const bool is_small =
        std::ranges::find(small, storage_of(tensor), &StorageUse::storage) != small.end();
    value = is_small ? copy_of(tensor) : alias_of(tensor);
  }
  std::vector<std::int64_t> strides;
  try {
    const auto cuts = info.cut({info.name, op, part->arguments, kPart});
    if (cuts.size() != 1 || cuts.front().moves || cuts.front().results.size() != 1) return nullptr;
    const CutResult& cut = cuts.front().results.front();
    if (!asked && !has_sizes(cut, result.sizes())) {
      const auto results = results_foreseen(op, part->arguments, manager.device());
      if (results.size() != 1 || !results.front().sizes().equals(result.sizes())) return nullptr;
      result = results.front();
    }
    if (!lies_as(cut, result)) return nullptr;
    strides = cut.strides;
  } catch (const c10::Error&) {
    return nullptr;  // what is wrong with the call is the operator's to say
  }
  part->makes.push_back(unmade_like(result, manager.device(), allocator));
  // Of dimensions of one position the kernel may have other strides than the meta kernel.
  if (strides.empty()) {
    const auto contiguous = c10::contiguous_strides(result.sizes());
    strides.assign(contiguous.begin(), contiguous.end());
  }
  part->makes.back().unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), strides);
  part->uses.push_back({storage_of(part->makes.back()), /*writes=*/true});
  part->info = &info;
  part->kernel = &kernel;
  part->op = op;
  part->keys = keys;
  part->grad_mode = c10::GradMode::is_enabled();
  part->rows = std::make_shared<Unmade>(Unmade{.info = &info,
                                               .kernel = &kernel,
                                               .op = op,
                                               .keys = keys,
                                               .arguments = part->arguments,
                                               .result = part->makes.back()});
  return part;
}

bool Deferred::chains() const {
  if (mode() == Mode::kNone || manager_.below() == nullptr) return false;
  const SliceMode mode = manager_.slice_mode();
  return mode == SliceMode::kChains || (mode == SliceMode::kAll && pressed());
}

bool Deferred::may_wait_here() const {
  if (!thread_state().access_scopes.empty() || thread_state().keeps > 0) return false;
  if (!manager_.records_here()) return false;
  // What helpers of other environments have computed depends on who has helped.
  return plain_environments() && float_environment() == 0;
}

bool Deferred::defer_rows(const Entrances& entrances, const OpInfo& info,
                          const c10::SafeKernelFunction& kernel, const c10::OperatorHandle& op,
                          c10::DispatchKeySet keys, c10::Stack& stack) {
  if (info.cut == nullptr || !chains() || c10::InferenceMode::is_enabled()) return false;
  const std::uint64_t kind = kind_of_rows(info, stack);
  bool chain = false;  // or one of its kind has begun one
  {
    const std::lock_guard guard(mutex_);
    if (wanted_whole_.contains(kind)) return false;
    chain = began_.contains(kind);
    for (std::size_t i = stack.size() - info.argument_count; i < stack.size(); ++i) {
      const bool is_there =
          stack[i].isTensor() && stack[i].toTensor().defined() && stack[i].toTensor().has_storage();
      chain = chain || (is_there && maker_of(storage_of(stack[i].toTensor()), UINT64_MAX));
    }
  }
  if (!chain && manager_.slice_mode() != SliceMode::kChains && !may_begin_chain(info, stack)) {
    return false;
  }
  if (!may_wait_here()) return false;  // it asks CUDA
  std::unique_ptr<Part> part = rows_that_may_wait(manager_, info, kernel, op, keys, stack, chain);
  if (!part) return false;
  note_waited(info, kind, /*begins=*/!chain);
  discard_dead();
  part->run = entrances.run;
  part->run_by_rows = entrances.run_by_rows;
  part->kind = kind;
  // Not the tensor that the part has: it is the program's to change.
  const at::Tensor& made = part->makes.front();
  at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(made.storage()),
                                                               made.key_set(), made.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides());
  add(std::move(part));
  if (this->mode() == Mode::kNone) run_all();
  stack.resize(stack.size() - info.argument_count);
  stack.emplace_back(std::move(result));
  return true;
}

bool Deferred::is_large(const Part& rows) const {
  const auto bytes = static_cast<Bytes>(rows.makes.front().nbytes());
  return manager_.slice_mode() == SliceMode::kChains ||
         bytes >= manager_.limit() / (2 * kLargeResult);
}

bool Deferred::has_waited(const OpInfo& info) const {
  return std::ranges::any_of(operators_that_waited_, [&](const auto& key) {
    return key.load(std::memory_order_relaxed) == info.key;
  });
}

void Deferred::note_waited(const OpInfo& info, std::uint64_t kind, bool begins) {
  if (!begins && has_waited(info)) return;
  const std::lock_guard guard(mutex_);
  if (begins) began_.insert(kind);
  if (has_waited(info)) return;
  const auto is_free = [](const auto& key) { return key.load(std::memory_order_relaxed) == 0; };
  const auto free = std::ranges::find_if(operators_that_waited_, is_free);
  if (free != operators_that_waited_.end()) free->store(info.key, std::memory_order_relaxed);
}

std::uint64_t Deferred::kind_of_rows(const OpInfo& info, const c10::Stack& stack) {
  // With the length of rows, not their number: steps of several sizes learn from each other.
  std::uint64_t kind = info.key;
  for (std::size_t i = stack.size() - info.argument_count; i < stack.size(); ++i) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    const at::Tensor& tensor = stack[i].toTensor();
    kind = mixed(kind, static_cast<std::uint64_t>(tensor.scalar_type()));
    kind = mixed(kind, tensor.dim() > 0 ? static_cast<std::uint64_t>(tensor.size(-1)) : 0);
  }
  return kind;
}

Deferred::PartPtr Deferred::maker_of(const c10::StorageImpl* storage, std::uint64_t before) const {
  const auto row = by_storage_.find(const_cast<c10::StorageImpl*>(storage));
  if (row == by_storage_.end()) return nullptr;
  PartPtr last;
  for (const Waiting& one : row->second) {
    if (one.writes && one.part->number < before && (!last || last->number < one.part->number)) {
      last = one.part;
    }
  }
  return last && last->rows ? last : nullptr;
}

bool Deferred::will_make(const c10::StorageImpl& storage) {
  if (rows_.load(std::memory_order_relaxed) == 0) return false;
  const std::lock_guard guard(mutex_);
  return maker_of(&storage, UINT64_MAX) != nullptr;
}

void Deferred::note_through(Part& part) const {
  const auto add = [&](const StorageUse& use) {
    const auto& all = part.through;
    if (std::ranges::find(all, use.storage, &StorageUse::storage) == all.end()) {
      part.through.push_back({use.storage, /*writes=*/false});
    }
  };
  for (const StorageUse& use : part.uses) {
    if (use.writes) continue;
    const PartPtr maker = maker_of(use.storage, part.number);
    if (!maker) continue;
    for (const StorageUse& source : maker->uses) {
      if (!source.writes && !maker_of(source.storage, maker->number)) add(source);
    }
    for (const StorageUse& source : maker->through) add(source);
  }
}

void Deferred::refresh_through() {
  for (const auto& [number, part] : all_) {
    if (part->through.empty()) continue;
    for (const StorageUse& use : std::exchange(part->through, {})) {
      const auto row = by_storage_.find(use.storage);
      if (row == by_storage_.end()) continue;
      std::erase_if(row->second, [&](const Waiting& one) {
        return one.part == part && !one.writes && one.through;
      });
      if (row->second.empty()) by_storage_.erase(row);
    }
    note_through(*part);
    for (const StorageUse& use : part->through) {
      by_storage_[use.storage].push_back({.part = part, .writes = false, .through = true});
    }
  }
}

UnmadeRows Deferred::rows_for(std::span<const StorageUse> uses, std::uint64_t before) {
  if (rows_.load(std::memory_order_relaxed) == 0) return {};
  std::unique_lock lock(mutex_);
  for (;;) {
    std::vector<PartPtr> parts;
    UnmadeRows::Ones ones;
    bool busy = false;
    const auto add = [&](std::span<const StorageUse> all, std::uint64_t number) {
      for (const StorageUse& use : all) {
        if (use.writes || ones.contains(use.storage)) continue;
        PartPtr maker = maker_of(use.storage, number);
        if (!maker) continue;
        busy = busy || maker->runs;
        ones.emplace(use.storage, maker->rows);
        parts.push_back(std::move(maker));
      }
    };
    add(uses, before);
    for (std::size_t next = 0; next < parts.size(); ++next) {
      const PartPtr part = parts[next];  // the row may move
      add(part->uses, part->number);
    }
    if (parts.empty()) return {};
    if (busy) {
      wait(lock);
      continue;
    }
    if (!needed_for_rows(parts).empty()) {
      run_until(lock, [&] { return needed_for_rows(parts); });
      continue;
    }
    for (const PartPtr& part : parts) {
      part->runs = true;
      part->was_read = true;
    }
    may_be_dead_ = true;
    ++running_here();
    return {std::move(ones), [this, parts = std::move(parts)] {
              --running_here();
              const std::lock_guard guard(mutex_);
              for (const PartPtr& part : parts) part->runs = false;
              ended_.notify_all();
            }};
  }
}

}  // namespace lms::torch
