#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "adapters/torch/device_manager.h"
#include "adapters/torch/operators/foreseen.h"
#include "adapters/torch/operators/op_info.h"
#include "pilot/step_threads.h"

namespace lms::torch {

/// One storage that is about to be used.
struct StorageUse {
  c10::StorageImpl* storage;
  bool writes;
};

/// Of one operator, usually.
using StorageUses = c10::SmallVector<StorageUse, 16>;

struct ThreadState;
class InPlace;

/// Blocks that a thread holds on the device; lets them go when destroyed. Move-only.
class Pins {
 public:
  Pins() = default;
  ~Pins() { release(); }
  Pins(Pins&& other) noexcept : held_(std::move(other.held_)) { other.held_.clear(); }
  Pins& operator=(Pins&&) = delete;

  /// Makes the storages that LMS manages resident and holds them. On an exception the earlier
  /// pins remain and none of these is held.
  void add(std::span<const StorageUse> storages, const std::optional<c10::Stream>& stream = {});
  void add(ThreadState& state, std::span<const StorageUse> storages,
           const std::optional<c10::Stream>& stream = {});
  /// Lets everything go.
  void release() noexcept;
  /// release(), and tells every engine concerned that an outermost operator has ended; `holder`:
  /// the thread whose operator it was, which leaves its engine.
  void release_after_operator(PinHolder* holder = nullptr);
  /// Likewise for the thread's own operator. What it has `made` is first added, for a moment: it
  /// may leave from now on, though nobody has read it yet.
  void release_after_operator(ThreadState& state, std::span<const StorageUse> made);
  /// What is held stays resident until its storage dies.
  void keep();

  /// The same, but only for those whose storages are still alive and none of `others`.
  void keep_but(std::span<const StorageUse> others);
  /// Appends these to the end of `other`, which holds them from now on.
  void hand_to(Pins& other);

  void swap(Pins& other) noexcept { held_.swap(other.held_); }
  [[nodiscard]] bool empty() const { return held_.empty(); }
  /// Bytes that would be held beside what cannot leave anyway, each block counted once.
  [[nodiscard]] static Bytes bytes_to_come(EngineLock& lock, DeviceManager& manager,
                                           std::span<const StorageUse> storages);
  /// Bytes held of one device, each block counted once.
  [[nodiscard]] Bytes bytes(EngineLock& lock, const DeviceManager& manager) const;

 private:
  struct Held {
    DeviceManager* manager;
    Use use;
  };
  static void keep(EngineLock& lock, const Held& held);
  void add_on(ThreadState& state, DeviceManager& manager, std::span<const StorageUse> storages,
              const std::optional<c10::Stream>& stream);
  /// Adds what an operator has made on its device, if that takes no wait; else false, and nothing
  /// is added.
  bool add_made(EngineLock& lock, ThreadState& state, DeviceManager& manager,
                std::span<const StorageUse> made);
  /// The last of those that are held, as many as are the manager's.
  void release_on(EngineLock& lock, DeviceManager& manager) noexcept;
  [[nodiscard]] bool holds(const Block* block, bool writes) const;

  std::vector<Held> held_;
};

/// A lineage that a thread is running (lineages.h).
struct Replay {
  std::vector<Bytes> addresses;  ///< where its allocations are wanted, in order
  std::size_t next = 0;

  /// Where the next allocation is wanted, or kNoAddress.
  Bytes take() { return next < addresses.size() ? addresses[next++] : kNoAddress; }
};

/// An operator that needs more than a device without anything else has: what its kernel asks for
/// and cannot have is refused with a c10::OutOfMemoryError, so that it may go on with an algorithm
/// that needs less.
struct WorkspaceRetry {
  std::string refused;  ///< the error of the last refusal; empty: there was none
};

/// A stretch of time in which raw pointers are in use.
struct AccessScope {
  Pins pins;           ///< held until it ends
  bool holds = false;  ///< what operators use within is held as well
};

/// What LMS knows of the calling thread.
struct ThreadState {
  int depth = 0;                      ///< hooked operators on the stack
  const OpInfo* outermost = nullptr;  ///< the first of them
  /// The storages of the outermost operator's arguments, held; empty where they are not.
  StorageUses arguments;
  bool kernel_runs = false;                   ///< its own, with its arguments there
  StorageUses made;                           ///< those of its results
  Pins operator_pins;                         ///< held until the outermost operator ends
  PinHolder holder;                           ///< of operator_pins, as other threads see it
  std::vector<AccessScope> access_scopes;     ///< innermost last
  Replay* replay = nullptr;                   ///< that is running
  WorkspaceRetry* workspace_retry = nullptr;  ///< under which the outermost operator runs
  int arrivals = 0;                           ///< blocks that it is bringing in
  /// What its operators use is kept: collectives on its stack, and 1 on a thread of theirs.
  int keeps = 0;
  /// Its operators are those of a collective, beside the step: they come when they come, and what
  /// they allocate is theirs.
  bool beside = false;
  StepThreads::Thread step_thread;  ///< whether they are, where other threads run some, too
  /// Calls of extensions that it is in and LMS knows nothing of: what their operators make they may
  /// write through addresses, unseen.
  int unseen_calls = 0;
  bool in_parts = false;      ///< it runs a part of an operator over lists
  bool part_written = false;  ///< likewise, and another part has been written

