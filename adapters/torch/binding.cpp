// The only binding: operators of the PyTorch dispatcher, which need no Python ABI.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <lms/torch.h>
#include <torch/library.h>

#include "adapters/torch/backends.h"
#include "adapters/torch/errors.h"
#include "adapters/torch/registry.h"
#include "adapters/torch/thread_state.h"
#include "adapters/torch/version.h"

namespace lms::torch {
namespace {

void enable_with(const std::string& device, std::int64_t limit, std::int64_t host_limit,
                 std::int64_t min_block, const std::string& directory, bool stress, bool verify,
                 bool plan, bool plan_at_once, double plan_seconds, bool recompute,
                 const std::string& plan_cache, bool drop, bool other_algorithms) {
  enable({device, limit, host_limit, min_block, directory, stress, verify, plan, plan_at_once,
          plan_seconds, recompute, plan_cache, drop, other_algorithms});
}

std::vector<std::string> devices() { return enabled_devices(); }

DeviceManager& one(const std::string& device) {
  const auto managers = managers_of(device, true);
  if (managers.empty()) {
    throw BadSetting("LMS: is not enabled; call torch_lms.enable() first");
  }
  return *managers.front();
}

std::int64_t limit(const std::string& device) {
  return guarded([&] { return one(device).limit(); });
}
std::int64_t min_block(const std::string& device) {
  return guarded([&] { return one(device).min_block(); });
}
std::int64_t host_limit(const std::string& device) {
  return guarded([&] { return one(device).host_limit(); });
}

c10::Dict<std::string, std::int64_t> stats(const std::string& device) {
  c10::Dict<std::string, std::int64_t> result;
  for (const auto& [key, value] : memory_stats(device)) result.insert(key, value);
  return result;
}

void scope_begin() { thread_state().access_scopes.emplace_back(); }

void scope_end() {
  guarded([&] {
    ThreadState& state = thread_state();
    if (state.access_scopes.empty()) throw Error("LMS: scope_end without scope_begin");
    Pins pins = std::move(state.access_scopes.back());
    state.access_scopes.pop_back();
    pins.release_after_operator();
  });
}

/// Calls `use` with the block behind a tensor, or with null.
template <typename Body>
auto with_block(const at::Tensor& tensor, Body&& use) {
  return guarded([&] {
    std::vector<StorageUse> storages;
    collect_storages(tensor, /*writes=*/false, /*inside=*/true, storages);
    DeviceManager* manager =
        storages.empty() ? nullptr : active_manager(storages.front().storage->device());
    if (manager == nullptr) {
      return use(static_cast<DeviceManager*>(nullptr), static_cast<EngineLock*>(nullptr),
                 static_cast<Block*>(nullptr));
    }
    EngineLock lock = manager->engine().lock();
    return use(manager, &lock, manager->find(lock, *storages.front().storage));
  });
}

std::string state(const at::Tensor& tensor) {
  return with_block(tensor, [](DeviceManager*, EngineLock*, Block* block) -> std::string {
    if (block == nullptr) return "unmanaged";
    if (block->kept) return "kept";
    if (block->state == BlockState::kDropped) return "dropped";
    return block->state == BlockState::kAbsent || block->state == BlockState::kArriving
               ? "absent"
               : "resident";
  });
}

bool evict(const at::Tensor& tensor) {
  return with_block(tensor, [](DeviceManager* manager, EngineLock* lock, Block* block) {
    return block != nullptr && manager->engine().evict(*lock, *block);
  });
}

void make_plain(const at::Tensor& tensor) {
  guarded([&] {
    if (!tensor.has_storage()) return;
    c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
    access(tensor);
    if (DeviceManager* manager = active_manager(storage.device())) manager->make_plain(storage);
    access(tensor);  // where it lies now is new, and is to stay: no operator may come in between
  });
}

void capture_begin(const std::string& device) {
  guarded([&] {
    for (DeviceManager* manager : managers_of(device, false)) manager->capture_begin();
  });
}

void capture_end(const std::string& device) {
  guarded([&] {
    for (DeviceManager* manager : managers_of(device, false)) manager->capture_end();
  });
}

c10::Dict<std::string, std::string> info() {
  c10::Dict<std::string, std::string> facts;
  facts.insert("lms_version", LMS_VERSION);
  facts.insert("torch_version", TORCH_VERSION);
  facts.insert("cuda_version", cuda_build_version());
  facts.insert("cuda_devices", std::to_string(cuda_device_count()));
  facts.insert("compiler", __VERSION__);
  return facts;
}

std::vector<double> measure_link(const std::string& device, std::int64_t bytes) {
  return guarded([&] {
    const c10::Device parsed(device);
    return measure_cuda_link(parsed.has_index() ? parsed.index() : current_cuda_device(), bytes);
  });
}

}  // namespace

}  // namespace lms::torch

TORCH_LIBRARY(lms, m) {
  m.def(
      "enable(str device, int limit, int host_limit, int min_block, str directory, bool stress, "
      "bool verify, bool plan, bool plan_at_once, float plan_seconds, bool recompute, "
      "str plan_cache, bool drop, bool other_algorithms) -> ()",
      &lms::torch::enable_with);
  m.def("disable(str device) -> ()", &lms::torch::disable);
  m.def("speak(bool may) -> ()", &lms::torch::speak);
  m.def("is_enabled(str device) -> bool", &lms::torch::is_enabled);
  m.def("devices() -> str[]", &lms::torch::devices);
  m.def("limit(str device) -> int", &lms::torch::limit);
  m.def("min_block(str device) -> int", &lms::torch::min_block);
  m.def("host_limit(str device) -> int", &lms::torch::host_limit);
  m.def("stats(str device) -> Dict(str, int)", &lms::torch::stats);
  m.def("reset_peak(str device) -> ()", &lms::torch::reset_peak_memory_stats);
  m.def("reclaim_inactive(str device) -> int", &lms::torch::reclaim_inactive);
  m.def("step(str device) -> ()", &lms::torch::step);
  m.def("wait_for_plan(str device) -> ()", &lms::torch::wait_for_plan);
  m.def("save_trace(str path, str device) -> ()", &lms::torch::save_trace);
  m.def("save_timeline(str path, str device) -> ()", &lms::torch::save_timeline);
  m.def("emulate_link(float rate, str device) -> ()", &lms::torch::emulate_link);
  m.def("access(Tensor t) -> ()", &lms::torch::access);
  m.def("make_plain(Tensor t) -> ()", &lms::torch::make_plain);
  m.def("scope_begin() -> ()", &lms::torch::scope_begin);
  m.def("scope_end() -> ()", &lms::torch::scope_end);
  m.def("state(Tensor t) -> str", &lms::torch::state);
  m.def("evict(Tensor t) -> bool", &lms::torch::evict);
  m.def("capture_begin(str device) -> ()", &lms::torch::capture_begin);
  m.def("capture_end(str device) -> ()", &lms::torch::capture_end);
  m.def("info() -> Dict(str, str)", &lms::torch::info);
  m.def("measure_link(str device, int bytes) -> float[]", &lms::torch::measure_link);
}
