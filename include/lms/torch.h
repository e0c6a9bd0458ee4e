#pragma once

// LMS for libtorch programs: train past the memory of the device.
//
//   lms::torch::Managed lms({.device = "cuda", .limit = 12LL << 30});
//   … train as before …
//
// The same functions are PyTorch operators, torch.ops.lms.*, which the Python package calls.

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace at {
class Tensor;
}

/// Errors are PyTorch's own: c10::OutOfMemoryError (the budget cannot hold what is needed at once;
/// nothing was lost, and the same work succeeds under a larger limit), c10::ValueError (a setting
/// or a device that cannot work; nothing was changed), else c10::Error.
///
/// A device is "cpu", "cuda" (the calling thread's current device) or "cuda:1"; where the default
/// is "", that means every device that is managed. Amounts are bytes.
///
/// The functions are thread-safe among themselves. But enabling the first device of a kind (CPU,
/// CUDA), and disabling the last, changes PyTorch's operator tables and its allocator: no other
/// thread may run operators meanwhile.
namespace lms::torch {

struct Options {
  std::string device = "cuda";
  /// Memory to stay below on the device. -1: what is available, less a margin.
  std::int64_t limit = -1;
  /// Memory to stay below in the tier underneath: pinned host memory below CUDA, a file below the
  /// CPU. -1: four fifths of the available memory, or nine tenths of the free disk.
  std::int64_t host_limit = -1;
  /// Smaller storages stay where they are. On a device that is managed it can only become smaller.
  std::int64_t min_block = std::int64_t{1} << 20;
  /// Folder for the file below the CPU, on a disk. "": $TMPDIR, else /var/tmp, else /tmp, else the
  /// working directory, whichever is the first that is not kept in memory.
  std::string directory;
  /// For tests: everything that may leave the device does so after every operator.
  bool stress = false;
  /// For tests: a block that leaves without a copy is compared with the copy that is there.
  bool verify = false;
  /// Learn the steps of the training loop, and plan their copies ahead. Without it blocks move when
  /// an operator needs the room, or the block.
  bool plan = true;
  /// For tests: make plans while the step waits, not beside it.
  bool plan_at_once = false;
  /// Most time to search for a better plan, in a thread of its own, once for each kind of step.
  double plan_seconds = 2;
  /// Plans may let go of what is cheaper to compute again than to copy out and back. By default on
  /// GPUs: on the CPU, code that PyTorch does not see may read tensors where they lie, and what has
  /// been dropped cannot be read.
  std::optional<bool> recompute = {};
  /// Folder in which plans are kept, so that the same training begins planned when it is started
  /// again: "auto" is lms/plans in the user's folder of caches, "off" none.
  std::string plan_cache = "auto";
  /// For tests, with `stress`: what can be computed again is dropped instead of evicted.
  bool drop = false;
  /// Where the algorithm that cuDNN chooses for a convolution needs more memory than the limit has
  /// for anything, the next one that PyTorch knows may take its place, as in PyTorch without LMS.
  /// Results then have other bits than on a larger device; by default there is an error instead.
  bool other_algorithms = false;
};

/// Starts managing a device; where it is managed already, changes the settings (not `directory`).
/// CUDA tensors are managed whenever they were made, CPU tensors if they are made from now on.
void enable(const Options& options = {});

/// Stops managing. What is absent comes back first; if that does not fit, c10::OutOfMemoryError is
/// thrown and the device stays managed. No effect on a device that is not managed.
void disable(const std::string& device = "");

bool is_enabled(const std::string& device = "");

/// The statistics of one device ("": the first that is managed), by flat dotted keys, as
/// torch_lms.memory_stats() has them; empty if it has never been managed.
std::map<std::string, std::int64_t> memory_stats(const std::string& device = "");

/// Starts every peak anew from its current value, on CUDA also those of PyTorch's allocator.
void reset_peak_memory_stats(const std::string& device = "");

/// A training step ends here. Never needed: steps are found from the stream of operators. It helps
/// where a loop repeats something within its step.
void step(const std::string& device = "");

/// Waits until no plan is being made; it is followed from the next step on. Not to be called while
/// an operator runs.
void wait_for_plan(const std::string& device = "");

/// The step that was learnt last on a device ("": the first that is managed): its trace, in the
/// format of trace/trace_io.h, is written to `path` (gzip if it ends in .gz). Throws c10::Error if
/// no step is known.
void save_trace(const std::string& path, const std::string& device = "");

/// The planned step of a device ("": the first that has one) is drawn to `path`: as a still picture
/// if it ends in .svg, else as a Chrome trace for Perfetto (gzip if it ends in .gz). Beside the
/// prediction stands what was measured, of the same plan, if a step has been timed under a plan.
/// Throws c10::Error if no plan has been made.
void save_timeline(const std::string& path, const std::string& device = "");

/// For measurements: from now on copies between a device that is managed and its host take as long
/// as over a link of `rate` bytes a second each way; 0 ends it. The link's own rate is measured
/// first, which takes 128 MiB of the device. Throws c10::Error if the link is slower than that, or
/// the device has none.
void emulate_link(double rate, const std::string& device = "");

/// Evicts everything that no operator uses. Returns the bytes that left the device. With a named
/// device, that device must be managed.
std::int64_t reclaim_inactive(const std::string& device = "");

/// For code that uses a tensor's pointer outside operators (data_ptr(), a kernel of its own):
/// brings the tensor's block to the device and keeps it there until its storage dies. To be called
/// before the pointer is taken. Without it the pointer may be one into the tier below, and what is
/// written through it may be lost. No effect on tensors that are not managed.
void access(const at::Tensor& tensor);

/// Managing, for the length of a scope.
class Managed {
 public:
  /// enable(options).
  explicit Managed(const Options& options = {});
  /// Disables the device, if it was this object that has enabled it. Never throws: where what is
  /// absent does not fit the device, the device stays managed. Call disable() to know.
  ~Managed();
  Managed(const Managed&) = delete;
  Managed& operator=(const Managed&) = delete;

  /// The device's full name, such as "cuda:0".
  [[nodiscard]] const std::string& device() const { return device_; }

 private:
  std::string device_;
  bool was_enabled_;
};

}  // namespace lms::torch
