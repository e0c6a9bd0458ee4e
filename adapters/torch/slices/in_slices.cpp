#include "adapters/torch/slices/in_slices.h"

#include <ATen/Context.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "adapters/torch/device_manager.h"
#include "adapters/torch/errors.h"
#include "adapters/torch/hook/arguments.h"
#include "adapters/torch/hook/retry.h"
#include "adapters/torch/replay/lineages.h"
#include "adapters/torch/replay/replay.h"
#include "adapters/torch/slices/run_cuts.h"
#include "adapters/torch/slices/run_in_place.h"
#include "adapters/torch/thread_state.h"
#include "base/error.h"
#include "base/mixed.h"

namespace lms::torch {
namespace {

/// Calls that touch less than this part of the limit fit, whatever they are.
constexpr Bytes kLargeCall = 8;
/// Calls that touch less than this part of the limit are not looked at before they have found no
/// room.
constexpr Bytes kDoubtful = 4;
/// So often other threads may be in the way of a call in place.
constexpr int kMostRefusals = 16;
/// A set of buffers for one part: no more than a link needs to be busy.
constexpr Bytes kMostPart = 32 * kMiB;
constexpr Bytes kLeastPart = 64 * kKiB;

bool is_all(SliceMode mode) { return mode == SliceMode::kAll || mode == SliceMode::kChains; }

/// `other`: by whatever algorithm finds room; null: by the first. False: there was none.
bool try_way(InPlace& call, InPlace::What below, Bytes lack, WorkspaceRetry* other,
             std::vector<c10::IValue>& results) {
  ThreadState& state = thread_state();
  const WorkspaceRetryScope scope(state, other);
  try {
    return call.run(below, lack, results) == InPlace::Outcome::kDone;
  } catch (const c10::Error&) {
    // Whatever the kernel says, after all its algorithms, this is why.
    if (other == nullptr || other->refused.empty()) throw;
    begin_anew(state);
    return false;
  }
}

}  // namespace

SliceMode slice_mode(const std::string& text) {
  if (text == "auto" || text == "all") return SliceMode::kAll;
  if (text == "off") return SliceMode::kOff;
  if (text == "parts") return SliceMode::kParts;
  if (text == "always") return SliceMode::kAlways;
  if (text == "in_place") return SliceMode::kInPlace;
  if (text == "chains") return SliceMode::kChains;
  throw BadSetting("slices: '" + text +
                   "' is none of auto, parts, all, off, always, in_place, chains");
}

SliceMemory::Known SliceMemory::known(std::uint64_t call) const {
  const std::lock_guard guard(mutex_);
  const auto found = calls_.find(call);
  return found == calls_.end() ? Known{} : found->second;
}

SliceMemory::Whole SliceMemory::of(std::uint64_t call) const { return known(call).whole; }

Bytes SliceMemory::lack_of(std::uint64_t call) const { return known(call).lack; }

void SliceMemory::set(std::uint64_t call, Whole whole, Bytes lack) {
  const std::lock_guard guard(mutex_);
  if (calls_.size() >= kMost) calls_.clear();
  calls_[call] = {.whole = whole, .lack = lack};
}

void SliceMemory::clear() {
  const std::lock_guard guard(mutex_);
  calls_.clear();
}

bool SlicedCall::may_be(DeviceManager* manager, const OpInfo& info,
                        std::span<const StorageUse> storages, Of which) {
  if (info.cut == nullptr && info.in_place == InPlaceRule::kNever) return false;
  if (manager == nullptr) return false;
  const SliceMode mode = manager->slice_mode();
  if (mode == SliceMode::kOff || manager->below() == nullptr) return false;
  if (mode == SliceMode::kInPlace) return true;
  if (which == Of::kAny) return info.cut != nullptr || is_all(mode);
  if (info.cut == nullptr && !is_all(mode)) return false;
  if (info.cut != nullptr && (mode == SliceMode::kAlways || looks_up(info.cut))) return true;
  Bytes bytes = 0;
  for (const StorageUse& use : storages) bytes += static_cast<Bytes>(use.storage->nbytes());
  return bytes >= manager->limit() / kLargeCall;
}

std::optional<SlicedCall> SlicedCall::of(DeviceManager* manager, const OpInfo& info,
                                         const c10::SafeKernelFunction& kernel,
                                         const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                         const c10::Stack& stack, Of which) {
  if (info.cut == nullptr && info.in_place == InPlaceRule::kNever) return std::nullopt;
  static thread_local StorageUses storages;
  storages.clear();
  for (std::size_t i = stack.size() - info.argument_count; i < stack.size(); ++i) {
    collect_storages(stack[i], /*writes=*/false, /*inside=*/false, storages);
  }
  if (!may_be(manager, info, storages, which)) return std::nullopt;
  Bytes bytes = 0;
  std::uint64_t number = info.key;
  for (const StorageUse& use : storages) {
    const auto size = static_cast<Bytes>(use.storage->nbytes());
    number = mixed(number, static_cast<std::uint64_t>(size));
    bytes += size;
  }
  const ThreadState& state = thread_state();
  // Somebody else has, or takes, the addresses of what the operator uses.
  const bool held = !state.access_scopes.empty() && state.access_scopes.back().holds;
  if (held || state.keeps > 0 || state.replay != nullptr || manager->capturing()) {
    return std::nullopt;
  }
  SlicedCall call(*manager, info, kernel, op, keys,
                  {stack.end() - info.argument_count, stack.end()});
  call.bytes_ = bytes;
  call.number_ = number;
  call.base_ = stack.size() - info.argument_count;
  return call;
}

bool SlicedCall::at_once() const {
  const SliceMode mode = manager_.slice_mode();
  if (mode == SliceMode::kInPlace) return true;
  if (mode == SliceMode::kAlways) return true;
  return bytes_ > manager_.limit() ||
         manager_.slice_memory().of(number_) != SliceMemory::Whole::kUnknown || must_be_in_place();
}

bool SlicedCall::may_be_in_place() const {
  const SliceMode mode = manager_.slice_mode();
  const bool wanted = is_all(mode) || mode == SliceMode::kInPlace;
  if (!wanted || info_.in_place == InPlaceRule::kNever) return false;
  // Copies between devices say in which direction they go.
  return std::ranges::all_of(arguments_, [&](const c10::IValue& value) {
    if (value.isDevice()) return value.toDevice() == manager_.device();
    if (!value.isTensor() || !value.toTensor().defined()) return true;
    const at::Tensor& tensor = value.toTensor();
    return tensor.layout() == c10::kStrided && !tensor.is_nested() && !tensor.is_quantized() &&
           (tensor.device() == manager_.device() || tensor.dim() == 0);
  });
}

bool SlicedCall::must_be_in_place() const {
  if (info_.may_rerun || info_.cut != nullptr || bytes_ < manager_.limit() / kDoubtful ||
      !may_be_in_place()) {
    return false;
  }
  Bytes needed = 0;
  if (info_.makes_once) {
    for (const Bytes bytes : foreseen_results(manager_, op_, arguments_)) {
      needed += manager_.room_of(bytes);
    }
  }
  StorageUses storages;
  for (const c10::IValue& value : arguments_) {
    collect_storages(value, /*writes=*/false, /*inside=*/false, storages);
  }
  EngineLock lock = manager_.engine().lock();
  needed += Pins::bytes_to_come(lock, manager_, storages);
  return needed > 0 && manager_.engine().immovable(lock) + needed > manager_.limit();
}

void SlicedCall::take(c10::Stack& stack, std::span<const c10::IValue> results) const {
  stack.resize(base_);
  stack.insert(stack.end(), results.begin(), results.end());
}

bool SlicedCall::run(c10::Stack& stack, bool tried) {
  if (!manager_.counted_versions().counts(info_, kernel_, op_, keys_, arguments_)) {
    return run_uncounted(stack, tried);
  }
  struct Written {
    at::Tensor tensor;
    std::uint32_t before;
  };
  std::vector<Written> written;
  for (const auto& argument : info_.arguments) {
    const c10::IValue& value = arguments_[argument.index];
    if (!argument.writes || !value.isTensorList()) continue;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.is_inference()) continue;  // it has no version
      written.push_back(
          {tensor, tensor.unsafeGetTensorImpl()->version_counter().current_version()});
    }
  }
  if (!run_uncounted(stack, tried)) return false;
  for (const auto& [tensor, before] : written) {
    c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
    // Those that the kernel has been given itself it has counted.
    if (impl->version_counter().current_version() == before) impl->bump_version();
  }
  return true;
}

