#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <lms/torch.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "adapters/torch/registry.h"

namespace lms::torch::testing {

/// CPU management for the length of a scope, with small blocks.
class ManagedCpu {
 public:
  explicit ManagedCpu(Bytes limit, bool stress = false, bool drop = false, bool plan = true) {
    settings_.device = "cpu";
    settings_.recompute = true;
    settings_.plan_cache = "off";
    settings_.plan = plan;
    settings_.limit = limit;
    settings_.host_limit = 256 * kMiB;
    settings_.min_block = 4 * kKiB;
    settings_.directory = ::testing::TempDir();
    settings_.stress = stress;
    settings_.drop = drop;
    enable_device(settings_);
    before_ = device_stats(*active_manager(c10::kCPU));
  }
  ~ManagedCpu() { disable_device("cpu"); }
  ManagedCpu(const ManagedCpu&) = delete;
  ManagedCpu& operator=(const ManagedCpu&) = delete;

  /// A figure of now, such as "pinned.bytes.current".
  [[nodiscard]] std::int64_t stat(const std::string& key) const {
    return device_stats(*active_manager(c10::kCPU)).at(key);
  }
  /// What a counter has grown by in this scope.
  [[nodiscard]] std::int64_t count(const std::string& key) const {
    return stat(key) - before_.at(key);
  }
  void allow_other_algorithms() {
    settings_.other_algorithms = true;
    enable_device(settings_);
  }
  /// Operators work on the device alone.
  void never_in_place() {
    settings_.slices = "parts";
    enable_device(settings_);
  }
  void set_limit(Bytes limit) {
    settings_.limit = limit;
    enable_device(settings_);
  }
  void set_host_limit(Bytes limit) {
    settings_.host_limit = limit;
    enable_device(settings_);
  }
  /// Sends away all that may leave; the bytes that left.
  Bytes reclaim() {
    Engine& engine = active_manager(c10::kCPU)->engine();
    EngineLock lock = engine.lock();
    return engine.reclaim(lock, INT64_MAX);
  }

 private:
  Options settings_;
  std::map<std::string, std::int64_t> before_;
};

/// Of a tensor that is managed.
inline BlockState block_state(const at::Tensor& tensor) {
  DeviceManager& manager = *active_manager(c10::kCPU);
  EngineLock lock = manager.engine().lock();
  return manager.find(lock, *tensor.storage().unsafeGetStorageImpl())->state;
}

inline c10::OperatorHandle find_operator(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

/// The result of calling an operator by the dispatcher, as any caller does.
inline std::vector<c10::IValue> call(const c10::OperatorHandle& op,
                                     std::vector<c10::IValue> stack) {
  op.callBoxed(stack);
  return stack;
}

/// `n` different floats, which depend on `seed` alone.
inline at::Tensor numbers(std::int64_t n, double seed) {
  return at::arange(n, at::kFloat).mul_(0.37).add_(seed).sin_();
}

/// The bytes of a contiguous tensor, read through an operator.
inline std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor copy = tensor.detach().clone();
  access(copy);  // what has been dropped cannot be read where it lay
  return {static_cast<const char*>(copy.const_data_ptr()), copy.nbytes()};
}

inline std::vector<std::string> bytes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::string> all;
  for (const auto& tensor : tensors) all.push_back(bytes_of(tensor));
  return all;
}

}  // namespace lms::torch::testing
