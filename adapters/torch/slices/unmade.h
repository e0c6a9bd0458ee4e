#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>

#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "adapters/torch/operators/op_info.h"

namespace lms::torch {

/// A call that waits (deferred/), and whose one result nobody has made: who uses that part by part
/// may make rows of it, for itself, from rows of what the call reads.
struct Unmade {
  const OpInfo* info = nullptr;
  const c10::SafeKernelFunction* kernel = nullptr;
  std::optional<c10::OperatorHandle> op;
  c10::DispatchKeySet keys;
  c10::Stack arguments;
  at::Tensor result;  ///< its storage has no memory yet, and is all of it
};

/// What has not been made of all that a call reads, directly or not, by storage. As long as it
/// lives nobody makes these as a whole, or changes what they are to be made of. Move-only.
class UnmadeRows {
 public:
  using Ones = std::unordered_map<const c10::StorageImpl*, std::shared_ptr<const Unmade>>;

  UnmadeRows() = default;
  UnmadeRows(Ones ones, std::function<void()> let_go)
      : ones_(std::move(ones)), let_go_(std::move(let_go)) {}
  ~UnmadeRows() { release(); }
  UnmadeRows(UnmadeRows&& other) noexcept
      : ones_(std::exchange(other.ones_, {})), let_go_(std::exchange(other.let_go_, nullptr)) {}
  UnmadeRows& operator=(UnmadeRows&&) = delete;

  void release() {
    ones_.clear();
    if (const auto let_go = std::exchange(let_go_, nullptr)) let_go();
  }
  [[nodiscard]] bool empty() const { return ones_.empty(); }
  [[nodiscard]] const Unmade* find(const c10::StorageImpl* storage) const {
    const auto found = ones_.find(storage);
    return found == ones_.end() ? nullptr : found->second.get();
  }

 private:
  Ones ones_;
  std::function<void()> let_go_;
};

/// An operator that waits will make it; or, on a GPU, it has been dropped.
inline bool has_no_memory(const c10::StorageImpl& storage) {
  return storage.nbytes() > 0 &&
         const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().get() == nullptr;
}

}  // namespace lms::torch
