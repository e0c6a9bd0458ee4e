#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

// What a device's management can be told. No PyTorch.
namespace lms::torch {

struct Options {
  std::string device = "cuda";
  /// Memory to stay below on the device. -1: what is available, less a margin.
  std::int64_t limit = -1;
  /// Memory to stay below in the tier underneath: pinned host memory below CUDA, a file below the
  /// CPU. -1: four fifths of the available memory, or nine tenths of the free disk, divided by the
  /// processes that a launcher has started on this machine.
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
  /// Most time to search for a better plan, in a thread of its own, for each kind of step, with the
  /// times of planned steps. The first plan takes at most a tenth of a second of it.
  double plan_seconds = 2;
  /// Plans may let go of what is cheaper to compute again than to copy out and back. By default on
  /// GPUs: on the CPU, code that PyTorch does not see may read tensors where they lie, and what has
  /// been dropped cannot be read.
  std::optional<bool> recompute = {};
  /// Folder in which plans are kept, so that the same training begins planned when it is started
  /// again: "auto" is lms/plans in the user's folder of caches, "off" none.
  std::string plan_cache = "auto";
  /// Operators whose parts are independent run in parts, in the same order and with the same bits:
  /// "parts" where they do not fit as a whole, "off" never, "always" (for tests) wherever they can.
  /// With "all", what cannot be cut works, as the last resort, on tensors where they lie below;
  /// "auto" is that. With "in_place" (for tests) it does so wherever it can.
  std::string slices = "auto";
  /// For tests, with `stress`: what can be computed again is dropped instead of evicted.
  bool drop = false;
  /// An optimizer's updates may run later than they are called: before anybody looks at what they
  /// write, or changes what they read. Large operators over lists wait for those that follow them,
  /// and run weight by weight; some that a plan chooses wait until the weight is used. "true",
  /// "false", or "auto", which is true on GPUs: on the CPU, code that PyTorch does not see may read
  /// weights where they lie. "chosen": no others than those that a plan chooses wait. For tests,
  /// without a plan: "updates" (all of them wait), "all" (every operator in place that can) and
  /// "random" (and some run at random).
  std::string deferred_updates = "auto";
  /// Where the algorithm that cuDNN chooses for a convolution finds no room for what it needs of
  /// its own, neither on the device nor in host memory, the next one that PyTorch knows may take
  /// its place, as in PyTorch without LMS. Results then have other bits than on a larger device; by
  /// default there is an error instead.
  bool other_algorithms = false;
};

/// A field of Options by its name: for programs that are told their settings as text.
struct OptionKey {
  enum class Kind : std::uint8_t {
    kAmount,  ///< bytes
    kFlag,    ///< true or false
    kMaybe,   ///< true, false, or auto
    kSeconds,
    kText,
  };
  std::string name;
  Kind kind;
  std::string help;                                       ///< a line
  std::function<void(Options&, const std::string&)> set;  ///< throws BadSetting (base/error.h)
  std::function<std::string(const Options&)> get;         ///< what set() reads back alike
};

/// Every field, in the order of Options.
const std::vector<OptionKey>& option_keys();

/// Sets a field. Throws BadSetting: for an unknown name with those that there are.
void set_option(Options& options, const std::string& name, const std::string& value);

}  // namespace lms::torch
