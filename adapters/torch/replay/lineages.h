#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "adapters/torch/fused/rule.h"
#include "adapters/torch/operators/call.h"
#include "adapters/torch/thread_state.h"

namespace lms::torch {

class DeviceManager;

/// A call that is being recorded.
struct Draft {
  std::shared_ptr<Call> call;
  c10::StorageImpl* self = nullptr;  ///< that it writes; null: it only makes new ones
  std::shared_ptr<Origin> target;    ///< of self
  bool overwrites = false;           ///< all of self
  bool transposed = false;           ///< a convolution that is the backward pass of another
  std::vector<c10::StorageImpl*> inputs;
};

/// A storage that is about to be written.
struct StorageWritten {
  c10::StorageImpl* storage;
  const Block* block;  ///< behind it; null: none
};

/// How blocks of one device came about, where that is recorded: a graph of lineages, from which
/// dropped bytes are computed again.
///
/// What keeps the bytes right:
/// - a lineage names what it reads, and which contents of it. Before anybody writes there, what has
///   been dropped and needs these contents is computed again, and other lineages that need them are
///   forgotten (before_write());
/// - a storage that dies leaves a ghost, if its own lineage is known; if it is not, and something
///   dropped needs its bytes, they stay (keep_bytes()).
/// So what has been dropped can be computed again at any moment.
///
/// Thread-safe. Its lock is innermost; never held while operators run.
class Lineages {
 public:
  explicit Lineages(DeviceManager& manager) : manager_(manager) {}

  /// False as long as nothing was ever recorded: then nothing else needs to be called.
  [[nodiscard]] bool any() const { return any_.load(std::memory_order_relaxed); }

  /// What has been recorded is forgotten: nothing more is dropped because of it. What has been
  /// dropped already can still be computed again, unless the hooks go.
  void stop() { ++epoch_; }

  /// False: nothing recorded so far has been computed by a convolution of tensors of these sizes,
  /// so that nothing is computed again by the algorithm of this call.
  [[nodiscard]] bool may_need_algorithm_of(std::span<const c10::IValue> arguments);

  /// Around fork(), so that a child can compute what it finds dropped.
  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }
  /// In a child where nothing is dropped: there is nothing to keep right any more.
  void abandon() noexcept { any_ = false; }

  // Recording ------------------------------------------------------------------------------------

  /// An operator that is about to run; its arguments are pinned. `info` and `kernel` live as long
  /// as the hook. Nothing: it cannot be run again.
  std::optional<Draft> prepare(const OpInfo& info, const c10::SafeKernelFunction& kernel,
                               const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                               const c10::Stack& stack);
  /// It has run; its results are at stack[base] and after. A lineage that needs more than
  /// `most_depth` others, one after the other, is not kept.
  void commit(Draft draft, const c10::Stack& stack, std::size_t base, std::uint32_t most_depth);
  /// False: before_write() would do nothing for any of these. Of the engine's blocks, under its
  /// lock.
  [[nodiscard]] bool must_hear_of(EngineLock& lock, std::span<const StorageWritten> written);
  /// Somebody is about to pin these storages for writing. Runs what must run before: with nothing
  /// pinned for the writer, so that it takes no more memory than when it first ran. Throws what
  /// that throws; then nothing is lost, and it may be called again.
  void before_write(std::span<c10::StorageImpl* const> storages);
  /// Somebody may write this storage unheard from now on: its address is out.
  void expose(c10::StorageImpl& storage);
  /// Somebody is about to give this storage's memory back, though the storage lives on.
  void before_free(c10::StorageImpl& storage);
  /// The block stands for this storage from now on, which has got its bytes.
  void hand_over(StorageBlock& block, c10::StorageImpl& storage);
  /// Somebody may read this storage unheard, at its present address, until it is next written: it
  /// is not dropped meanwhile. If it has been, it is computed again, and held by `pins`.
  void never_drop(c10::StorageImpl& storage, Pins& pins);
  /// From now on small tensors may be written unheard, whichever (by the replay of a graph).
  void expose_small();

  // Dropping -------------------------------------------------------------------------------------

  /// Marks the block as dropped if its lineage is known. The caller then lets its bytes go. `most`:
  /// see Mover::drop().
  bool drop(const StorageBlock& block, Bytes most);

  /// Bytes that have been computed again, and the pins that keep them.
  struct Made {
    c10::intrusive_ptr<c10::StorageImpl> storage;
    Pins pins;
  };
  /// Runs a dropped block's lineage. `addresses`: where its allocations are wanted, in order. The
  /// block counts as dropped until made().
  Made remake(const StorageBlock& block, std::vector<Bytes> addresses);
  void made(const StorageBlock& block);

  /// What has been let go of under locks. To be destroyed without any: it may be the last that
  /// holds memory, and memory takes the engine's lock when it goes.
  struct Trash {
    std::vector<std::vector<std::shared_ptr<const Call>>> lineages;
    std::vector<std::shared_ptr<Origin>> origins;
    std::vector<c10::intrusive_ptr<c10::StorageImpl>> storages;
  };

  /// The last of a storage's references is gone. True if its bytes are still needed: then they must
  /// be given to a new storage, and that to keep(). May be called under the engine's lock.
  bool keep_bytes(const StorageBlock& block, Trash& trash);
  /// Returns what is to be destroyed without locks.
  std::shared_ptr<Origin> keep(StorageBlock& block, c10::intrusive_ptr<c10::StorageImpl> storage);

  /// Computes the bytes of a ghost, for what is computed from it later. No effect if it has them.
  /// Throws whatever that throws.
  void remake_ghost(BlockUid uid, std::vector<Bytes> addresses);
  void drop_ghost(BlockUid uid);
  /// Nobody plans with ghosts any more: lets the bytes of those go that can be computed again.
  void drop_ghosts();

