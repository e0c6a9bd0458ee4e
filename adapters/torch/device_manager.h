#pragma once

#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/Stream.h>
#include <lms/options.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "adapters/torch/fused/list_pass.h"
#include "adapters/torch/fused/rule.h"
#include "adapters/torch/operators/counted_versions.h"
#include "adapters/torch/operators/repeatable.h"
#include "adapters/torch/slices/below.h"
#include "adapters/torch/slices/slice_memory.h"
#include "engine/engine.h"
#include "pilot/pilot.h"
#include "pilot/step_threads.h"

namespace lms::torch {

class Deferred;
class Lineages;

/// The storages of one device and the engine that keeps their state. Lives as long as the
/// process, because storages that it has touched may outlive disable(); start() and stop() turn
/// it on and off.
class DeviceManager {
 public:
  DeviceManager(Engine& engine, PilotDevice& device);
  virtual ~DeviceManager();

  [[nodiscard]] virtual c10::Device device() const = 0;
  [[nodiscard]] virtual Engine& engine() = 0;

  /// Turns management on, or changes the limits where it is on. Nothing of `settings` is left open
  /// that enable_device() can settle. Throws BadSetting with nothing changed.
  virtual void start(const Options& settings) = 0;
  /// Brings every byte back and turns management off. Throws OutOfMemory, and stays on, if what is
  /// absent does not fit the device.
  virtual void stop() = 0;

  /// The block behind a storage of this device: found, or made if LMS may manage the storage. Null
  /// if the storage stays outside. `storage` must be alive during the call.
  virtual Block* find_or_track(EngineLock& lock, c10::StorageImpl& storage) = 0;
  /// The block behind a storage if it is known already.
  virtual Block* find(EngineLock& lock, c10::StorageImpl& storage) = 0;

  /// The blocks are resident and pinned, and the caller is about to use them on its current
  /// stream: makes that stream wait for what it must, and remembers the stream. `other`: a second
  /// stream on which they are used.
  virtual void note_use(EngineLock& lock, std::span<const Use> uses,
                        const std::optional<c10::Stream>& other) = 0;

  /// An outermost operator that used the device has ended.
  virtual void operator_ended() {}

  /// Learns and plans the steps of this device.
  [[nodiscard]] Pilot& pilot() { return pilot_; }
  /// Whose operators these are made of.
  [[nodiscard]] StepThreads& step_threads() { return step_threads_; }
  /// How blocks can be computed again.
  [[nodiscard]] Lineages& lineages() { return *lineages_; }
  /// What has been called and has not run.
  [[nodiscard]] Deferred& deferred() { return *deferred_; }
  /// Every operator that can be run again is recorded, and what it made dropped (stress mode).
  [[nodiscard]] bool drops_everything() const {
    return drops_everything_.load(std::memory_order_relaxed);
  }

  /// Evicts all that may leave and gives cached memory back, after an operator ran out of memory.
  /// What the tier below has no room for stays; no error.
  virtual void reclaim_everything() = 0;

  /// Evicts only what stood in the way of the allocation that failed last. False if that is not
  /// known.
  virtual bool clear_what_failed() { return false; }

  /// How the operator can be computed again by a kernel of LMS's own; null: in no such way here.
  [[nodiscard]] FusedRule* fused_rule(const OpInfo& info) const {
    return info.fused.rule < fused_.size() ? fused_[info.fused.rule].get() : nullptr;
  }
  /// Kernels for several operators over lists in one pass; null: the device has none.
  [[nodiscard]] PassKernels* pass_kernels() const { return pass_kernels_.get(); }
  /// Whoever owns the block's bytes will hear of it when its storage dies.
  [[nodiscard]] virtual bool announces_death(const Block& /*block*/) const { return true; }

  /// The storage lives on, and its memory is about to be given back: what is known of its bytes
  /// ends here, where nobody announces their death.
  virtual void memory_goes(c10::StorageImpl& /*storage*/) {}

  /// True if the calling thread's current stream is the one on which in_order() does its work.
  [[nodiscard]] virtual bool is_in_order() { return true; }
  /// True if what an operator does here and now can be done again in in_order().
  [[nodiscard]] virtual bool records_here() { return true; }
  /// Runs `work` on the one stream on which lineages are recorded and run: after what has been
  /// queued on the current stream, and before what will be.
  virtual void in_order(const std::function<void()>& work) { work(); }
  /// What in_order() has just done has used the storage later than the program asked for it: its
  /// memory is free only after that, whatever its owner has waited for.
  virtual void used_late(c10::StorageImpl& /*storage*/) {}

  /// The bytes of one storage are another's from now on, which has had none. They are on the
  /// device, and held if they are managed.
  void hand_over(c10::StorageImpl& from, c10::StorageImpl& to);

  /// True if a small tensor's memory is written by operators, and by nobody else whose coming is
  /// not heard of.
  [[nodiscard]] virtual bool operators_write(const c10::DataPtr& data) const = 0;

  /// Moves a storage whose block is on the device, and kept, into memory of PyTorch's own
  /// allocator: other processes cannot open ours. Its address changes.
  virtual void make_plain(c10::StorageImpl& /*storage*/) {}

  /// A graph capture begins: nothing moves until it ends, and what it uses is kept.
  virtual void capture_begin() {}
  virtual void capture_end() {}
  [[nodiscard]] virtual bool capturing() const { return false; }

  /// From now on copies take as long as over a link of `rate` bytes a second each way (0: of its
  /// own rate). Throws BadSetting where there is no such link, or it is slower than that.
  virtual void emulate_link(double /*rate*/) {
    throw BadSetting("LMS: only a CUDA device has a link that can be slowed down");
  }

