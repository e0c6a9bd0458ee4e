// The only binding: operators of the PyTorch dispatcher, which need no Python ABI.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <lms/torch.h>
#include <torch/library.h>

#include "adapters/torch/backends.h"
#include "adapters/torch/deferred/deferred.h"
#include "adapters/torch/deferred/list_passes.h"
#include "adapters/torch/errors.h"
#include "adapters/torch/hook/op_hook.h"
#include "adapters/torch/registry.h"
#include "adapters/torch/replay/lineages.h"
#include "adapters/torch/thread_state.h"
#include "adapters/torch/version.h"

namespace lms::torch {
namespace {

void enable_with(const c10::Dict<std::string, std::string>& settings) {
  Options options;
  guarded([&] {
    for (const auto& setting : settings) set_option(options, setting.key(), setting.value());
  });
  enable(options);
}

std::vector<std::string> options() {
  std::vector<std::string> names;
  for (const OptionKey& key : option_keys()) names.push_back(key.name);
  return names;
}

std::vector<std::string> operators(const std::string& type) {
  return guarded([&] { return operator_facts(c10::Device(type).type()); });
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

/// Of this thread: an extension's call begins (or ends) of which no tensor is known.
void unseen_call(bool begins) { note_unseen_call(begins); }

void scope_begin(bool holds) {
  thread_state().access_scopes.push_back({.pins = {}, .holds = holds});
}

/// `handed`: what came into a scope that holds, or leaves it; all else that it has held and that
/// still lives belongs to whoever took raw pointers within, and is kept.
void scope_end(const std::vector<at::Tensor>& handed) {
  guarded([&] {
    ThreadState& state = thread_state();
    if (state.access_scopes.empty()) throw Error("LMS: scope_end without scope_begin");
    AccessScope scope = std::move(state.access_scopes.back());
    state.access_scopes.pop_back();
    if (scope.holds) {
      StorageUses storages;
      for (const at::Tensor& tensor : handed) {
        collect_storages(tensor, /*writes=*/false, /*inside=*/true, storages);
      }
      scope.pins.keep_but(storages);
    }
    scope.pins.release_after_operator();
  });
}

/// The memory of a storage is about to be given back, though the storage lives on.
void before_free(const at::Storage& freed) {
  guarded([&] {
    c10::StorageImpl& storage = *freed.unsafeGetStorageImpl();
    run_deferred(storage, /*writes=*/true);
    DeviceManager* manager = active_manager(storage.device());
    if (manager == nullptr) return;
    if (manager->lineages().any()) manager->lineages().before_free(storage);
    manager->memory_goes(storage);
  });
}

/// From now on somebody may read the bytes at their present address, but not write them.
void make_readable(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu()) {
    access(tensor);  // elsewhere addresses change
    return;
  }
  guarded([&] {
    if (!any_active()) return;
    run_deferred(tensor, /*writes=*/false);
    StorageUses storages;
    collect_storages(tensor, /*writes=*/false, /*inside=*/true, storages);
    Pins pins;  // what has been dropped comes back
    for (const StorageUse& use : storages) {
      DeviceManager* manager = active_manager(use.storage->device());
      if (manager != nullptr && manager->lineages().any()) {
        manager->lineages().never_drop(*use.storage, pins);
      }
    }
    pins.release_after_operator();
  });
}

/// Code of PyTorch's that asks no operator is about to read tensors of the CPU, of which nobody
/// knows which: nothing may wait, nor have been dropped.
void make_all_readable() {
  guarded([&] {
    DeviceManager* manager = active_manager(c10::kCPU);
    if (manager == nullptr) return;
    manager->deferred().run_all();
    EngineLock lock = manager->engine().lock();
    if (const Bytes dropped = manager->engine().rematerialise_all(lock); dropped > 0) {
      throw OutOfMemory("LMS: out of memory on cpu: what is written has to be there, and " +
                        format_bytes(dropped) +
                        " that have been dropped find no room to be computed again, on the device "
                        "or below. Nothing was lost: a larger limit, or host_limit, makes room.");
    }
  });
}

/// Calls `use` with the block of a storage, or with null.
template <typename Body>
auto with_block_of(c10::StorageImpl* storage, Body&& use) {
  DeviceManager* manager = storage == nullptr ? nullptr : active_manager(storage->device());
  if (manager == nullptr) {
    return use(static_cast<DeviceManager*>(nullptr), static_cast<EngineLock*>(nullptr),
               static_cast<Block*>(nullptr));
  }
  EngineLock lock = manager->engine().lock();
  return use(manager, &lock, manager->find(lock, *storage));
}

/// Calls `use` with the block behind a tensor, or with null.
template <typename Body>
auto with_block(const at::Tensor& tensor, Body&& use) {
  return guarded([&] {
    StorageUses storages;
    collect_storages(tensor, /*writes=*/false, /*inside=*/true, storages);
    return with_block_of(storages.empty() ? nullptr : storages.front().storage, use);
  });
}

/// Whether what makes it waits; or, on a GPU, it has been dropped.
bool is_unmade_storage(const at::Storage& storage) {
  return any_deferred() && has_no_memory(*storage.unsafeGetStorageImpl());
}

/// Whether PyTorch would find no memory: that of what is dropped, on a GPU, or has not been made.
bool is_nowhere(const at::Storage& storage) {
  if (is_unmade_storage(storage)) return true;
  return guarded([&] {
    return with_block_of(
        storage.unsafeGetStorageImpl(), [](DeviceManager*, EngineLock*, Block* block) {
          return block != nullptr && !block->kept && block->state == BlockState::kDropped;
        });
  });
}

/// Whether its address may change while it lives: that of a GPU's block that is not kept.
bool may_move(const at::Storage& storage) {
  if (storage.device().is_cpu()) return false;
  if (is_unmade_storage(storage)) return true;
  return guarded([&] {
    return with_block_of(
        storage.unsafeGetStorageImpl(),
        [](DeviceManager*, EngineLock*, Block* block) { return block != nullptr && !block->kept; });
  });
}

std::string state(const at::Tensor& tensor) {
  return with_block(tensor, [](DeviceManager*, EngineLock*, Block* block) -> std::string {
    if (block == nullptr) return "unmanaged";
    if (block->kept) return "kept";
    if (block->state == BlockState::kDropped) return "dropped";
    const bool absent = block->state == BlockState::kAbsent ||
                        block->state == BlockState::kArriving || block->state == BlockState::kLent;
    return absent ? "absent" : "resident";
  });
}

bool evict(const at::Tensor& tensor) {
  return with_block(tensor, [](DeviceManager* manager, EngineLock* lock, Block* block) {
    return block != nullptr && manager->engine().evict(*lock, *block);
  });
}

bool fetch(const at::Tensor& tensor) {
  return with_block(tensor, [](DeviceManager* manager, EngineLock* lock, Block* block) {
    return block != nullptr && manager->engine().fetch(*lock, *block);
  });
}

bool clean(const at::Tensor& tensor) {
  return with_block(tensor, [](DeviceManager* manager, EngineLock* lock, Block* block) {
    return block != nullptr && manager->engine().clean(*lock, *block);
  });
}

void make_plain(const at::Tensor& tensor) {
  guarded([&] {
    if (!tensor.has_storage()) return;
    c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
    keep(tensor);
    if (DeviceManager* manager = active_manager(storage.device())) manager->make_plain(storage);
    keep(tensor);  // where it lies now is new, and is to stay: no operator may come in between
  });
}

void capture_begin(const std::string& device) {
  guarded([&] {
    for (DeviceManager* manager : managers_of(device, false)) {
      manager->deferred().run_all();
      manager->capture_begin();
    }
  });
}

void capture_end(const std::string& device) {
  guarded([&] {
    for (DeviceManager* manager : managers_of(device, false)) manager->capture_end();
  });
}

/// How many hold the tensor, or its storage; callers alike count alike.
std::int64_t holders(const at::Tensor& tensor) {
  const std::size_t of_storage = tensor.has_storage() ? tensor.storage().use_count() : 0;
  return static_cast<std::int64_t>(tensor.use_count() + of_storage);
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

/// Empty where nothing is known of the error.
c10::Dict<std::string, std::string> need(const std::string& error) {
  c10::Dict<std::string, std::string> facts;
  if (const auto known = need_of(error)) {
    facts.insert("operator", known->op);
    facts.insert("bytes", std::to_string(known->bytes));
    facts.insert("least_limit", std::to_string(known->least_limit));
    facts.insert("full", known->below ? "below" : "device");
  }
  return facts;
}

void run_list_pass(const c10::OperatorHandle& /*op*/, c10::Stack* stack) {
  ListPass::compute(*stack);
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
  m.def("enable(Dict(str, str) settings) -> ()", &lms::torch::enable_with);
  m.def("options() -> str[]", &lms::torch::options);
  m.def("operators(str type) -> str[]", &lms::torch::operators);
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
  m.def("plan_state(str device) -> str", &lms::torch::plan_state);
  m.def("plan_detour(str device) -> str", &lms::torch::plan_detour);
  m.def("wait_for_plan(str device) -> ()", &lms::torch::wait_for_plan);
  m.def("save_trace(str path, str device) -> ()", &lms::torch::save_trace);
  m.def("save_timeline(str path, str device) -> ()", &lms::torch::save_timeline);
  m.def("emulate_link(float rate, str device) -> ()", &lms::torch::emulate_link);
  m.def("access(Tensor t) -> ()", &lms::torch::access);
  m.def("make_plain(Tensor t) -> ()", &lms::torch::make_plain);
  m.def("keep(Tensor t) -> ()", &lms::torch::keep);
  m.def("holders(Tensor t) -> int", &lms::torch::holders);
  m.def("make_readable(Tensor t) -> ()", &lms::torch::make_readable);
  m.def("make_all_readable() -> ()", &lms::torch::make_all_readable);
  m.def("before_free(Storage s) -> ()", &lms::torch::before_free);
  m.def("unseen_call(bool begins) -> ()", &lms::torch::unseen_call);
  m.def("scope_begin(bool holds) -> ()", &lms::torch::scope_begin);
  m.def("scope_end(Tensor[] handed) -> ()", &lms::torch::scope_end);
  m.def("state(Tensor t) -> str", &lms::torch::state);
  m.def("is_nowhere(Storage s) -> bool", &lms::torch::is_nowhere);
  m.def("is_unmade(Storage s) -> bool", &lms::torch::is_unmade_storage);
  m.def("may_move(Storage s) -> bool", &lms::torch::may_move);
  m.def("evict(Tensor t) -> bool", &lms::torch::evict);
  m.def("fetch(Tensor t) -> bool", &lms::torch::fetch);
  m.def("clean(Tensor t) -> bool", &lms::torch::clean);
  m.def("capture_begin(str device) -> ()", &lms::torch::capture_begin);
  m.def("capture_end(str device) -> ()", &lms::torch::capture_end);
  m.def("need_of(str error) -> Dict(str, str)", &lms::torch::need);
  m.def("info() -> Dict(str, str)", &lms::torch::info);
  m.def("measure_link(str device, int bytes) -> float[]", &lms::torch::measure_link);
  m.def("list_pass(Tensor(a!)[] written, Tensor[] read) -> ()", {at::Tag::pointwise});
}

TORCH_LIBRARY_IMPL(lms, CPU, m) {
  m.impl("list_pass", torch::CppFunction::makeFromBoxedFunction<&lms::torch::run_list_pass>());
}

TORCH_LIBRARY_IMPL(lms, CUDA, m) {
  m.impl("list_pass", torch::CppFunction::makeFromBoxedFunction<&lms::torch::run_list_pass>());
}
