#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>
#include <lms/options.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "adapters/torch/deferred/deferrable.h"
#include "plan/updates.h"

namespace lms::torch {

class ListPass;

/// What waits is to an operator that is about to run.
enum class Concern : std::uint8_t {
  kNothing,
  kRuns,     ///< run_needed(): something may have to run first
  kMayWait,  ///< put_off(), then that: it may wait itself
};

/// What the hook has for operators that wait.
struct Entrances {
  RunOperator run;
  RunByRows run_by_rows;
};

/// Operators of one device that have been called and have not run. Each waits until somebody is
/// about to look at what it writes, or to change what it reads. Docs: docs/design/0020.
///
/// Of two parts that use one storage, and of which one writes it, the first called runs first.
///
/// Thread-safe. Its lock is not held while parts run, and no engine's lock may be held by callers.
class Deferred {
 public:
  enum class Mode : std::uint8_t {
    kNone,     ///< everything runs when it is called
    kChosen,   ///< the updates that a plan has chosen wait
    kLists,    ///< and large operators over lists, updates too, wait for those that follow them
    kUpdates,  ///< for tests: all updates over lists
    kAll,      ///< for tests: all that can
    kRandom,   ///< likewise, and some are run at random
  };
  /// Throws BadSetting.
  static Mode mode_of(const std::string& setting);

  explicit Deferred(DeviceManager& manager) : manager_(manager) {}

  /// From now on; what waits goes on waiting, but for kNone.
  void set_mode(Mode mode);
  [[nodiscard]] Mode mode() const { return mode_.load(std::memory_order_relaxed); }

  /// The plan's choice counts.
  static bool is_by_plan(Mode mode) { return mode == Mode::kChosen || mode == Mode::kLists; }
  /// The operators of which a plan may choose positions; null: none.
  static MayWait put_off_by_plan(Mode mode);

  /// Of the modes by plan: the updates that write these blocks wait from now on. May be called with
  /// the pilot's lock held.
  void choose(const std::vector<BlockUid>& written);

  /// What an operator like this one, called here and now, has to ask. `split`: whether it is over
  /// lists, and so large that it runs in parts.
  [[nodiscard]] Concern concern_of(const OpInfo& info, c10::function_ref<bool()> split) const;
  /// An operator has been called, outside of any other. True: it, or all that has not run here,
  /// waits, and the stack holds its results.
  bool defer(const Entrances& entrances, const OpInfo& info, const c10::SafeKernelFunction& kernel,
             const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack,
             c10::function_ref<bool()> split);
  /// An operator on a large tensor, none over lists, has been called, outside of any other: runs
  /// what the thread has called and what waits for that alone. What finds no room waits on, like
  /// any other.
  void run_brief();
  /// The calling thread is about to use these: runs what must have run. Throws what that throws; a
  /// part that found no room waits on. `before`: who uses them is the part of this number.
  void before_use(std::span<const StorageUse> uses, std::uint64_t before = UINT64_MAX);
  /// What of these has not been made and may be made row by row, with all that it is made of.
  [[nodiscard]] UnmadeRows rows_for(std::span<const StorageUse> uses,
                                    std::uint64_t before = UINT64_MAX);
  /// It is one of these, not made yet.
  [[nodiscard]] bool will_make(const c10::StorageImpl& storage);
  /// Results of this operator have waited for who uses them.
  [[nodiscard]] bool has_waited(const OpInfo& info) const;
  /// Runs everything.
  void run_all();
  /// In the mode kRandom, now and then: runs something.
  void run_some();

  /// Around fork().
  void before_fork();
  void after_fork() { mutex_.unlock(); }

  struct Stats {
    std::int64_t parts = 0;      ///< that have waited, or do
    std::int64_t waiting = 0;    ///< that do
    Bytes bytes = 0;             ///< that these use, each block counted once
    std::int64_t in_lists = 0;   ///< beside these: parts that have waited for the next operators
    std::int64_t waited_us = 0;  ///< from call to run on the host's clock, of those that have run
    std::int64_t rows = 0;       ///< beside these: operators whose result has waited to be used
    std::int64_t in_passes = 0;  ///< of all: that have run in one pass with others
  };
  [[nodiscard]] Stats stats();