  /// What an allocation takes of the limit.
  [[nodiscard]] virtual Bytes room_of(Bytes bytes) const;

  /// The smallest limit that could hold `needed` bytes, of which `requested` are a new allocation.
  [[nodiscard]] virtual Bytes least_limit(Bytes needed, Bytes /*requested*/) { return needed; }

  /// A limit, larger than the present one, under which `requested` more bytes certainly fit with
  /// nothing leaving, as things are.
  [[nodiscard]] virtual Bytes ample_limit(Bytes requested);

  /// Where operators in slices find what lies below; null: the device has none of it.
  [[nodiscard]] virtual Below* below() { return nullptr; }
  [[nodiscard]] SliceMode slice_mode() const { return slice_mode_.load(std::memory_order_relaxed); }
  [[nodiscard]] SliceMemory& slice_memory() { return slice_memory_; }
  [[nodiscard]] CountedVersions& counted_versions() { return counted_versions_; }

  /// What of the limit nobody can use, and why, in words for an error that names the limit; else
  /// nothing.
  [[nodiscard]] virtual std::string what_is_wasted() { return {}; }

  /// Adds the device's own figures to the engine's.
  virtual void add_stats(std::map<std::string, std::int64_t>& stats) = 0;
  virtual void reset_peak() = 0;

  [[nodiscard]] bool on() const { return on_.load(std::memory_order_acquire); }
  /// It is on, and not by inheritance: a forked child manages nothing before it is told to.
  [[nodiscard]] virtual bool manages() const { return on(); }
  [[nodiscard]] Bytes min_block() const { return min_block_.load(std::memory_order_relaxed); }
  [[nodiscard]] Bytes limit() const { return limit_.load(std::memory_order_relaxed); }
  /// What a part of an operator over lists may use of the device, if it is of several positions:
  /// one part is computed while the next one's blocks come and the last one's leave.
  [[nodiscard]] Bytes list_chunk() const { return limit() / 64; }
  [[nodiscard]] Bytes host_limit() const { return host_limit_.load(std::memory_order_relaxed); }

  /// So many bytes are in the tier below: it fills up once half of it is used, or it has not room
  /// for twice the device's content more, and is nearly full without room for half of that. Once it
  /// has been, it fills up: the next step needs as much.
  void note_below(Bytes used);

  /// The last try of an operator may let its kernel go on with another algorithm: it has several,
  /// the user allows it, and nothing that has been dropped waits for being computed with the first.
  [[nodiscard]] bool may_change_algorithm(const OpInfo& info,
                                          std::span<const c10::IValue> arguments);
  /// A convolution has gone on with another algorithm, for which see changed_algorithms().
  void algorithm_was_changed(const OpInfo& info);
  [[nodiscard]] const ChangedAlgorithms& changed_algorithms() const { return changed_algorithms_; }

  std::atomic<std::int64_t> op_retries{0};  ///< operators run again after a reclaim
  /// Operators that went on with another algorithm than PyTorch's first choice, to need less.
  std::atomic<std::int64_t> op_changes{0};
  std::atomic<std::int64_t> list_splits{0};         ///< list operators run in chunks
  std::atomic<std::int64_t> sliced_operators{0};    ///< operators run in slices
  std::atomic<std::int64_t> sliced_bytes{0};        ///< that came and went for these
  std::atomic<std::int64_t> row_operators{0};       ///< that made rows of what they read
  std::atomic<std::int64_t> in_place_operators{0};  ///< run on what lies below, where it lies
  std::atomic<std::int64_t> in_place_bytes{0};      ///< of their tensors there
  /// Heads of lineages that one kernel has computed.
  std::atomic<std::int64_t> chains_replayed{0};

 protected:
  /// In hand_over(): for whoever knows blocks by their storages.
  virtual void rename(EngineLock& /*lock*/, c10::StorageImpl& /*from*/, c10::StorageImpl& /*to*/) {}
  /// Evicts down to a new limit. What the tier below has no room for stays: whoever needs its place
  /// gets the error.
  void make_room_at_start(EngineLock& lock);
  /// What the pilot is to do under such settings.
  [[nodiscard]] static Pilot::Options pilot_options(const Options& settings, Bytes limit);
  void set_host_limit(Bytes bytes) noexcept {
    host_limit_ = bytes;
    has_been_full_ = false;
  }

  Pilot pilot_;
  StepThreads step_threads_;
  std::unique_ptr<Lineages> lineages_;
  std::unique_ptr<Deferred> deferred_;
  std::atomic<bool> drops_everything_{false};
  std::atomic<bool> other_algorithms_{false};
  std::atomic<SliceMode> slice_mode_{SliceMode::kAll};
  SliceMemory slice_memory_;
  CountedVersions counted_versions_;
  ChangedAlgorithms changed_algorithms_;
  std::vector<std::unique_ptr<FusedRule>> fused_;  ///< of the device; none: it has no kernels
  std::unique_ptr<PassKernels> pass_kernels_;      ///< likewise
  std::atomic<bool> on_{false};
  std::atomic<Bytes> min_block_{kMiB};
  std::atomic<Bytes> limit_{0};
  std::atomic<Bytes> host_limit_{0};
  std::atomic<bool> has_been_full_{false};  ///< the tier below, nearly, under this host_limit()
};

/// The manager of a device that is on, or null. One load: safe on any thread.
DeviceManager* active_manager(c10::Device device) noexcept;
/// True while any manager is on.
bool any_active() noexcept;
/// True once any manager that is on has had to evict: from then on operators keep what it takes to
/// run them again.
bool pressed() noexcept;

}  // namespace lms::torch
