#include "adapters/torch/deferred/deferred.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "adapters/torch/deferred/list_passes.h"
#include "adapters/torch/errors.h"
#include "adapters/torch/operators/numerics.h"
#include "adapters/torch/replay/replay.h"

namespace lms::torch {

std::atomic<int> deferring{0};

namespace {

/// Those that are counted in `deferring`: the CPU's, then those of the GPUs.
std::array<std::atomic<const Deferred*>, 65> deferring_ones{};

std::atomic<const Deferred*>& place_of(c10::Device device) {
  return deferring_ones.at(device.is_cpu() ? 0 : 1 + static_cast<std::size_t>(device.index()));
}

/// Of parts that wait for each other in a row: nobody looks, so somebody only adds up.
constexpr std::size_t kLongestRow = 64;

bool conflicts(bool writes, bool other_writes) { return writes || other_writes; }

}  // namespace

// Settings

Deferred::Mode Deferred::mode_of(const std::string& setting) {
  if (setting == "false" || setting == "off") return Mode::kNone;
  if (setting == "true" || setting == "on") return Mode::kLists;
  if (setting == "chosen") return Mode::kChosen;
  if (setting == "updates") return Mode::kUpdates;
  if (setting == "all") return Mode::kAll;
  if (setting == "random") return Mode::kRandom;
  throw BadSetting("deferred_updates: '" + setting +
                   "' is not one of auto, true, false, chosen, updates, all, random");
}

MayWait Deferred::put_off_by_plan(Mode mode) {
  if (mode == Mode::kChosen) {
    return [](std::string_view name) { return deferral_rule(name) == Deferral::kUpdates; };
  }
  if (mode != Mode::kLists) return nullptr;
  return [](std::string_view name) {
    const Deferral rule = deferral_rule(name);
    return (rule != Deferral::kNever && rule != Deferral::kElements && rule != Deferral::kRows) ||
           name.starts_with(kListPass);
  };
}

void Deferred::choose(const std::vector<BlockUid>& written) {
  auto chosen = std::make_shared<const Chosen>(written.begin(), written.end());
  {
    const std::lock_guard guard(chosen_mutex_);
    chosen_ = std::move(chosen);
  }
  any_chosen_ = !written.empty();
  if (is_by_plan(mode()) && !written.empty()) count(true);
}

void Deferred::count(bool among) {
  if (counted_.exchange(among) == among) return;
  // Whoever looks goes through the places until it has seen so many.
  if (among) ++deferring;
  place_of(manager_.device()) = among ? this : nullptr;
  if (!among) --deferring;
}

Concern Deferred::concern_of(const OpInfo& info, c10::function_ref<bool()> split) const {
  const auto waiting = waiting_.load(std::memory_order_relaxed);
  const auto may_wait = [&] {
    // Or it may make rows of what it reads, for which it is asked in the same place.
    if (info.reads_rows && rows_.load(std::memory_order_relaxed) > 0) return true;
    if (info.deferral == Deferral::kRows) return chains() && split();
    const Mode mode = this->mode();
    if (info.deferral == Deferral::kNever || mode == Mode::kNone) return false;
    if (!is_by_plan(mode)) return true;
    if (info.deferral == Deferral::kElements) return false;
    if (any_chosen_.load(std::memory_order_relaxed)) return true;
    return mode == Mode::kLists && (any_for_long() || split());
  };
  if (may_wait()) return Concern::kMayWait;
  if (waiting > 0) return Concern::kRuns;
  const bool late = any_late_.load(std::memory_order_relaxed) && !manager_.is_in_order();
  return late ? Concern::kRuns : Concern::kNothing;
}

Concern concern_of_deferred(const OpInfo& info, c10::function_ref<bool()> split) {
  Concern most = Concern::kNothing;
  int left = deferring.load(std::memory_order_relaxed);
  for (auto place = deferring_ones.begin(); left > 0 && place != deferring_ones.end(); ++place) {
    const Deferred* const one = place->load(std::memory_order_relaxed);
    if (one == nullptr) continue;
    most = std::max(most, one->concern_of(info, split));
    --left;
  }
  return most;
}

std::shared_ptr<const Deferred::Chosen> Deferred::chosen() {
  const std::lock_guard guard(chosen_mutex_);
  return chosen_;
}

void Deferred::set_mode(Mode mode) {
  if (mode == this->mode()) return;
  choose({});
  const Mode before = mode_.exchange(mode);
  if (mode != Mode::kNone) {
    // Until a plan has chosen something, operators need not ask.
    if (mode != Mode::kChosen) count(true);
    return;
  }
  try {
    run_all();
    finish_late();
  } catch (...) {
    mode_ = before;
    throw;
  }
  count(false);
  // The next limit is another.
  const std::lock_guard guard(mutex_);
  wanted_whole_.clear();
  began_.clear();
  for (auto& key : operators_that_waited_) key = 0;
}

// Waiting

bool Deferred::defer(const Entrances& entrances, const OpInfo& info,
                     const c10::SafeKernelFunction& kernel, const c10::OperatorHandle& op,
                     c10::DispatchKeySet keys, c10::Stack& stack, c10::function_ref<bool()> split) {
  if (info.deferral == Deferral::kRows) {
    return defer_rows(entrances, info, kernel, op, keys, stack);
  }
  const Mode mode = this->mode();
  if (mode == Mode::kNone) return false;
  const bool by_plan = is_by_plan(mode);
  const bool lists_alone = by_plan || mode == Mode::kUpdates;
  if (lists_alone && info.deferral == Deferral::kElements) return false;
  const bool makes = info.deferral == Deferral::kMakes;
  // What follows a part that a plan has chosen waits as well, of whatever size.
  const bool brief = mode == Mode::kLists && (any_for_long() || split());
  if (by_plan && !brief && makes) return false;
  // What autograd is to know of is best run where it is called.
  if ((brief || makes) && c10::GradMode::is_enabled()) return false;
  if (makes && c10::InferenceMode::is_enabled()) return false;
  const auto by_choice = by_plan ? chosen() : nullptr;
  if (by_choice && by_choice->empty() && !brief) return false;
  if (!may_wait_here()) return false;
  // Tests have every position wait, and run, by itself.
  WhoWaits who = {.chosen = by_choice.get(),
                  .is_behind = {},
                  .others_too = brief,
                  .piece = by_plan ? manager_.list_chunk() : 0};
  if (brief && any_for_long()) {
    who.is_behind = [&](std::span<const StorageUse> uses) {
      const std::lock_guard guard(mutex_);
      return is_behind_chosen(uses);
    };
  }
  Deferrable call = what_may_wait(manager_, who, info, kernel, op, keys, stack);
  if (call.parts.empty()) return false;
  // Within a chain over lists nothing dies that the chain does not need, and there are many parts.
  if (brief_.load(std::memory_order_relaxed) == 0) discard_dead();
  const std::uint64_t number = [&] {
    const std::lock_guard guard(mutex_);
    return next_call_++;
  }();
  // First: if it finds no room, nothing waits that whoever calls again would have twice.
  if (!call.rest.empty()) entrances.run(info, kernel, op, keys, call.rest);
  for (const at::Tensor& tensor : call.counted) tensor.unsafeGetTensorImpl()->bump_version();
  for (auto& part : call.parts) {
    part->run = entrances.run;
    part->call = number;
    if (brief && !part->for_long) part->brief_for = &thread_state();
    add(std::move(part));
  }
  // Another thread may have turned it off meanwhile, and run what was there.
  if (this->mode() == Mode::kNone) run_all();
  const std::size_t base = stack.size() - info.argument_count;
  if (!makes) {
    stack.resize(base + op.schema().returns().size());  // nothing, or the first argument
    return true;
  }
  if (!call.rest.empty()) {
    auto at_once = call.made.begin();
    for (const at::Tensor& tensor : call.rest.back().toTensorVector()) {
      at_once = std::ranges::find(at_once, call.made.end(), false, &at::Tensor::defined);
      *at_once = tensor;
    }
  }
  stack.resize(base);
  stack.emplace_back(std::move(call.made));
  return true;
}

void Deferred::add(std::unique_ptr<Part> part) {
  const PartPtr shared = std::move(part);
  bool too_long = false;
  {
    const std::lock_guard guard(mutex_);
    shared->number = next_number_++;
    shared->called = std::chrono::steady_clock::now();
    if (shared->brief_for != nullptr && is_behind_chosen(shared->uses)) shared->brief_for = nullptr;
    if (shared->rows) note_through(*shared);
    shared->waits = true;
    all_.emplace_hint(all_.end(), shared->number, shared);
    for (const auto* uses : {&shared->uses, &shared->through}) {
      for (const StorageUse& use : *uses) {
        auto& row = by_storage_[use.storage];
        row.push_back({shared, use.writes, uses == &shared->through});
        too_long = too_long || row.size() > kLongestRow;
      }
    }
    ++waiting_;
    const bool brief = shared->brief_for != nullptr;
    if (brief) ++brief_;
    if (shared->rows) ++rows_;
    ++(shared->rows ? in_rows_ : brief ? in_lists_ : parts_);
  }
  if (!too_long) return;
  try {
    before_use(shared->uses);
  } catch (const std::exception& error) {
    // They wait on: the error is whose who looks at what they write.
    if (!is_shortage(error)) throw;
  }
}

bool Deferred::is_behind_chosen(std::span<const StorageUse> uses) const {
  return std::ranges::any_of(uses, [&](const StorageUse& use) {
    const auto row = by_storage_.find(use.storage);
    return row != by_storage_.end() && std::ranges::any_of(row->second, [&](const Waiting& one) {
             return one.part->brief_for == nullptr && !one.part->rows &&
                    conflicts(use.writes, one.writes);
           });
  });
}

void Deferred::remove(const PartPtr& part) {
  for (const auto* uses : {&part->uses, &part->through}) {
    for (const StorageUse& use : *uses) {
      const auto row = by_storage_.find(use.storage);
      if (row == by_storage_.end()) continue;
      std::erase_if(row->second, [&](const Waiting& one) { return one.part == part; });
      if (row->second.empty()) by_storage_.erase(row);
    }
  }
  all_.erase(part->number);
  part->waits = false;
  --waiting_;
  if (part->rows && --rows_ > 0) refresh_through();
  if (part->brief_for != nullptr) --brief_;
}

void Deferred::add_conflicts(PartPtrs& parts, std::span<const StorageUse> uses,
                             std::uint64_t before, bool by_rows) const {
  for (const StorageUse& use : uses) {
    const auto row = by_storage_.find(use.storage);
    if (row == by_storage_.end()) continue;
    for (const Waiting& one : row->second) {
      if (one.part->number >= before || !conflicts(use.writes, one.writes)) continue;
      if (by_rows && one.writes && one.part->rows) continue;  // it makes rows of it for itself
      if (std::ranges::find(parts, one.part) == parts.end()) parts.push_back(one.part);
    }
  }
}

void Deferred::add_needed(PartPtrs& parts) const {
  // Whoever is before one that must run, and conflicts with it, must run as well.
  for (std::size_t next = 0; next < parts.size(); ++next) {
    const PartPtr part = parts[next];
    add_conflicts(parts, part->uses, part->number, part->rows != nullptr);
  }
  std::ranges::sort(parts, {}, &Part::number);
}

Deferred::PartPtrs Deferred::needed_for(std::span<const StorageUse> uses,
                                        std::uint64_t before) const {
  PartPtrs needed;
  add_conflicts(needed, uses, before, /*by_rows=*/false);
  add_needed(needed);
  return needed;
}

Deferred::PartPtrs Deferred::needed_for_rows(std::span<const PartPtr> makers) const {
  PartPtrs needed;
  for (const PartPtr& maker : makers) {
    add_conflicts(needed, maker->uses, maker->number, /*by_rows=*/true);
  }
  add_needed(needed);
  return needed;
}

Deferred::PartPtrs Deferred::next_brief(const ThreadState& thread) const {
  // What a position needs of all calls is there while its part of the last one runs.
  const auto is_brief = [&](const auto& one) { return one.second->brief_for == &thread; };
  const auto last = std::find_if(all_.rbegin(), all_.rend(), is_brief);
  if (last == all_.rend()) return {};
  PartPtr first = last->second;
  for (auto part = last; part != all_.rend() && part->second->call == first->call; ++part) {
    if (is_brief(*part)) first = part->second;
  }
  PartPtrs row = needed_for(first->uses, first->number);
  row.push_back(std::move(first));
  return row;
}

Deferred::Holds Deferred::holds_of_parts() const {
  Holds held;
  for (const auto& [number, part] : all_) {
    for (const StorageUse& use : part->uses) ++held[use.storage];
  }
  return held;
}

// An object that Python has made of a storage holds it, and is held by it: it stays when nobody in
// Python has it any more. To ask for that takes Python's lock, which is not taken under ours.
std::vector<c10::intrusive_ptr<c10::StorageImpl>> Deferred::held_by_nobody_in_python() {
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> found;
  {
    const std::lock_guard guard(mutex_);
    const auto has_object = [](const StorageUse& use) {
      return use.writes && use.storage->pyobj_slot()->load_pyobj() != nullptr;
    };
    const bool any = std::ranges::any_of(all_, [&](const auto& entry) {
      return std::ranges::any_of(entry.second->uses, has_object);
    });
    if (!any) return found;
    const Holds held = holds_of_parts();
    for (const auto& [storage, count] : held) {
      if (storage->pyobj_slot()->load_pyobj() == nullptr) continue;
      if (c10::raw::intrusive_ptr::use_count(storage) != count + 1) continue;
      found.push_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
    }
  }
  std::erase_if(found, [](const auto& one) { return !one->pyobj_slot()->has_unique_reference(); });
  return found;
}

void Deferred::discard_dead() {
  const auto wrapped = held_by_nobody_in_python();
  std::vector<PartPtr> dead;  // destroyed without the lock
  const std::lock_guard guard(mutex_);
  // How often parts hold each storage; 0 where one that is wanted reads or writes it.
  may_be_dead_ = false;
  Holds held = holds_of_parts();
  for (const auto& storage : wrapped) held[storage.get()] += 2;  // Python's object, and here
  for (auto at = all_.end(); at != all_.begin();) {
    const PartPtr part = (--at)->second;
    const bool wanted =
        part->runs || std::ranges::any_of(part->uses, [&](const StorageUse& use) {
          return use.writes && c10::raw::intrusive_ptr::use_count(use.storage) > held[use.storage];
        });
    if (wanted) {
      for (const StorageUse& use : part->uses) held[use.storage] = 0;
    } else {
      ++at;
      remove(part);
      dead.push_back(part);
    }
  }
}

// Forks

void Deferred::before_fork() {
  try {
    run_all();
  } catch (const std::exception&) {
    // It waits on, in the child as well.
  }
  mutex_.lock();
}

// Facts

Deferred::Stats Deferred::stats() {
  discard_dead();
  const std::lock_guard guard(mutex_);
  using Microseconds = std::chrono::duration<std::int64_t, std::micro>;
  Stats stats{.parts = parts_,
              .waiting = waiting_ - brief_ - rows_,
              .bytes = 0,
              .in_lists = in_lists_,
              .waited_us = std::chrono::duration_cast<Microseconds>(waited_).count(),
              .rows = in_rows_,
              .in_passes = in_passes_};
  for (const auto& [storage, row] : by_storage_) {
    const bool waits = std::ranges::any_of(
        row, [](const Waiting& one) { return one.part->brief_for == nullptr && !one.part->rows; });
    if (waits) stats.bytes += static_cast<Bytes>(storage->nbytes());
  }
  return stats;
}

}  // namespace lms::torch