bool SlicedCall::run_uncounted(c10::Stack& stack, bool tried) {
  using Whole = SliceMemory::Whole;
  const Whole whole = manager_.slice_memory().of(number_);
  const bool in_place = manager_.slice_mode() == SliceMode::kInPlace || whole == Whole::kInPlace ||
                        whole == Whole::kAllBelow || whole == Whole::kWorkspaceBelow ||
                        whole == Whole::kLessWorkspace;
  if (info_.cut != nullptr && !in_place && run_in_parts(stack)) return true;
  // Its kernel may have written some of what it writes.
  if (tried && !info_.may_rerun && info_.cut == nullptr) return false;
  return run_in_place(stack);
}

void SlicedCall::note_full_below(const std::string& why) {
  if (!why.empty()) full_below_ = why;
}

bool SlicedCall::run_in_place(c10::Stack& stack) {
  using Whole = SliceMemory::Whole;
  using What = InPlace::What;
  if (!may_be_in_place()) return false;
  // What keeps the bits goes first. As a whole, with another algorithm, it is not remembered: the
  // thread's kernels remember the algorithm.
  struct Way {
    What below;
    bool any_algorithm;
    Whole known;
  };
  static constexpr std::array<Way, 5> kWays{{
      {What::kSome, false, Whole::kInPlace},
      {What::kAll, false, Whole::kAllBelow},
      {What::kWorkspace, false, Whole::kWorkspaceBelow},
      {What::kNothing, true, Whole::kUnknown},
      {What::kAll, true, Whole::kLessWorkspace},
  }};
  const bool stress = manager_.slice_mode() == SliceMode::kInPlace;
  const Whole known = manager_.slice_memory().of(number_);
  const auto is_known = [&](const Way& way) { return way.known == known; };
  const Way* way = std::ranges::find_if(kWays, is_known);
  if (known == Whole::kUnknown || way == kWays.end()) way = kWays.begin();
  // One that cannot be tried again has all the room that there is.
  if (way->below == What::kSome && (stress || (!info_.may_rerun && info_.cut == nullptr))) ++way;
  const auto may = [&](const Way& way) {
    if (way.any_algorithm) return manager_.may_change_algorithm(info_, arguments_);
    // With cudnn.benchmark every algorithm would be timed, with a workspace over the link.
    return way.below != What::kWorkspace ||
           (info_.has_algorithms && info_.in_place != InPlaceRule::kOperands &&
            !manager_.below()->like_memory() && !at::globalContext().benchmarkCuDNN());
  };
  if (!may(*way)) way = kWays.begin() + 1;
  const Bytes lack = std::max(lack_, manager_.slice_memory().lack_of(number_));
  for (int refusals = 0;;) {
    InPlace call(manager_, {info_, kernel_, op_, keys_}, arguments_);
    WorkspaceRetry other;
    std::vector<c10::IValue> results;
    if (try_way(call, way->below, lack, way->any_algorithm ? &other : nullptr, results)) {
      if (!stress) manager_.slice_memory().set(number_, way->known, lack);
      if (!other.refused.empty()) manager_.algorithm_was_changed(info_);
      born_.assign(call.born().begin(), call.born().end());
      take(stack, results);
      return true;
    }
    note_full_below(call.why_full_below());
    if (refused_.empty()) refused_ = other.refused;
    manager_.pilot().restart_operator();
    if (call.contended() && ++refusals < kMostRefusals) continue;
    way = std::find_if(way + 1, kWays.end(), [&](const Way& next) { return may(next); });
    if (way == kWays.end()) return false;
  }
}

