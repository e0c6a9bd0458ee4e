#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/PythonDispatcherTLS.h>

#include <optional>
#include <vector>

#include "adapters/torch/operators/call.h"
#include "adapters/torch/thread_state.h"

namespace lms::torch {

/// The dispatch keys of what comes before a kernel: autograd, autocast, modes of Python.
c10::DispatchKeySet above_kernels();

/// While it lives, what the calling thread runs is a replay: below autograd and Python, with pins
/// of its own, and nothing of it is the step's as the pilot sees it. Nests.
class ReplayScope {
 public:
  /// `addresses`: where the allocations are wanted, in order; those after the last have no wish.
  explicit ReplayScope(std::vector<Bytes> addresses);
  ~ReplayScope();
  ReplayScope(const ReplayScope&) = delete;
  ReplayScope& operator=(const ReplayScope&) = delete;

 private:
  ThreadState& state_;
  Replay replay_;
  Replay* outer_;
  Pins outer_pins_;
  int outer_depth_;
  c10::impl::ExcludeDispatchKeyGuard below_;
  c10::impl::DisablePythonDispatcher no_python_;
};

/// An operator's arguments as a replay needs them.
struct ReplayArguments {
  std::vector<c10::IValue> values;
  at::Tensor written;  ///< undefined: it only makes new tensors
};

/// Nothing if a replay could be told from the first run: it writes more than one tensor.
std::optional<ReplayArguments> replay_arguments(const OpInfo& info, const c10::OperatorHandle& op,
                                                const c10::Stack& stack);

/// Runs the call over these storages (beside its `tensors` and `saved`) on `device`. Returns the
/// storage of result number `result`, if that is one. Within a ReplayScope.
c10::intrusive_ptr<c10::StorageImpl> run_call(
    const Call& call, const std::vector<c10::intrusive_ptr<c10::StorageImpl>>& storages,
    const std::vector<c10::intrusive_ptr<c10::StorageImpl>>& saved, std::size_t result,
    c10::Device device);

/// A storage of the device with any contents. Within a ReplayScope.
c10::intrusive_ptr<c10::StorageImpl> take_memory(c10::Device device, Bytes bytes);

/// A copy, made on the current stream. Within a ReplayScope.
c10::Storage copy_of(const c10::Storage& storage);

}  // namespace lms::torch