 private:
  using PartPtr = std::shared_ptr<Part>;
  using PartPtrs = c10::SmallVector<PartPtr, 8>;
  struct Waiting {
    PartPtr part;
    bool writes;
    bool through = false;  ///< of Part::through
  };
  struct Late {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::uint64_t epoch;  ///< of the last part that has used it
  };

  /// Results may wait for who uses them.
  [[nodiscard]] bool chains() const;
  /// What the thread calls here may wait.
  [[nodiscard]] bool may_wait_here() const;
  /// Something waits for more than the next operators, as a plan has chosen.
  [[nodiscard]] bool any_for_long() const {
    constexpr auto kRelaxed = std::memory_order_relaxed;
    return waiting_.load(kRelaxed) > brief_.load(kRelaxed) + rows_.load(kRelaxed);
  }
  bool defer_rows(const Entrances& entrances, const OpInfo& info,
                  const c10::SafeKernelFunction& kernel, const c10::OperatorHandle& op,
                  c10::DispatchKeySet keys, c10::Stack& stack);
  /// A result that waits by itself, not because another of its kind has.
  [[nodiscard]] bool is_large(const Part& rows) const;
  void note_waited(const OpInfo& info, std::uint64_t kind, bool begins);
  /// The same for calls that may be expected to fare alike.
  static std::uint64_t kind_of_rows(const OpInfo& info, const c10::Stack& stack);
  /// The part that will make this storage, if rows of it may be made, and be used as it makes them:
  /// nothing else that was called before number `before` will write it. Under the lock.
  [[nodiscard]] PartPtr maker_of(const c10::StorageImpl* storage, std::uint64_t before) const;
  void note_through(Part& part) const;
  /// A part whose result was read by rows has gone: what others read through it is no more theirs.
  void refresh_through();
  /// Runs it in parts, from rows of what it reads and has not been made. False: as a whole.
  bool run_rows(const Part& part);

  /// Among those that `deferring` counts, or not.
  void count(bool among);
  void add(std::unique_ptr<Part> part);
  /// Whether whoever uses these cannot run before one that waits for more than the next operators.
  /// Under the lock, as all that follow.
  [[nodiscard]] bool is_behind_chosen(std::span<const StorageUse> uses) const;
  void remove(const PartPtr& part);
  /// Those called before number `before` that must run before these are used, in their order.
  [[nodiscard]] PartPtrs needed_for(std::span<const StorageUse> uses, std::uint64_t before) const;
  /// Likewise before rows of what these will make are made.
  [[nodiscard]] PartPtrs needed_for_rows(std::span<const PartPtr> makers) const;
  /// Those called before number `before` that conflict with these; `by_rows`: but for who makes
  /// what may be made by rows.
  void add_conflicts(PartPtrs& parts, std::span<const StorageUse> uses, std::uint64_t before,
                     bool by_rows) const;
  /// And those that must run before them, in their order.
  void add_needed(PartPtrs& parts) const;
  /// Of what waits for this thread's next operators: the first piece of the call that came last,
  /// and before it what that needs.
  [[nodiscard]] PartPtrs next_brief(const ThreadState& thread) const;
  /// Runs parts as long as there are any. The lock is let go while one runs.
  void run_until(std::unique_lock<std::mutex>& lock, c10::function_ref<PartPtrs()> next);
  void run_one(std::unique_lock<std::mutex>& lock, PartPtr part);
  /// Runs the first of these, and as many of those that follow as run in one pass with it. How many
  /// they were: 0 or 2 and more.
  std::size_t run_in_pass(std::unique_lock<std::mutex>& lock, std::span<PartPtr> parts);
  bool run(ListPass& pass);
  /// It has run. Under the lock.
  void end(const PartPtr& part);
  [[nodiscard]] bool cuts_short(std::span<const StorageUse> uses) const;
  void run(const Part& part);
  /// The tensors that waited for what has been made get its memory.
  void fill(const Part& part, const std::vector<at::Tensor>& made);
  void wait(std::unique_lock<std::mutex>& lock);
  /// Parts that write only what nobody has any more.
  void discard_dead();
  /// How many references of parts storages have. Under the lock.
  using Holds = std::unordered_map<c10::StorageImpl*, std::size_t>;
  [[nodiscard]] Holds holds_of_parts() const;
  /// Storages of parts that have nobody else but an object of Python's which nobody there holds.
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> held_by_nobody_in_python();
  void note_late(const Part& part);
  void forget_late();
  /// Nobody orders other streams behind what has run late any more: it ends now.
  void finish_late();
  void order_after_late(std::span<const StorageUse> uses);

