#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace lms::torch {

/// What meta kernels have said of calls, so that each is asked once for calls that differ in their
/// sizes alone: many are functions of Python, once torch._meta_registrations has been imported.
///
/// Calls are of one pattern if their sizes are equal and differ at the same places, all tensors are
/// contiguous, and everything else is equal. What makes a result of sizes that no argument has is
/// not kept. Not thread-safe: each thread has its own.
class ForeseenResults {
 public:
  /// The one result of a call, on the meta device.
  struct Result {
    at::Tensor tensor;  ///< undefined: it makes none, or several, or nobody can tell
    bool asked =
        false;  ///< the kernel has been, of this call; else its sizes are those of the pattern
  };

  /// `operator_key`: of OpInfo. No lock may be held, see results_foreseen().
  Result of(std::uint64_t operator_key, const c10::OperatorHandle& op,
            std::span<const c10::IValue> arguments, c10::Device device);

  [[nodiscard]] std::size_t patterns() const { return known_.size(); }

 private:
  struct Known {
    std::optional<at::ScalarType> type;  ///< nothing: there is no such result
    std::vector<std::int64_t> sizes;     ///< 0, 1, or 2 and the index of one of the call's sizes
  };
  struct Hash {
    std::size_t operator()(const std::vector<std::int64_t>& key) const noexcept;
  };

  std::unordered_map<std::vector<std::int64_t>, Known, Hash> known_;
};

}  // namespace lms::torch
