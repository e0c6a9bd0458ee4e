#include "adapters/torch/thread_state.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string_view>
#include <unordered_set>

#include "adapters/torch/errors.h"
#include "adapters/torch/replay/lineages.h"
#include "adapters/torch/slices/run_in_place.h"

namespace lms::torch {

namespace {

ThreadState& first_state() noexcept {
  static thread_local ThreadState state = [] {
    std::array<char, 16> name{};
    (void)pthread_getname_np(pthread_self(), name.data(), name.size());
    // One of gloo's process groups' calls operators on the tensors of a collective, and then hands
    // their addresses to gloo.
    const bool collectives = std::string_view(name.data()) == "pt_gloo_runloop";
    const bool autograds = std::string_view(name.data()).starts_with("pt_autograd");
    return ThreadState{
        .keeps = collectives ? 1 : 0, .beside = collectives, .step_thread = {.serves = autograds}};
  }();
  return state;
}

}  // namespace

namespace {
std::atomic<int> unseen_calls_now{0};  // of all threads
}  // namespace

void note_unseen_call(bool begins) noexcept {
  const int change = begins ? 1 : -1;
  thread_state().unseen_calls += change;
  unseen_calls_now.fetch_add(change);
}

bool any_unseen_calls() noexcept { return unseen_calls_now.load() > 0; }

ThreadState& thread_state() noexcept {
  // Asked for several times an operator: without a guard.
  static constinit thread_local ThreadState* state = nullptr;
  if (state == nullptr) [[unlikely]]
    state = &first_state();
  return *state;
}

// Threads that wait for each other

PinHolder* may_wait_as() noexcept { return may_wait_as(thread_state()); }

PinHolder* may_wait_as(ThreadState& state) noexcept {
  // A helper of an operator's own kernel; a plan's order, for whose block others may be waiting.
  const bool helps = at::in_parallel_region();
  const bool brings = state.replay != nullptr || state.arrivals > 0;
  return helps || (brings && state.outermost == nullptr) ? nullptr : &state.holder;
}

void enter_engine(EngineLock& lock, Engine& engine) { enter_engine(thread_state(), lock, engine); }

void enter_engine(ThreadState& state, EngineLock& lock, Engine& engine) {
  if (state.outermost == nullptr || state.holder.engine() != nullptr) return;
  if (PinHolder* const who = may_wait_as(state)) engine.enter(lock, *who);
}

void leave_engine(ThreadState& state, bool to_try_again) noexcept {
  Engine* const engine = state.holder.engine();
  if (engine == nullptr) return;
  EngineLock lock = engine->lock();
  engine->leave(lock, state.holder, to_try_again);
}

// Pins

bool Pins::holds(const Block* block, bool writes) const {
  // Looking back a little is enough to keep long nested operators from piling up pins.
  constexpr std::size_t kLookBack = 32;
  const std::size_t first = held_.size() > kLookBack ? held_.size() - kLookBack : 0;
  for (std::size_t i = first; i < held_.size(); ++i) {
    if (held_[i].use.block == block && (held_[i].use.writes || !writes)) return true;
  }
  return false;
}

void Pins::add(std::span<const StorageUse> storages, const std::optional<c10::Stream>& stream) {
  add(thread_state(), storages, stream);
}

void Pins::add(ThreadState& state, std::span<const StorageUse> storages,
               const std::optional<c10::Stream>& stream) {
  DeviceManager* first = nullptr;
  c10::SmallVector<DeviceManager*, 2> others;
  std::optional<c10::Device> last;
  for (const StorageUse& use : storages) {
    const c10::Device device = use.storage->device();
    if (last == device) continue;
    last = device;
    DeviceManager* const manager = active_manager(device);
    if (manager == nullptr || manager == first) continue;
    if (first == nullptr) {
      first = manager;
    } else if (std::ranges::find(others, manager) == others.end()) {
      others.push_back(manager);
    }
  }
  if (first != nullptr) add_on(state, *first, storages, stream);
  for (DeviceManager* manager : others) add_on(state, *manager, storages, stream);
}

void Pins::add_on(ThreadState& state, DeviceManager& manager, std::span<const StorageUse> storages,
                  const std::optional<c10::Stream>& stream) {
  c10::SmallVector<Use, 16> uses;
  c10::SmallVector<StorageWritten, 8> written;
  const c10::Device device = manager.device();
  Engine& engine = manager.engine();
  // A replay is not the step's, and writes nothing that lineages know.
  const bool replays = state.replay != nullptr;
  Lineages* const lineages = manager.lineages().any() && !replays ? &manager.lineages() : nullptr;
  PinHolder* const who = may_wait_as(state);
  EngineLock lock = engine.lock(who);
  if (who != nullptr && state.outermost != nullptr && state.holder.engine() == nullptr) {
    engine.enter(lock, *who);
  }
  const auto find_uses = [&] {
    uses.clear();
    written.clear();
    for (const StorageUse& use : storages) {
      if (use.storage->device() != device) continue;
      // The whole has lent it, and its parts use it where it lies.
      if (state.in_place != nullptr && state.in_place->holds(use.storage)) continue;
      Block* block = manager.find_or_track(lock, *use.storage);
      const bool held = block != nullptr && holds(block, use.writes);
      if (block != nullptr && !held) uses.push_back({block, use.writes});
      // Once an operator: its parts write what it writes.
      if (lineages != nullptr && use.writes && !held) written.push_back({use.storage, block});
    }
  };
  find_uses();
  if (!written.empty() && lineages->must_hear_of(lock, written)) {
    c10::SmallVector<c10::StorageImpl*, 8> storages_written;
    for (const StorageWritten& one : written) storages_written.push_back(one.storage);
    lock.unlock();
    lineages->before_write(storages_written);
    lock.lock();
    find_uses();
  }
  if (uses.empty()) return;
  // Measured before pin() lets the lock go: afterwards a block may be gone.
  const bool all_here =
      std::ranges::all_of(uses, [](const Use& use) { return !is_away(use.block->state); });
  const Bytes bytes = all_here ? 0 : bytes_to_come(lock, manager, storages);
  try {
    engine.pin(lock, uses);
  } catch (const OutOfMemory&) {
    if (lock.owns()) lock.unlock();
    throw_out_of_memory(manager, {.requested = bytes});
  } catch (const TierFull& full) {
    if (lock.owns()) lock.unlock();
    throw_out_of_memory(manager, {.requested = bytes, .reason = full.what()});
  }
  for (const Use& use : uses) held_.push_back({&manager, use});
  manager.note_use(lock, uses, stream);
  if (state.in_step()) manager.pilot().touch(lock, uses);
}

bool Pins::add_made(EngineLock& lock, ThreadState& state, DeviceManager& manager,
                    std::span<const StorageUse> made) {
  c10::SmallVector<Use, 8> uses;
  for (const StorageUse& use : made) {
    if (use.storage->device() != manager.device()) return false;
    Block* block = manager.find_or_track(lock, *use.storage);
    if (block == nullptr || holds(block, use.writes)) continue;
    // Somebody's already: lineages may want its bytes as they were, or they are away.
    if (block->state != BlockState::kFresh || block->pins > 0) return false;
    uses.push_back({block, use.writes});
  }
  if (uses.empty()) return true;
  manager.engine().pin(lock, uses);  // what is fresh is there
  for (const Use& use : uses) held_.push_back({&manager, use});
  manager.note_use(lock, uses, {});
  if (state.in_step()) manager.pilot().touch(lock, uses);
  return true;
}

void Pins::release_after_operator(ThreadState& state, std::span<const StorageUse> made) {
  if (!made.empty()) {
    bool added = false;
    if (!held_.empty()) {
      DeviceManager* const manager = held_.back().manager;
      Engine& engine = manager->engine();
      EngineLock lock = engine.lock();
      added = add_made(lock, state, *manager, made);
      if (added) {
        state.outermost = nullptr;
        release_on(lock, *manager);
        engine.leave(lock, state.holder);
        engine.operator_ended(lock);
      }
    }
    if (!added) add(state, made);
  }
  state.outermost = nullptr;
  if (!held_.empty()) release_after_operator(&state.holder);
}

void Pins::release_on(EngineLock& lock, DeviceManager& manager) noexcept {
  Engine& engine = manager.engine();
  std::array<Use, 8> uses{};
  while (!held_.empty() && held_.back().manager == &manager) {
    std::size_t count = 0;
    while (count < uses.size() && !held_.empty() && held_.back().manager == &manager) {
      uses[count++] = held_.back().use;
      held_.pop_back();
    }
    engine.unpin(lock, {uses.data(), count});
  }
}

void Pins::release() noexcept {
  while (!held_.empty()) {
    DeviceManager* manager = held_.back().manager;
    EngineLock lock = manager->engine().lock();
    release_on(lock, *manager);
  }
}

void Pins::release_after_operator(PinHolder* holder) {
  while (!held_.empty()) {
    DeviceManager* manager = held_.back().manager;
    EngineLock lock = manager->engine().lock();
    release_on(lock, *manager);
    if (holder != nullptr) manager->engine().leave(lock, *holder);
    manager->engine().operator_ended(lock);
  }
}

void Pins::keep(EngineLock& lock, const Held& held) {
  held.manager->engine().keep(lock, *held.use.block);
  held.manager->pilot().kept(lock, *held.use.block);
}

void Pins::keep() {
  for (const Held& held : held_) {
    EngineLock lock = held.manager->engine().lock();
    keep(lock, held);
  }
}

void Pins::keep_but(std::span<const StorageUse> others) {
  for (const Held& held : held_) {
    EngineLock lock = held.manager->engine().lock();
    const bool is_other = std::ranges::any_of(others, [&](const StorageUse& other) {
      return other.storage->device() == held.manager->device() &&
             held.manager->find(lock, *other.storage) == held.use.block;
    });
    const bool lives = !held.use.block->died && held.use.block->alive();
    if (lives && !is_other) keep(lock, held);
  }
}

void Pins::hand_to(Pins& other) {
  other.held_.insert(other.held_.end(), held_.begin(), held_.end());
  held_.clear();
}

Bytes Pins::bytes_to_come(EngineLock& lock, DeviceManager& manager,
                          std::span<const StorageUse> storages) {
  std::unordered_set<const Block*> seen;
  Bytes sum = 0;
  for (const StorageUse& use : storages) {
    if (use.storage->device() != manager.device()) continue;
    const Block* const block = manager.find_or_track(lock, *use.storage);
    if (block == nullptr) continue;
    const bool stays = !is_away(block->state) &&
                       (block->pins > 0 || block->kept || block->state == BlockState::kFresh);
    if (seen.insert(block).second && !stays) sum += block->size;
  }
  return sum;
}

Bytes Pins::bytes(EngineLock& /*lock*/, const DeviceManager& manager) const {
  std::vector<const Block*> blocks;
  for (const Held& held : held_) {
    if (held.manager == &manager) blocks.push_back(held.use.block);
  }
  std::ranges::sort(blocks);
  const auto repeated = std::ranges::unique(blocks);
  blocks.erase(repeated.begin(), repeated.end());
  Bytes sum = 0;
  for (const Block* block : blocks) sum += block->size;
  return sum;
}

// Storages

namespace {

void collect_tensor(const at::Tensor& tensor, bool writes, bool inside,
                    c10::SmallVectorImpl<StorageUse>& found) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!tensor.defined()) return;
  if (impl->has_storage()) {
    c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
    if (storage != nullptr) found.push_back({storage, writes});
    return;
  }
  if (!inside) return;
  if (tensor.layout() == c10::kSparse) {
    auto* sparse = static_cast<at::SparseTensorImpl*>(impl);
    collect_tensor(sparse->indices(), writes, inside, found);
    collect_tensor(sparse->values(), writes, inside, found);
  } else if (tensor.key_set().has_any(c10::sparse_csr_ks)) {
    auto* compressed = static_cast<at::SparseCsrTensorImpl*>(impl);
    collect_tensor(compressed->compressed_indices(), writes, inside, found);
    collect_tensor(compressed->plain_indices(), writes, inside, found);
    collect_tensor(compressed->values(), writes, inside, found);
  }
}

}  // namespace