  /// The last that the outermost operator has allocated in an arena, but for what replays have.
  static constexpr std::size_t kMade = 4;
  std::array<const void*, kMade> allocated{};
  std::size_t allocations = 0;  ///< so far
  void note_allocation(const void* data) {
    if (outermost != nullptr && replay == nullptr) allocated[allocations++ % kMade] = data;
  }
  [[nodiscard]] bool has_made(c10::StorageImpl& storage) const {
    const auto end = allocated.begin() + std::min(allocations, kMade);
    const void* const data = storage._mutable_data_ptr_no_checks().get();
    return data != nullptr && std::find(allocated.begin(), end, data) != end;
  }

  /// A kernel that is not PyTorch's own runs, and no operator that it has called. It may be a
  /// function of Python.
  [[nodiscard]] bool in_others_kernel() const {
    return depth == 1 && kernel_runs && outermost != nullptr && !outermost->ends_alone;
  }
  /// What it does is the step's, and the pilot's to know.
  [[nodiscard]] bool in_step() const { return replay == nullptr && !is_beside(); }
  [[nodiscard]] bool is_beside() const { return beside || step_thread.beside; }
  InPlace* in_place = nullptr;  ///< the call whose kernel works on what lies below
  /// Why there was no room below to run it by rows, as what it does instead runs; or empty.
  std::string full_by_rows;
  ForeseenResults foreseen;
};

ThreadState& thread_state() noexcept;

/// The thread is in another such call (ThreadState::unseen_calls), or no longer.
void note_unseen_call(bool begins) noexcept;
/// Some thread is.
[[nodiscard]] bool any_unseen_calls() noexcept;

/// As long as it lives, what the thread runs are parts of an operator over lists, or what these
/// need.
class InParts {
 public:
  InParts()
      : before_(std::exchange(thread_state().in_parts, true)),
        written_before_(std::exchange(thread_state().part_written, false)) {}
  ~InParts() {
    thread_state().in_parts = before_;
    thread_state().part_written = written_before_;
  }
  InParts(const InParts&) = delete;
  InParts& operator=(const InParts&) = delete;

  /// Whoever tries the operator again would write that part twice.
  void one_has_written() const { thread_state().part_written = true; }

 private:
  const bool before_;
  const bool written_before_;
};

/// On whose behalf the calling thread may wait for the operators of others; null: it must not, as
/// one of them may be waiting for it.
PinHolder* may_wait_as() noexcept;
PinHolder* may_wait_as(ThreadState& state) noexcept;
/// The thread's operator, if it runs one, is about to pin or to allocate: Engine::enter().
void enter_engine(EngineLock& lock, Engine& engine);
void enter_engine(ThreadState& state, EngineLock& lock, Engine& engine);
/// The thread's operator holds nothing any more.
void leave_engine(ThreadState& state, bool to_try_again) noexcept;

/// Appends every storage that `value` holds, however deeply nested in lists, tuples and
/// dictionaries. With `inside` also those within sparse tensors.
void collect_storages(const c10::IValue& value, bool writes, bool inside,
                      c10::SmallVectorImpl<StorageUse>& found);

/// Somebody has a pointer to the tensor's bytes from now on, whatever scopes the thread is in: its
/// blocks come back, count as written, and are kept.
void keep(const at::Tensor& tensor);

/// What the operator that finds no room has written in place by then.
enum class Written : std::uint8_t {
  kNothing,
  kPerhaps,    ///< nobody can tell
  kPart,       ///< of a tensor
  kSomeLists,  ///< some tensors of its lists
};

/// What has found no room.
struct Lack {
  Bytes requested = 0;                  ///< at once, beside what is held
  Bytes least_limit = 0;                ///< below which there is none, as is known otherwise
  std::string reason = {};              ///< why the tier below has no room; empty: it has
  Written written = Written::kNothing;  ///< as is known otherwise
};

/// The error of a budget that cannot hold what is needed at once: names the running operator, what
/// it holds, what is asked for, and the smallest limit that could work. Throws Shortage within an
/// operator, else c10::OutOfMemoryError; that also where the thread has a WorkspaceRetry, and the
/// limit, not the tier below, is too small.
[[noreturn]] void throw_out_of_memory(DeviceManager& manager, const Lack& lack);

}  // namespace lms::torch
