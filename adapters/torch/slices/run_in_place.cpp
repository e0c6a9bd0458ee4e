#include "adapters/torch/slices/run_in_place.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "adapters/torch/device_manager.h"
#include "adapters/torch/errors.h"
#include "adapters/torch/hook/arguments.h"
#include "adapters/torch/hook/retry.h"
#include "adapters/torch/operators/results.h"
#include "adapters/torch/registry.h"
#include "adapters/torch/replay/lineages.h"
#include "adapters/torch/replay/replay.h"

namespace lms::torch {
namespace {

/// What lies on the device as a whole leaves this part of the room for what kernels need besides.
constexpr Bytes kLeavesBeside = 4;
/// What kernels share between their blocks by atomic operations is smaller.
constexpr Bytes kLeastTemporary = kMiB;

/// While it lives the thread's kernel runs in place.
class Running {
 public:
  explicit Running(InPlace& call) { thread_state().in_place = &call; }
  ~Running() { thread_state().in_place = nullptr; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
};

}  // namespace

c10::DataPtr allocate_in_place(const DeviceManager& manager, Bytes bytes, bool refused) {
  InPlace* const call = thread_state().in_place;
  return call != nullptr ? call->allocate(manager, bytes, refused) : c10::DataPtr();
}

std::vector<Bytes> foreseen_results(const DeviceManager& manager, const c10::OperatorHandle& op,
                                    std::span<const c10::IValue> arguments) {
  const c10::impl::ExcludeDispatchKeyGuard below(above_kernels());
  const c10::impl::DisablePythonDispatcher no_python;
  return result_bytes(op, arguments, manager.device());
}

InPlace::InPlace(DeviceManager& manager, CalledKernel called, const c10::Stack& arguments)
    : manager_(manager), below_(*manager.below()), called_(called), arguments_(arguments) {}

InPlace::~InPlace() { let_go(); }

bool InPlace::operands_alone() const {
  return called_.info.in_place == InPlaceRule::kOperands && !below_.like_memory();
}

bool InPlace::may_rerun() const {
  // What is cut and works in place allocates before it writes.
  return called_.info.may_rerun || called_.info.cut != nullptr;
}

void InPlace::let_go() noexcept {
  if (lent_.empty()) return;
  std::vector<Use> uses;
  for (const Operand& lent : std::exchange(lent_, {})) {
    try {
      below_.end(*lent.use.block, lent.use.writes);
    } catch (const std::exception&) {
      // The device has failed: nothing runs any more.
    }
    uses.push_back(lent.use);
  }
  EngineLock lock = manager_.engine().lock();
  manager_.engine().give_back(lock, uses);
}

bool InPlace::holds(const c10::StorageImpl* storage) const {
  return std::ranges::find(lent_, storage, &Operand::storage) != lent_.end();
}

// Memory

c10::DataPtr InPlace::allocate(const DeviceManager& manager, Bytes bytes, bool refused) {
  const ThreadState& state = thread_state();
  // What comes back, or is computed again, is wanted on the device.
  if (&manager != &manager_ || bytes < manager_.min_block() || state.arrivals > 0 ||
      state.replay != nullptr || operands_alone()) {
    return {};
  }
  const auto among = [&](const std::vector<Bytes>& all) {
    return std::ranges::find(all, bytes) != all.end();
  };
  const bool once = called_.info.in_place == InPlaceRule::kReadsOnce;
  const bool fits = there_ + manager_.room_of(bytes) <= room_;
  const bool lacks = !fits || refused;
  // A workspace may take the place of one that is gone: only the device knows.
  const bool workspace = workspace_ && refused && bytes > below_.most_kept_by_libraries();
  const bool may =
      among(results_) || below_.like_memory() || (once && bytes >= kLeastTemporary) || workspace;
  if (!may || (!lacks && !all_ && !among(wanted_))) {
    if (!refused) there_ += manager_.room_of(bytes);
    return {};
  }
  try {
    c10::DataPtr data =
        take_below(manager_.engine(), bytes, [&] { return below_.allocate(bytes); });
    if (data) below_bytes_ += bytes;
    return data;
  } catch (const TierFull& full) {
    full_below_ = full.what();
    return {};
  }
}

// Before the kernel

std::vector<InPlace::Operand> InPlace::operands() {
  ThreadState& state = thread_state();
  state.arguments.clear();
  for (const OpInfo::Argument& argument : called_.info.arguments) {
    collect_storages(arguments_[argument.index], argument.writes, /*inside=*/false,
                     state.arguments);
  }
  std::vector<Operand> found;
  EngineLock lock = manager_.engine().lock();
  for (const StorageUse& use : state.arguments) {
    const auto known = std::ranges::find(found, use.storage, &Operand::storage);
    if (known != found.end()) {
      known->use.writes = known->use.writes || use.writes;
      continue;
    }
    if (use.storage->device() != manager_.device()) continue;
    Block* const block = manager_.find_or_track(lock, *use.storage);
    if (block != nullptr && !block->kept) found.push_back({use.storage, {block, use.writes}});
  }
  return found;
}

std::vector<InPlace::Operand> InPlace::choose(What below, Bytes lack) {
  std::vector<Operand> chosen = operands();
  workspace_ = below == What::kWorkspace;
  all_ = below == What::kAll || workspace_;
  wanted_.clear();
  results_ = foreseen_results(manager_, called_.op, arguments_);
  EngineLock lock = manager_.engine().lock();
  Engine& engine = manager_.engine();
  room_ = manager_.limit() - engine.immovable(lock);
  there_ = 0;
  for (const Operand& operand : chosen) {
    const Block& block = *operand.use.block;
    there_ += block.size;
    if (block.state == BlockState::kFresh && block.pins == 0) room_ += block.size;
  }
  room_ = std::max<Bytes>(room_, 0);
  if (below == What::kNothing) chosen.clear();
  if (operands_alone()) {
    std::erase_if(chosen, [](const Operand& operand) { return operand.use.writes; });
  }
  if (below == What::kSome) {
    Bytes needed = there_;
    for (const Bytes bytes : results_) needed += manager_.room_of(bytes);
    if (lack > 0) needed = std::max(needed, room_ + lack);
    const Bytes most = room_ - room_ / kLeavesBeside;
    // Results suffer least: each byte goes over the link once, as it would if it left.
    std::vector<Bytes> results = operands_alone() ? std::vector<Bytes>() : results_;
    std::ranges::sort(results, std::greater<>());
    for (const Bytes bytes : results) {
      if (needed <= most || bytes < manager_.min_block()) break;
      wanted_.push_back(bytes);
      needed -= manager_.room_of(bytes);
    }
    std::ranges::stable_sort(chosen, std::greater<>(),
                             [](const Operand& operand) { return operand.use.block->size; });
    const auto stay = std::ranges::find_if(chosen, [&](const Operand& operand) {
      if (needed <= most) return true;
      needed -= operand.use.block->size;
      return false;
    });
    chosen.erase(stay, chosen.end());
  }
  for (const Operand& one : chosen) there_ -= one.use.block->size;
  // First of all, so that nothing else has to leave for what stays.
  for (const Operand& one : chosen) evict_early(lock, engine, *one.use.block);
  return chosen;
}

bool InPlace::prepare(What below, Bytes lack) {
  std::vector<Operand> chosen = choose(below, lack);
  const bool of_list = called_.info.in_place != InPlaceRule::kOperands;
  const bool makes = !results_.empty() || (below_.like_memory() && of_list);
  // Otherwise it may fit this time as a whole, or by another algorithm.
  const bool all = below == What::kAll || below == What::kWorkspace;
  if (all && chosen.empty() && (!makes || operands_alone())) return false;
  ThreadState& state = thread_state();
  // What stays comes first: whoever waits for what is lent to another must have lent nothing.
  StorageUses stays = state.arguments;
  const auto goes = [&](const StorageUse& use) {
    return std::ranges::find(chosen, use.storage, &Operand::storage) != chosen.end();
  };
  stays.erase(std::remove_if(stays.begin(), stays.end(), goes), stays.end());
  state.operator_pins.add(state, stays);
  std::vector<c10::StorageImpl*> written;
  std::vector<Use> uses;
  for (const Operand& one : chosen) {
    if (one.use.writes) written.push_back(one.storage);
    uses.push_back(one.use);
  }
  if (!written.empty() && manager_.lineages().any()) manager_.lineages().before_write(written);
  Engine& engine = manager_.engine();
  {
    EngineLock lock = engine.lock(may_wait_as());
    enter_engine(lock, engine);
    if (!engine.lend(lock, uses)) return false;
    lent_ = std::move(chosen);
    manager_.pilot().used_below(lock, uses);
  }
  for (const Use& use : uses) {
    if (use.writes && !below_.writable(*use.block)) return false;
    if (!below_.begin(*use.block, use.writes)) return false;
    below_bytes_ += use.block->size;
  }
  return true;
}

// The kernel, and after it

InPlace::Outcome InPlace::run(What below, Bytes lack, std::vector<c10::IValue>& results) {
  mark_pressed();
  manager_.pilot().wake();
  const c10::OptionalDeviceGuard guard(
      manager_.device().is_cpu() ? std::nullopt : std::optional(manager_.device()));
  ThreadState& state = thread_state();
  below_bytes_ = 0;
  const auto ended = [&](Outcome outcome) {
    let_go();
    contended_ = state.holder.contended();
    begin_anew(state);
    return outcome;
  };
  try {
    if (!prepare(below, lack)) return ended(Outcome::kCannot);
  } catch (const std::exception& error) {
    if (!found_no_room(error)) throw;
    if (dynamic_cast<const TierFull*>(&error) != nullptr) full_below_ = error.what();
    return ended(Outcome::kShort);
  }
  c10::Stack stack = arguments_;
  try {
    call(stack);
  } catch (const std::exception& error) {
    if (!found_no_room(error) || !may_rerun()) throw;
    stack.clear();
    return ended(Outcome::kShort);
  }
  take_results(stack);
  let_go();
  manager_.in_place_bytes += below_bytes_;
  if (below_bytes_ > 0) ++manager_.in_place_operators;
  results.assign(stack.begin(), stack.end());
  return Outcome::kDone;
}

void InPlace::call(c10::Stack& stack) {
  ThreadState& state = thread_state();
  const Repeatable repeatable(state, may_rerun());
  const Kernel kernel(state, called_.info);
  const Running running(*this);
  called_.kernel.callBoxed(called_.op, called_.keys, &stack);
}

void InPlace::take_results(const c10::Stack& stack) {
  ThreadState& state = thread_state();
  StorageUses made;
  for (const c10::IValue& value : stack) {
    collect_storages(value, /*writes=*/true, /*inside=*/false, made);
  }
  StorageUses here;
  for (const StorageUse& use : made) {
    const auto& known = state.arguments;
    if (use.storage->device() != manager_.device() || holds(use.storage) ||
        std::ranges::find(known, use.storage, &StorageUse::storage) != known.end()) {
      continue;
    }
    if (Block* const block = below_.adopt(*use.storage)) {
      lent_.push_back({use.storage, {block, /*writes=*/true}});
      born_.push_back({block->uid, block->size});
    } else {
      here.push_back({use.storage, /*writes=*/false});
    }
  }
  if (!here.empty()) state.operator_pins.add(state, here);
}

}  // namespace lms::torch