void collect_storages(const c10::IValue& value, bool writes, bool inside,
                      c10::SmallVectorImpl<StorageUse>& found) {
  if (value.isTensor()) {
    collect_tensor(value.toTensor(), writes, inside, found);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      collect_storages(element, writes, inside, found);
    }
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) {
      collect_storages(element, writes, inside, found);
    }
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      collect_storages(entry.value(), writes, inside, found);
    }
  } else if (value.isStorage()) {
    const c10::Storage storage = value.toStorage();
    if (storage) found.push_back({storage.unsafeGetStorageImpl(), writes});
  }
}

// Errors

namespace {

/// What the limit holds when there is too little room in it.
struct Held {
  Bytes by_operator = 0;  ///< the one that wants more
  Bytes kept = 0;         ///< until they die
  Bytes by_others = 0;    ///< in use, or on its way
};

/// What the thread's operator has written; `known`: of its own work.
Written written_by(const ThreadState& state, Written known) {
  const OpInfo* const info = state.outermost;
  const bool lists = info != nullptr && info->kind == OpKind::kList;
  if (state.in_parts && state.part_written) return Written::kSomeLists;
  if (known == Written::kPart && (lists || state.in_parts)) return Written::kSomeLists;
  // A kernel that takes lists of mixed tensors goes through them one by one.
  const bool perhaps = known == Written::kNothing && state.kernel_runs && info != nullptr &&
                       (lists || info->cut == nullptr) && info->may_write_before_it_asks;
  return perhaps ? Written::kPerhaps : known;
}

/// What the error says. `floor`: the limit to name.
std::string text_of(DeviceManager& manager, const Lack& lack, const Held& all, Bytes floor,
                    bool too_small, Written written) {
  constexpr Bytes kMuch = 8;  // kept bytes that are this part of the limit are worth a word
  const Bytes held = all.by_operator;
  const ThreadState& state = thread_state();
  const Bytes requested = lack.requested;
  const std::string& reason = lack.reason;
  std::string text = "LMS: out of memory on " + manager.device().str() + ": ";
  if (state.outermost != nullptr) {
    text += "operator " + state.outermost->name + " needs at least " +
            format_bytes(held + requested) + " (" + std::to_string(held + requested) +
            " bytes) on the device at once";
    if (held > 0) {
      text += ": " + format_bytes(held) + " that it holds already and " + format_bytes(requested) +
              " more";
    }
    text += ". ";
  } else {
    text += "an allocation of " + format_bytes(requested) + " does not fit. ";
  }
  const std::string figure = format_bytes_up(floor) + " (" + std::to_string(floor) + " bytes)";
  text += "The limit is " + format_bytes(manager.limit());
  if (reason.empty()) {
    text += "; the smallest limit that could work here is " + figure + ". ";
  } else {
    text += ", but what would have to leave cannot: " + reason +
            ". More room there would help, or a limit of " + figure +
            ", under which nothing has to leave. ";
  }
  if (reason.empty()) text += manager.what_is_wasted();
  if (all.kept * kMuch > manager.limit()) {
    text += format_bytes(all.kept) +
            " of the limit belong to tensors that stay until they die, as pointers to them are "
            "out (data_ptr(), numpy(), DLPack, a collective), or they lie in sparse tensors. ";
  }
  if (all.by_others * kMuch > manager.limit()) {
    text +=
        format_bytes(all.by_others) +
        " of the limit are in use by other operators that have not ended, or are on their way. ";
  }
  if (too_small && state.outermost != nullptr && state.outermost->has_algorithms &&
      state.workspace_retry == nullptr) {
    text += "Other algorithms of it may need less, and give other bits: other_algorithms=True. ";
  }
  switch (written) {
    case Written::kSomeLists:
      text +=
          "Some tensors of its lists have been written by then, and others not: do not call it "
          "again. Load what they held (weights and the optimizer's state) before training goes on, "
          "after torch_lms.enable(limit=...) with more.";
      break;
    case Written::kPart:
      text +=
          "A part of the tensor that it works on in place has been written, and the rest not: "
          "what that tensor held is lost, and nothing else. Load it again before training goes "
          "on, after torch_lms.enable(limit=...) with more.";
      break;
    case Written::kPerhaps:
      text +=
          "What it works on in place may have been written in part. Load that again before "
          "training goes on, after torch_lms.enable(limit=...) with more.";
      break;
    case Written::kNothing:
      text += "Nothing was lost: training can go on after torch_lms.enable(limit=...) with more.";
  }
  return text;
}

}  // namespace

