#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

#include "adapters/torch/device_manager.h"
#include "adapters/torch/operators/op_info.h"
#include "adapters/torch/slices/unmade.h"
#include "adapters/torch/thread_state.h"

namespace lms::torch {

/// Runs an operator in parts, of which rows of what it reads are made as they are needed. False,
/// with nothing changed: that cannot be, or finds no room.
using RunByRows = bool (*)(const OpInfo&, const c10::SafeKernelFunction&,
                           const c10::OperatorHandle&, c10::DispatchKeySet, c10::Stack&,
                           const UnmadeRows&);

/// One run of an operator that has been called and not run: of all of it, or of some positions of
/// its lists.
struct Part {
  RunOperator run = nullptr;
  const OpInfo* info = nullptr;
  const c10::SafeKernelFunction* kernel = nullptr;
  std::optional<c10::OperatorHandle> op;
  c10::DispatchKeySet keys;
  bool grad_mode = false;
  /// As they were at the call: tensors of its own over the same storages, and what is small a copy.
  c10::Stack arguments;
  /// What it returns, if it makes a list, or rows: tensors whose storages have no memory yet.
  std::vector<at::Tensor> makes;
  StorageUses uses;  ///< alive through these
  /// It waits for who uses its result, row by row perhaps; null: it does not.
  std::shared_ptr<Unmade> rows;
  RunByRows run_by_rows = nullptr;
  /// What it reads through what it reads by rows: alive as long as the parts that make that.
  StorageUses through;
  bool was_read = false;     ///< rows of it have been made
  std::uint64_t kind = 0;    ///< of its result
  std::uint64_t number = 0;  ///< in the order of the program
  std::chrono::steady_clock::time_point called;
  std::uint64_t call = 0;  ///< which this is a part of; parts of one call are independent
  bool for_long = false;   ///< it waits for more than the next operators: see WhoWaits
  /// The thread that called it, if it waits for that thread's next operators over lists alone.
  const ThreadState* brief_for = nullptr;
  bool waits = false;  ///< it has been called, and has neither run nor been given up
  bool runs = false;   ///< a thread is running it
  bool alone = false;  ///< whether it can run in one pass with those that follow has been tried
};

/// Which positions are to wait, if they may.
struct WhoWaits {
  const std::unordered_set<BlockUid>* chosen = nullptr;  ///< those that write these; null: all
  /// Likewise those of which this is true, as they cannot run before one that waits.
  std::function<bool(std::span<const StorageUse>)> is_behind;
  bool others_too = false;  ///< for the operators that follow, if not for longer
  Bytes piece = 0;          ///< of four lists, as optimizers have: what one part may take
};

/// What becomes of one call of an operator.
struct Deferrable {
  std::vector<std::unique_ptr<Part>> parts;
  /// The positions of its lists that must run now; empty: nothing.
  c10::Stack rest;
  /// What the call returns, where it makes a list of tensors: undefined at the positions of `rest`.
  std::vector<at::Tensor> made;
  /// The program's tensors that the parts write, and whose versions the kernel would have counted.
  std::vector<at::Tensor> counted;
};

/// Splits a call into what may wait and what may not; no parts: all of it has to run now. Of the
/// positions that lie in one piece those that wait for the same are one part. Lists of tensors of
/// the same bytes are cut at the same places. A position may wait if
/// - it could not fail: its tensors agree in geometry and type, and do not overlap;
/// - all of its tensors are in managed blocks whose addresses nobody else has, or so small that
///   they are copied here (learning rates, step counts, scales);
/// - its results are its arguments, or one new tensor like them.
/// Runs operators, to copy. The thread is in no operator.
Deferrable what_may_wait(DeviceManager& manager, const WhoWaits& who, const OpInfo& info,
                         const c10::SafeKernelFunction& kernel, const c10::OperatorHandle& op,
                         c10::DispatchKeySet keys, const c10::Stack& stack);

/// Parts, and calls that make rows for themselves, that the calling thread is running: what it
/// calls meanwhile has no others to wait for.
int& running_here() noexcept;

/// The same bytes, whatever becomes of the program's tensor (`p.data = other`).
at::Tensor alias_of(const at::Tensor& tensor);
/// A small tensor, as it is now.
at::Tensor copy_of(const at::Tensor& tensor);
/// What an operator will make: of the same type, size and layout as this one, without memory.
at::Tensor unmade_like(const at::Tensor& tensor, c10::Device device, c10::Allocator* allocator);
/// Whether these strides put each element of such a tensor at the same place.
bool strides_alike(c10::IntArrayRef sizes, c10::IntArrayRef one, c10::IntArrayRef other);
/// Kernels take it, and refuse nothing.
bool has_plain_type(const at::Tensor& tensor);
/// Of a block whose address nobody else has, or unmade. Under the engine's lock.
bool may_wait_for(EngineLock& lock, DeviceManager& manager, const at::Tensor& tensor);

/// A call whose one result may wait for who uses it, row by row: a part that waits, whose result
/// is its only `makes`. `chain`: it goes on with one, or one of its kind has begun one; else
/// it begins one, by all that can be told of it. Null: it has to run now. What is small is copied:
/// runs operators, in no operator.
std::unique_ptr<Part> rows_that_may_wait(DeviceManager& manager, const OpInfo& info,
                                         const c10::SafeKernelFunction& kernel,
                                         const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                         const c10::Stack& stack, bool chain);

}  // namespace lms::torch