Bytes SlicedCall::part_bytes() const {
  return std::clamp(manager_.limit() / Cutter::kPartOfLimit, kLeastPart, kMostPart);
}

std::vector<Cut> SlicedCall::cuts(Bytes part) const {
  try {
    return info_.cut({info_.name, op_, arguments_, part});
  } catch (const c10::Error&) {
    return {};  // what is wrong with the call is the operator's to say
  }
}

bool SlicedCall::run_in_parts(c10::Stack& stack) {
  using Whole = SliceMemory::Whole;
  const bool always = manager_.slice_mode() == SliceMode::kAlways;
  const Bytes limit = manager_.limit();
  const Bytes part = part_bytes();
  const c10::impl::ExcludeDispatchKeyGuard below(above_kernels());
  std::vector<Cut> cuts = this->cuts(part);
  if (cuts.empty()) return false;
  Whole whole = manager_.slice_memory().of(number_);
  if (always) whole = Whole::kNone;
  if (whole == Whole::kUnknown) whole = Whole::kSome;
  Cutter cutter(manager_, {info_, kernel_, op_, keys_}, arguments_, std::move(cuts));
  std::vector<c10::IValue> results;
  if (whole == Whole::kSome) {
    const auto outcome =
        cutter.run({.part = part, .whole = limit - limit / Cutter::kWholeLeaves}, results);
    note_full_below(cutter.why_full_below());
    if (outcome == Cutter::Outcome::kCannot) return false;
    if (outcome == Cutter::Outcome::kShort) whole = Whole::kNone;
  }
  if (whole == Whole::kNone) {
    const auto outcome = cutter.run({.part = part, .thirds = always}, results);
    note_full_below(cutter.why_full_below());
    if (outcome == Cutter::Outcome::kCannot) return false;
    if (outcome == Cutter::Outcome::kShort) {
      if (!cutter.half_written() && run_in_place(stack)) return true;
      cutter.throw_short();
    }
  }
  if (!always) manager_.slice_memory().set(number_, whole);
  ++manager_.sliced_operators;
  born_ = cutter.born();
  take(stack, results);
  return true;
}

}  // namespace lms::torch