  using Chosen = std::unordered_set<BlockUid>;
  [[nodiscard]] std::shared_ptr<const Chosen> chosen();

  DeviceManager& manager_;
  std::mutex chosen_mutex_;  ///< innermost
  std::shared_ptr<const Chosen> chosen_;
  std::atomic<Mode> mode_{Mode::kNone};
  std::atomic<bool> counted_{false};  ///< in `deferring`
  std::atomic<bool> any_chosen_{false};
  std::atomic<std::int64_t> waiting_{0};
  std::atomic<std::int64_t> brief_{0};  ///< of those that wait
  std::atomic<std::int64_t> rows_{0};   ///< likewise, whose results wait for who uses them
  /// Rows have been made: those that they are of may be wanted no more.
  std::atomic<bool> may_be_dead_{false};
  std::atomic<bool> any_late_{false};
  std::mutex mutex_;
  std::condition_variable ended_;
  std::uint64_t next_number_ = 1;
  std::uint64_t next_call_ = 1;
  std::int64_t parts_ = 0;
  std::int64_t in_lists_ = 0;
  std::int64_t in_rows_ = 0;
  std::int64_t in_passes_ = 0;
  /// Kinds of results that somebody has wanted as a whole, with nobody before.
  std::unordered_set<std::uint64_t> wanted_whole_;
  /// Kinds that have begun a chain, being large: they do in all sizes, as steps that differ in
  /// sizes are to have the same operators.
  std::unordered_set<std::uint64_t> began_;
  std::array<std::atomic<std::uint64_t>, 16> operators_that_waited_{};  ///< OpInfo::key; 0: none
  bool said_ = false;
  std::chrono::steady_clock::duration waited_{};
  std::map<std::uint64_t, PartPtr> all_;  ///< by number: in order
  std::unordered_map<c10::StorageImpl*, std::vector<Waiting>> by_storage_;
  bool several_streams_ = false;  ///< another than the main one has been seen
  /// What parts have used on the main stream, after other streams may have waited for that: from
  /// when there are such.
  std::unordered_map<c10::StorageImpl*, Late> late_;
  std::size_t late_kept_ = 0;  ///< of them, when it was looked last which are dead
  std::uint64_t epoch_ = 0;
  std::uint64_t unnoted_ = 0;  ///< the last epoch of which nothing was noted
  std::unordered_map<c10::StreamId, std::uint64_t>
      seen_;  ///< up to which epoch streams have waited
  std::minstd_rand random_{12345};
};

/// Managers of which operators wait, or may.
extern std::atomic<int> deferring;

/// False: nothing waits, and nothing is to. One load.
inline bool any_deferred() noexcept { return deferring.load(std::memory_order_relaxed) > 0; }

/// What there is to ask for an operator like this one, of all devices.
[[nodiscard]] Concern concern_of_deferred(const OpInfo& info, c10::function_ref<bool()> split);

/// True: the operator waits, or is done, and the stack holds its results.
bool put_off(const Entrances& entrances, const OpInfo& info, const c10::SafeKernelFunction& kernel,
             const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack,
             c10::function_ref<bool()> split);
/// A result that the operator makes from these may be worth waiting for who uses it: it is large,
/// or one of its kind was.
[[nodiscard]] bool are_worth_waiting_for(const OpInfo& info, const StorageUses& uses);

/// Runs what must have run before an operator that does not wait, and uses these.
void run_needed(const OpInfo& info, const c10::Stack& stack);
void run_needed(const OpInfo& info, const StorageUses& uses);
/// Likewise of an outermost operator; but what it may read row by row, as it is made, is returned.
UnmadeRows run_needed_but_rows(const OpInfo& info, const c10::Stack& stack);

/// Somebody is about to use the tensor's bytes from outside of any operator.
void run_deferred(const at::Tensor& tensor, bool writes);
void run_deferred(c10::StorageImpl& storage, bool writes);

}  // namespace lms::torch