 private:
  using Guard = std::lock_guard<std::mutex>;
  using Storage = c10::intrusive_ptr<c10::StorageImpl>;
  /// Dependents, and ghosts, are looked through for dead ones when there are so many, and again
  /// when twice as many.
  static constexpr std::size_t kPrune = 64;

  bool describe(const at::Tensor& tensor, c10::StorageImpl* self, TensorSpec& spec);
  bool describe_arguments(const std::vector<c10::IValue>& values, Draft& draft, Call& call);
  void note_convolution(const Call& call, bool transposed);
  void commit_write(const Draft& draft, std::uint32_t most_depth);
  void commit_results(const Draft& draft, const c10::Stack& stack, std::size_t base,
                      std::uint32_t most_depth);
  /// What the call read is as it was then. (It may have died within: its caller gave the last
  /// reference away.) Under the lock, as the next two.
  [[nodiscard]] bool all_there(const Call& call) const;
  /// Of a lineage that ends with the call.
  [[nodiscard]] std::uint32_t depth_of(const Call& call) const;
  /// The origin's lineage reads what the call does.
  static void add_dependent(const Call& call, const std::shared_ptr<Origin>& origin);
  /// What the rule takes of the results.
  void save_results(const FusedRule& rule, Call& call, const c10::Stack& stack, std::size_t base);
  std::shared_ptr<Origin> origin_of(StorageBlock& block, c10::StorageImpl& storage);
  std::shared_ptr<Origin> find_origin(c10::StorageImpl& storage);
  /// A small tensor's bytes as they are now. Where these may be written unheard, as all on the CPU,
  /// they are copied, but not again while they are the same. Gradients are copied, too: autograd
  /// adds to them in place if nobody else refers to their storage.
  std::shared_ptr<SmallSource> small_source(const at::Tensor& tensor);
  void save_small(c10::StorageImpl& storage);
  void keep_contents(SmallSource& source);
  [[nodiscard]] bool known(const Origin& origin) const;
  struct Dropped {
    std::shared_ptr<Origin> origin;
    Storage storage;
  };
  /// What has been dropped and cannot be computed again without these bytes. `last`: nothing more
  /// may be: the lineages of what is there are forgotten.
  void find_dropped(const Origin& origin, bool last, std::vector<Dropped>& found, Trash& trash);
  /// How its bytes came about.
  static void forget_lineage(Origin& origin, Trash& trash);
  /// Nothing can be computed from its bytes any more.
  static void forget(Origin& origin, Trash& trash);
  void before_write_of(const std::shared_ptr<Origin>& origin);
  /// Something to be computed, and whose bytes that reads.
  struct Step {
    std::shared_ptr<Origin> origin;
    std::vector<std::shared_ptr<const Call>> calls;
    std::size_t result = Origin::kNoResult;
    std::vector<std::shared_ptr<Origin>> reads;  ///< each once
    Storage dropped;                             ///< that is to be filled; null: a ghost
  };
  class Order;
  Storage run(const std::shared_ptr<Origin>& origin, std::vector<Bytes> addresses, Pins& pins);
  /// The calls of one step, whose sources are there.
  Storage run_calls(const Step& step, const Order& order, Pins& pins);
  Storage bytes_of(const std::shared_ptr<Origin>& origin, std::uint32_t version, const Order& order,
                   Pins& pins);
  /// What a tensor other than the lineage's own lies in, pinned.
  Storage source_of(const TensorSpec& spec, const Order& order, Pins& pins);
  /// What its calls read of others, as they will be run. Under the lock.
  [[nodiscard]] std::vector<const TensorSpec*> specs_read(const Origin& origin) const;
  /// Makes `self`, of `bytes`, by one kernel for the first calls, if there is one. Returns how many
  /// calls that has taken the place of.
  std::size_t run_fused(std::span<const std::shared_ptr<const Call>> calls, Bytes bytes,
                        const Order& order, Storage& self);
  /// The kernel that its operator's rule finds. Under the lock.
  [[nodiscard]] std::optional<FusedRun> find_fused(
      std::span<const std::shared_ptr<const Call>> calls) const;
  /// The call that made a ghost without bytes, all of whose contents it is; null if there is none.
  /// Under the lock.
  [[nodiscard]] std::shared_ptr<const Call> maker_of_missing(const TensorSpec& spec) const;
  void prune();
  /// No less than what must be on the device at once to compute these bytes again.
  Bytes bytes_at_once(const Origin& origin);
  [[nodiscard]] static bool others_wait_for(const Origin& origin, Trash& trash);
  static void pin(c10::StorageImpl& storage, bool writes, Pins& pins);

  DeviceManager& manager_;
  std::atomic<bool> any_{false};
  std::atomic<std::uint64_t> epoch_{1};
  std::mutex mutex_;
  std::condition_variable kept_;  ///< somebody has died, and what is needed of it is kept
  std::unordered_map<c10::StorageImpl*, std::weak_ptr<SmallSource>> watched_;
  /// Small storages whose addresses are out.
  std::unordered_map<c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> exposed_;
  std::atomic<bool> small_exposed_{false};
  std::unordered_map<BlockUid, std::weak_ptr<Origin>> ghosts_;
  std::unordered_set<std::uint64_t> convolved_;  ///< sizes of what convolutions have read so far
  bool convolved_back_ = false;                  ///< some of them are backward passes of others
  std::uint64_t visit_ = 0;                      ///< walks through the graph so far
  std::size_t prune_at_ = kPrune;                ///< ghosts, at which dead ones are looked for
  std::size_t prune_exposed_at_ = kPrune;
};

}  // namespace lms::torch
