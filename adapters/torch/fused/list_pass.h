#pragma once

#include <c10/core/ScalarType.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "adapters/torch/fused/kernels.h"
#include "adapters/torch/operators/pass_step.h"

namespace lms::torch {

/// What several operators over lists compute, one after the other, of each element: a program over
/// registers, each of which is an element of a list, or was made of such and lies nowhere.
struct PassProgram {
  static constexpr std::uint8_t kNone = UINT8_MAX;
  struct Step {
    StepKind kind;
    std::uint8_t to;
    std::uint8_t a;
    std::uint8_t b;
    std::uint8_t c;
    std::uint8_t number;  ///< which one
    bool each;            ///< one for each position: another kernel of PyTorch's
    auto operator<=>(const Step&) const = default;
  };
  /// Where a register is when the pass begins, and ends.
  enum class Place : std::uint8_t { kRead, kWritten, kMade, kOne };

  c10::ScalarType type = c10::ScalarType::Undefined;
  std::vector<Step> steps;
  std::vector<Place> registers;  ///< kOne: one element for all positions, in memory
  std::uint8_t numbers = 0;

  auto operator<=>(const PassProgram&) const = default;
};

/// One position of the lists: addresses by register (made ones have none), as many elements in
/// each, and the numbers of the steps.
struct PassPosition {
  std::vector<void*> addresses;
  std::uint64_t elements = 0;
  std::vector<double> numbers;
};

/// Kernels that run such programs in one pass, each element read and written once, with the bits of
/// the operators one after the other: what each rounds is rounded. Thread-safe.
class PassKernels {
 public:
  static constexpr std::size_t kMostRegisters = 12;
  static constexpr std::size_t kMostAddresses = 8;
  static constexpr std::size_t kMostNumbers = 12;

  explicit PassKernels(Kernels& kernels) : kernels_(kernels) {}

  /// There may be some.
  [[nodiscard]] bool available() const noexcept {
    return !failed_ && kernels_.multiprocessors() > 0;
  }
  /// It is known whether the kernel gives the operators' bits, and it does. `try_out` is called
  /// where it is not known yet; what it throws is thrown, and it stays unknown. False as well while
  /// another thread tries something out: nobody waits for that.
  [[nodiscard]] bool may_run(const PassProgram& program, const std::function<bool()>& try_out);
  /// Queues it on the current stream. False: nothing was queued, and nothing will be, for good.
  /// Throws Error where some of it was.
  [[nodiscard]] bool run(const PassProgram& program, std::span<const PassPosition> positions);

  /// For tests: the kernel's source.
  static std::string source_of(const PassProgram& program);

 private:
  [[nodiscard]] Kernels::Kernel kernel_for(const PassProgram& program, bool vectors);

  Kernels& kernels_;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  ///< guards `made_` and `known_`
  std::mutex trial_;  ///< one at a time, without waiting; taken first
  std::map<std::pair<PassProgram, bool>, Kernels::Kernel> made_;
  std::map<PassProgram, bool> known_;
};

}  // namespace lms::torch
