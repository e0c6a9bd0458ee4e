#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "adapters/torch/operators/op_info.h"
#include "adapters/torch/slices/below.h"
#include "adapters/torch/slices/cut.h"
#include "adapters/torch/slices/unmade.h"
#include "base/bytes.h"

namespace lms::torch {

class DeviceManager;
struct StorageUse;
struct WorkspaceRetry;

/// One outermost call of an operator that may not fit the device, and that can be cut, or work on
/// what lies below.
///
/// In slices the large operands lie below, lent to this call, and so do the large results from
/// their birth on; parts of them come to the device one after the other, the operator's own kernel
/// runs on each, and what it has written goes back. Operands that find room stay on the device as
/// they are.
///
/// In place (run_in_place.h), as the last resort, the kernel runs once, on some of its operands and
/// results where they lie below.
class SlicedCall {
 public:
  /// Large calls, of which there are few; or any, of which one has found no room: results can be
  /// larger than all that they are made from.
  enum class Of : std::uint8_t { kLarge, kAny };
  /// False for calls of operators with no rule, and for small ones: of() makes nothing of them.
  static bool may_be(DeviceManager* manager, const OpInfo& info,
                     std::span<const StorageUse> storages, Of which = Of::kLarge);
  /// Nothing for calls of which may_be() is false.
  static std::optional<SlicedCall> of(DeviceManager* manager, const OpInfo& info,
                                      const c10::SafeKernelFunction& kernel,
                                      const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                      const c10::Stack& stack, Of which = Of::kLarge);

  /// It is known not to fit as a whole, or is to run in slices, or in place, anyway.
  [[nodiscard]] bool at_once() const;
  /// Its kernel can work on tensors where they lie below.
  [[nodiscard]] bool may_be_in_place() const;
  /// Runs it: what is on the stack from where its arguments were becomes the results. False, with
  /// nothing changed, if it can neither be cut nor work in place. `tried`: its kernel has run, and
  /// found no room. The thread holds no pins. Throws what throw_out_of_memory() does where even the
  /// smallest parts do not fit.
  bool run(c10::Stack& stack, bool tried);
  /// As a whole it has asked for so much more than the limit: its kernel's own memory as well.
  void lacks(Bytes bytes) { lack_ = bytes; }
  /// Likewise, in parts, reading what has not been made row by row. False, with nothing changed, if
  /// that cannot be, or finds no room.
  bool run_by_rows(c10::Stack& stack, const UnmadeRows& rows);
  /// What other algorithms than the first were refused, as a whole if it was tried so; empty: none
  /// was tried.
  [[nodiscard]] const std::string& refused() const { return refused_; }
  /// Why the tier below had no room for it, in parts or in place; empty: it had.
  [[nodiscard]] const std::string& why_full_below() const { return full_below_; }
  /// The blocks that it has made below, of which the pilot is to hear once the operator has ended:
  /// on the device they are wanted by whoever uses them first.
  [[nodiscard]] std::span<const Born> born() const { return born_; }

  [[nodiscard]] bool writes() const {
    return std::ranges::any_of(info_.arguments, &OpInfo::Argument::writes);
  }

  /// An operator with this name may run by rows.
  static bool reads_rows(std::string_view name, CutRule cut);

 private:
  /// It would not fit, and could not be run again in place once it had found no room.
  [[nodiscard]] bool must_be_in_place() const;
  /// run(), but that nobody has counted the versions of what its parts have written.
  bool run_uncounted(c10::Stack& stack, bool tried);
  bool run_in_parts(c10::Stack& stack);
  [[nodiscard]] Bytes part_bytes() const;
  /// Its parts, or none.
  [[nodiscard]] std::vector<Cut> cuts(Bytes part) const;
  /// An argument that each part gets as it is has not been made.
  [[nodiscard]] bool needs_unmade(const std::vector<Cut>& cuts, const UnmadeRows& rows) const;
  bool gather_losses(c10::Stack& stack, const UnmadeRows& rows);
  bool run_in_place(c10::Stack& stack);
  void note_full_below(const std::string& why);
  void take(c10::Stack& stack, std::span<const c10::IValue> results) const;

  SlicedCall(DeviceManager& manager, const OpInfo& info, const c10::SafeKernelFunction& kernel,
             const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack arguments)
      : manager_(manager),
        info_(info),
        kernel_(kernel),
        op_(op),
        keys_(keys),
        arguments_(std::move(arguments)) {}

  DeviceManager& manager_;
  const OpInfo& info_;
  const c10::SafeKernelFunction& kernel_;
  const c10::OperatorHandle& op_;
  const c10::DispatchKeySet keys_;
  c10::Stack arguments_;
  std::size_t base_ = 0;      ///< of the arguments on the stack
  Bytes bytes_ = 0;           ///< of the storages of all arguments
  std::uint64_t number_ = 0;  ///< the same for calls alike
  Bytes lack_ = 0;            ///< of this call, tried as a whole
  std::vector<Born> born_;
  std::string full_below_;
  std::string refused_;
};

}  // namespace lms::torch
