// Calls that read, row by row, what has not been made.

#include <ATen/Functions.h>

#include <algorithm>

#include "adapters/torch/device_manager.h"
#include "adapters/torch/errors.h"
#include "adapters/torch/replay/replay.h"
#include "adapters/torch/slices/in_slices.h"
#include "adapters/torch/slices/run_cuts.h"
#include "adapters/torch/thread_state.h"

namespace lms::torch {
namespace {

/// Nothing goes over a link for them, so parts may be larger: there are fewer kernels to launch.
constexpr Bytes kMostOfRows = 512 * kMiB;
constexpr std::string_view kLoss = "aten::nll_loss_forward";

/// One call of an operator of PyTorch's, by itself.
struct OwnCall {
  OwnCall(const char* name, c10::Device device)
      : op(c10::Dispatcher::singleton().findSchemaOrThrow(name, "")),
        key(device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA),
        info(describe(op, key)),
        kernel(op.getComputedKernelForDispatchKey(key)) {}

  c10::OperatorHandle op;
  c10::DispatchKey key;
  OpInfo info;
  c10::SafeKernelFunction kernel;
};

/// False: it cannot be, or there is no room.
bool run_parts(Cutter& cutter, Bytes limit, Bytes least_part, std::vector<c10::IValue>& results) {
  const Bytes part = std::max(least_part, std::min(limit / Cutter::kPartOfLimit, kMostOfRows));
  auto outcome = cutter.run(
      {.part = part, .whole = limit - limit / Cutter::kWholeLeaves, .here = true}, results);
  if (outcome == Cutter::Outcome::kShort) outcome = cutter.run({.part = part}, results);
  return outcome == Cutter::Outcome::kDone;
}

}  // namespace

bool SlicedCall::reads_rows(std::string_view name, CutRule cut) {
  return (cut != nullptr && cut != cut_lists) || name == kLoss;
}

bool SlicedCall::needs_unmade(const std::vector<Cut>& cuts, const UnmadeRows& rows) const {
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const bool is_cut = std::ranges::all_of(cuts, [&](const Cut& cut) {
      return std::ranges::find(cut.operands, i, &CutOperand::argument) != cut.operands.end();
    });
    if (is_cut) continue;
    StorageUses uses;
    collect_storages(arguments_[i], /*writes=*/false, /*inside=*/false, uses);
    const auto unmade = [&](const StorageUse& use) { return rows.find(use.storage) != nullptr; };
    if (std::ranges::any_of(uses, unmade)) return true;
  }
  return false;
}

bool SlicedCall::run_by_rows(c10::Stack& stack, const UnmadeRows& rows) {
  const c10::impl::ExcludeDispatchKeyGuard below(above_kernels());
  if (info_.name == kLoss) return gather_losses(stack, rows);
  std::vector<Cut> cuts = this->cuts(part_bytes());
  if (cuts.empty() || needs_unmade(cuts, rows)) return false;
  RowMaker maker(rows);
  if (!maker.prepare(cuts, part_bytes())) return false;
  Cutter cutter(manager_, {info_, kernel_, op_, keys_}, arguments_, std::move(cuts), &maker);
  std::vector<c10::IValue> results;
  if (!run_parts(cutter, manager_.limit(), part_bytes(), results)) {
    if (cutter.half_written()) cutter.throw_short();
    thread_state().full_by_rows = cutter.why_full_below();
    return false;
  }
  ++manager_.row_operators;
  born_ = cutter.born();
  take(stack, results);
  return true;
}

// nll_loss_forward(self, target, weight, reduction, ignore_index) looks at one element of a row.
// It adds them up in an order that only their number decides, so it is given these alone: two
// classes, alike, one of which is the target's, the other stands for what is ignored.
bool SlicedCall::gather_losses(c10::Stack& stack, const UnmadeRows& rows) {
  const at::Tensor self = arguments_[0].toTensor();
  const at::Tensor target = arguments_[1].toTensor();
  const c10::IValue& weight = arguments_[2];
  const bool weighted = weight.isTensor() && weight.toTensor().defined();
  const std::int64_t ignored = arguments_[4].toInt();
  if (weighted || self.dim() != 2 || target.dim() != 1 || self.size(0) != target.size(0) ||
      !self.is_contiguous() || target.device() != self.device() ||
      target.scalar_type() != at::kLong || self.size(1) < 2) {
    return false;
  }
  const std::int64_t count = self.size(0);
  const at::Tensor is_ignored = target.eq(ignored);
  const OwnCall gather("aten::gather", manager_.device());
  const c10::Stack arguments{self, std::int64_t{1}, target.masked_fill(is_ignored, 0).unsqueeze(1),
                             false};
  auto of_self = rows_of(self, 1, 0);
  auto of_target = rows_of(arguments[2].toTensor(), 1, 2);
  if (!of_self || !of_target) return false;
  Cut cut{.rows = count};
  cut.operands = {std::move(*of_self), std::move(*of_target)};
  cut.results.push_back({.leading = {count}});
  std::vector<Cut> cuts{std::move(cut)};
  RowMaker maker(rows);
  if (!maker.prepare(cuts, part_bytes())) return false;
  Cutter cutter(manager_, {gather.info, gather.kernel, gather.op, c10::DispatchKeySet(gather.key)},
                arguments, std::move(cuts), &maker);
  std::vector<c10::IValue> losses;
  try {
    if (!run_parts(cutter, manager_.limit(), part_bytes(), losses)) return false;
  } catch (const c10::Error&) {
    return false;  // of a target that is no class, for instance: the operator's to say
  }
  const std::int64_t stands = ignored == 0 ? 1 : 0;
  c10::Stack call = arguments_;
  call[0] = losses.front().toTensor().expand({count, 2}).contiguous();
  call[1] = at::full_like(target, stands).masked_fill(is_ignored, ignored);
  StorageUses uses;
  for (const c10::IValue& value : call) {
    collect_storages(value, /*writes=*/false, /*inside=*/false, uses);
  }
  thread_state().operator_pins.add(uses);
  kernel_.callBoxed(op_, keys_, &call);
  ++manager_.row_operators;
  take(stack, call);
  return true;
}

}  // namespace lms::torch
