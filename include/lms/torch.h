#pragma once

// LMS for libtorch programs: train past the memory of the device.
//
//   lms::torch::Managed lms({.device = "cuda", .limit = 12LL << 30});
//   … train as before …
//
// The same functions are PyTorch operators, torch.ops.lms.*, which the Python package calls.

#include <lms/options.h>

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

/// "planned", or why the steps of a device ("": the first that is managed) are not, in a few words.
std::string plan_state(const std::string& device = "");

/// Where the last detour of a step from its plan began, and why, in words. Empty: there was none.
std::string plan_detour(const std::string& device = "");

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

/// What an out-of-memory error of LMS is about.
struct Need {
  std::string op;                ///< "aten::convolution"; empty where no operator asked
  std::int64_t bytes = 0;        ///< that it needs on the device at once
  std::int64_t least_limit = 0;  ///< the smallest limit that could work
  bool below = false;            ///< the memory below, host or file, is full
};

/// The facts behind an error, so that no program has to read its words. `error` is the text of one
/// of the last eight that LMS raised in this process, whatever stands around it; else nothing is
/// known.
std::optional<Need> need_of(const std::string& error);

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
