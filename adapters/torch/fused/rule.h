#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "adapters/torch/fused/kernels.h"
#include "adapters/torch/operators/call.h"
#include "steps/step_log.h"

namespace lms::torch {

/// Calls at the head of a lineage that one kernel of LMS's own can stand for. The specs belong to
/// the calls.
struct FusedRun {
  std::size_t calls = 0;                 ///< how many
  Bytes bytes = 0;                       ///< of the result
  std::vector<const TensorSpec*> reads;  ///< null: a tensor that there is not
  /// The call that made what the first of them reads, which is not there, and which the kernel does
  /// without; null: everything that they read is there.
  std::shared_ptr<const Call> maker;
  /// Has the kernel made if there is none yet. False: it cannot be had.
  std::function<bool()> prepare;
  /// Queues it on the current stream, with the addresses of `reads`, which stay there until then.
  /// The result overlaps none of them. False: it has not been queued, and nothing was written.
  std::function<bool(std::span<const void* const> reads, void* result)> launch;
};

/// What there is to know of operators that can be computed again by a kernel of LMS's own, on one
/// device. Thread-safe, and lives as long as the process.
///
/// A new rule is a class in a file of its own, and its line in rules.cpp.
class FusedRule {
 public:
  virtual ~FusedRule() = default;

  // `role`: which of the rule's operators (FusedKind::operators) it is.

  /// What running an operator again costs. Its arguments are the last on the stack.
  [[nodiscard]] virtual ReplayCost price(std::uint8_t role, const OpInfo& info,
                                         const c10::Stack& stack) const = 0;

  /// Of a call that made what a spec reads, and which is not there; null if there is none such.
  using MakerOf = std::function<std::shared_ptr<const Call>(const TensorSpec&)>;
  /// Nothing unless the calls begin with what a kernel is certain to give the same bits for as one
  /// call after the other. Takes no lock.
  [[nodiscard]] virtual std::optional<FusedRun> find(
      std::span<const std::shared_ptr<const Call>> calls, const MakerOf& maker_of) = 0;

  /// Kernels that could not be made or queued: 0 or 1, as there are none for good then.
  [[nodiscard]] virtual std::int64_t failures() const noexcept = 0;

  // For operators whose first result can be had from their other results.

  /// How many of these are kept with the call (Call::saved), if they are small.
  [[nodiscard]] virtual std::size_t saves(std::uint8_t /*role*/) const { return 0; }
  /// They are there: may they be used? The call is not shared yet.
  [[nodiscard]] virtual bool settle(Call& /*call*/) const { return false; }
  /// The first result from them, with operators of PyTorch; undefined: by running the call.
  [[nodiscard]] virtual at::Tensor from_saved(const Call& /*call*/, const c10::Stack& /*arguments*/,
                                              std::span<const at::Tensor> /*saved*/) const {
    return {};
  }

  // For operators whose kernel must be tried out first.

  [[nodiscard]] virtual bool tries_out(std::uint8_t /*role*/) const { return false; }
  /// True if it is to be tried out with these arguments (the last on the stack) before it computes
  /// with them; then try_out() comes next.
  [[nodiscard]] virtual bool wants_trial(const OpInfo& /*info*/, const c10::Stack& /*stack*/) {
    return false;
  }
  /// Runs the operator's own kernel: the arguments become the results.
  using RunOperator = std::function<void(c10::Stack& arguments)>;
  /// Keeps a tensor on the device until the trial ends.
  using Hold = std::function<void(const at::Tensor& tensor)>;
  /// Tries it out. May wait for the device, and throw whatever these throw: then nothing becomes
  /// known.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): rules use it up
  virtual void try_out(c10::Stack /*arguments*/, const RunOperator& /*run*/, const Hold& /*hold*/) {
  }
};

/// A kind of rules, of which each device that has Kernels makes one.
struct FusedKind {
  std::span<const std::string_view> operators;  ///< with overloads: "aten::add_.Tensor"
  std::unique_ptr<FusedRule> (*make)(c10::Device device, Kernels& kernels);
};

/// The rule of an operator, as OpInfo has it; none: kNoRule.
[[nodiscard]] FusedRole fused_role(std::string_view name);
/// The rules of a device, by FusedRole::rule.
[[nodiscard]] std::vector<std::unique_ptr<FusedRule>> make_fused_rules(c10::Device device,
                                                                       Kernels& kernels);

}  // namespace lms::torch