void throw_out_of_memory(DeviceManager& manager, const Lack& lack) {
  const ThreadState& state = thread_state();
  if (lack.reason.empty() && !state.full_by_rows.empty()) {
    Lack whole = lack;
    whole.reason = state.full_by_rows;
    throw_out_of_memory(manager, whole);
  }
  const auto& [requested, known_limit, reason, known] = lack;
  const Written written = written_by(state, known);
  Bytes immovable = 0;
  Held held;
  {
    EngineLock lock = manager.engine().lock();
    immovable = manager.engine().immovable(lock);
    held.by_operator = state.operator_pins.bytes(lock, manager);
    held.kept = manager.engine().stats(lock).kept.current;
    held.by_others = immovable - held.by_operator - held.kept;
  }
  const Bytes needed = std::max(manager.least_limit(immovable + requested, requested), known_limit);
  // Where that is no more than there is, something else is in the way: pieces that do not join,
  // another thread, the tier below. Then enough is what needs nothing to leave.
  const bool too_small = reason.empty() && needed > manager.limit();
  const Bytes floor = too_small ? needed : manager.ample_limit(requested);
  std::string text = text_of(manager, lack, held, floor, too_small, written);
  remember_need(text, {.op = state.outermost != nullptr ? state.outermost->name : "",
                       .bytes = held.by_operator + requested,
                       .least_limit = floor,
                       .below = !reason.empty()});
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  if (state.workspace_retry != nullptr && too_small) {
    state.workspace_retry->refused = text;
    throw c10::OutOfMemoryError(here, std::move(text));
  }
  // With cudnn.benchmark the choice of an algorithm is PyTorch's to make anew in every process.
  if (state.depth > 0 && !state.in_others_kernel() && !at::globalContext().benchmarkCuDNN()) {
    Shortage shortage(here, std::move(text));
    shortage.below = reason;
    shortage.least_limit = floor;
    shortage.written = written;
    throw shortage;
  }
  throw c10::OutOfMemoryError(here, std::move(text));
}

}  // namespace lms::torch
