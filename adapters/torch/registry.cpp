#include "adapters/torch/registry.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>

#include "adapters/torch/backends.h"
#include "adapters/torch/deferred/deferred.h"
#include "adapters/torch/hook/op_hook.h"
#include "adapters/torch/operators/op_info.h"
#include "adapters/torch/python_lock.h"
#include "adapters/torch/replay/lineages.h"
#include "pilot/plan_cache.h"

namespace lms::torch {
namespace {

constexpr int kMaxGpus = 64;
constexpr int kSlots = 1 + kMaxGpus;

/// Position of a device in the tables; -1 for devices that LMS does not know.
int slot_of(c10::Device device) noexcept {
  if (device.type() == c10::DeviceType::CPU) return 0;
  if (device.type() == c10::DeviceType::CUDA && device.index() + 1 < kSlots) {
    return device.index() + 1;
  }
  return -1;
}

std::array<std::atomic<DeviceManager*>, kSlots> active_table{};
std::atomic<int> active_count{0};
std::atomic<bool> has_evicted{false};
std::atomic<bool> may_speak{false};

/// Managers and hooks. Never destroyed: tensors outlive static destructors.
struct Registry {
  std::mutex mutex;
  std::array<std::unique_ptr<DeviceManager>, kSlots> managers;
  std::unique_ptr<OpHook> cpu_hook;
  std::unique_ptr<OpHook> cuda_hook;
};

Registry& registry() {
  static auto* registry = new Registry;
  return *registry;
}

c10::Device parse(const std::string& text) {
  try {
    c10::Device device(text);
    // PyTorch's index has eight bits, and takes as many of a larger one.
    const std::size_t colon = text.find(':');
    if (colon != std::string::npos && text.substr(colon + 1) != std::to_string(device.index())) {
      throw BadSetting("LMS: there is no device " + text);
    }
    if (device.type() == c10::DeviceType::CPU) return c10::Device(c10::DeviceType::CPU);
    if (device.type() == c10::DeviceType::CUDA) {
      const int index = device.has_index() ? device.index() : current_cuda_device();
      return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)};
    }
  } catch (const c10::Error&) {
    // Said below, with what would work.
  }
  throw BadSetting("LMS: device \"" + text +
                   R"(" cannot be managed; valid are "cpu", "cuda" and "cuda:<index>")");
}

DeviceManager& manager_in(Registry& all, c10::Device device) {
  auto& manager = all.managers.at(slot_of(device));
  if (!manager) {
    manager = device.type() == c10::DeviceType::CPU ? make_cpu_manager()
                                                    : make_cuda_manager(device.index());
  }
  return *manager;
}

bool type_in_use(c10::DeviceType type) {
  const int first = type == c10::DeviceType::CPU ? 0 : 1;
  const int last = type == c10::DeviceType::CPU ? 1 : kSlots;
  for (int slot = first; slot < last; ++slot) {
    if (active_table.at(slot).load() != nullptr) return true;
  }
  return false;
}

void stop(Registry& all, DeviceManager& manager) {
  if (!manager.on()) return;
  manager.deferred().set_mode(Deferred::Mode::kNone);
  manager.stop();
  active_table.at(slot_of(manager.device())).store(nullptr);
  --active_count;
  if (!type_in_use(c10::DeviceType::CPU)) all.cpu_hook.reset();
  if (!type_in_use(c10::DeviceType::CUDA)) all.cuda_hook.reset();
}

/// What does not depend on the device's state.
Options settled(Options options, c10::Device device) {
  if (options.min_block < 0) options.min_block = Options().min_block;
  if (!options.recompute) options.recompute = !device.is_cpu();
  if (options.deferred_updates == "auto") {
    options.deferred_updates = device.is_cpu() ? "false" : "true";
  }
  if (options.plan_cache == "auto") options.plan_cache = PlanCache::default_folder();
  (void)slice_mode(options.slices);  // throws before anything has changed
  if (options.plan_cache == "off") options.plan_cache.clear();
  return options;
}

}  // namespace

DeviceManager* active_manager(c10::Device device) noexcept {
  const int slot = slot_of(device);
  return slot < 0 ? nullptr : active_table[static_cast<std::size_t>(slot)].load();
}

bool any_active() noexcept { return active_count.load(std::memory_order_relaxed) > 0; }

bool pressed() noexcept { return has_evicted.load(std::memory_order_relaxed); }

void mark_pressed() noexcept { has_evicted.store(true, std::memory_order_relaxed); }

void speak(bool may) { may_speak.store(may, std::memory_order_relaxed); }

void say(c10::Device device, const std::string& line) {
  if (!may_speak.load(std::memory_order_relaxed)) return;
  std::fprintf(stderr, "LMS (%s): %s\n", device.str().c_str(), line.c_str());
}

void lock_registry() { registry().mutex.lock(); }
void unlock_registry() { registry().mutex.unlock(); }

void enable_device(const Options& options) {
  const c10::Device device = parse(options.device);
  const Options settings = settled(options, device);
  const Deferred::Mode deferred = Deferred::mode_of(settings.deferred_updates);
  Registry& all = registry();
  std::lock_guard guard(all.mutex);
  DeviceManager& manager = manager_in(all, device);
  const bool was_on = manager.on();
  {
    EngineLock lock = manager.engine().lock();
    manager.engine().wait_without(lock, python_lock());
  }
  manager.start(settings);
  if (was_on) {
    manager.deferred().set_mode(deferred);
    return;
  }
  auto& hook = device.type() == c10::DeviceType::CPU ? all.cpu_hook : all.cuda_hook;
  active_table.at(slot_of(device)).store(&manager);
  ++active_count;
  try {
    if (!hook) hook = std::make_unique<OpHook>(device.type());
  } catch (...) {
    stop(all, manager);
    throw;
  }
  manager.deferred().set_mode(deferred);
}

void disable_device(const std::string& text) {
  Registry& all = registry();
  if (text.empty()) {
    for (const auto& name : enabled_devices()) disable_device(name);
    return;
  }
  const c10::Device device = parse(text);
  std::lock_guard guard(all.mutex);
  if (const auto& manager = all.managers.at(slot_of(device))) stop(all, *manager);
}

std::vector<std::string> enabled_devices() {
  std::vector<std::string> names;
  for (const auto& entry : active_table) {
    if (const DeviceManager* manager = entry.load()) names.push_back(manager->device().str());
  }
  return names;
}

std::vector<DeviceManager*> managers_of(const std::string& text, bool must_be_on) {
  std::vector<DeviceManager*> found;
  if (text.empty()) {
    for (const auto& entry : active_table) {
      if (DeviceManager* manager = entry.load()) found.push_back(manager);
    }
    return found;
  }
  const c10::Device device = parse(text);
  DeviceManager* manager = active_manager(device);
  if (manager == nullptr && must_be_on) {
    throw BadSetting("LMS: is not enabled on " + device.str() +
                     "; call torch_lms.enable(device=\"" + device.str() + "\") first");
  }
  if (manager == nullptr) {
    Registry& all = registry();
    std::lock_guard guard(all.mutex);
    manager = all.managers.at(slot_of(device)).get();
  }
  if (manager != nullptr) found.push_back(manager);
  return found;
}

DeviceManager::DeviceManager(Engine& engine, PilotDevice& device)
    : pilot_(engine, device),
      lineages_(std::make_unique<Lineages>(*this)),
      deferred_(std::make_unique<Deferred>(*this)) {}

DeviceManager::~DeviceManager() = default;

Pilot::Options DeviceManager::pilot_options(const Options& settings, Bytes limit) {
  return {.enabled = settings.plan && !settings.stress,
          .min_block = settings.min_block,
          .limit = limit,
          .in_foreground = settings.plan_at_once,
          .compares = !settings.plan_at_once,
          .may_wait = Deferred::put_off_by_plan(Deferred::mode_of(settings.deferred_updates)),
          .search = {.seconds = settings.plan_seconds, .recompute = *settings.recompute},
          .plan_cache = settings.plan_cache};
}

void DeviceManager::make_room_at_start(EngineLock& lock) {
  try {
    engine().make_room(lock, 0);
  } catch (const TierFull&) {
    if (!lock.owns()) lock.lock();
  }
}

void DeviceManager::hand_over(c10::StorageImpl& from, c10::StorageImpl& to) {
  EngineLock lock = engine().lock();
  rename(lock, from, to);
  to.set_data_ptr_noswap(from.set_data_ptr(c10::DataPtr(nullptr, from.device())));
  from.set_nbytes(0);
  if (Block* const block = find(lock, to)) {
    lineages().hand_over(static_cast<StorageBlock&>(*block), to);
  }
}

Bytes DeviceManager::room_of(Bytes bytes) const {
  constexpr Bytes kUnit = 512;  // of PyTorch's allocator, and of the arena
  return round_up(bytes, kUnit);
}

Bytes DeviceManager::ample_limit(Bytes requested) {
  EngineLock lock = engine().lock();
  return std::max(limit() + 1, engine().stats(lock).device.current + requested);
}

void DeviceManager::note_below(Bytes used) {
  using TierBelow = Pilot::TierBelow;
  const Bytes room = host_limit() - used;
  const bool nearly_full = room < limit() / 2;
  if (nearly_full) has_been_full_ = true;
  const bool fills_up = has_been_full_ || room < std::max(2 * limit(), host_limit() / 2);
  pilot_.set_below(nearly_full ? TierBelow::kNearlyFull
                   : fills_up  ? TierBelow::kFillingUp
                               : TierBelow::kRoomy);
}

bool DeviceManager::may_change_algorithm(const OpInfo& info,
                                         std::span<const c10::IValue> arguments) {
  if (!info.has_algorithms || !other_algorithms_) return false;
  {
    EngineLock lock = engine().lock();
    if (engine().stats(lock).dropped.current == 0) return true;
  }
  return info.name.find("transpose") == std::string::npos &&
         !lineages().may_need_algorithm_of(arguments);
}

void DeviceManager::algorithm_was_changed(const OpInfo& info) {
  ++op_changes;
  changed_algorithms_.add(info);
  lineages().stop();  // the thread that computes again may remember the change, or not
}

std::map<std::string, std::int64_t> device_stats(DeviceManager& manager) {
  const Deferred::Stats deferred = manager.deferred().stats();  // lets go of what nobody waits for
  EngineStats engine;
  {
    EngineLock lock = manager.engine().lock();
    manager.engine().collect_dead(lock);
    engine = manager.engine().stats(lock);
  }
  std::map<std::string, std::int64_t> stats;
  const auto counter = [&](const std::string& name, const Counter& value) {
    stats[name + ".current"] = value.current;
    stats[name + ".peak"] = value.peak;
    stats[name + ".allocated"] = value.allocated;
    stats[name + ".freed"] = value.freed;
  };
  counter("device.bytes", engine.device);
  counter("absent.bytes", engine.below);
  counter("dropped.bytes", engine.dropped);
  counter("blocks", engine.blocks);
  counter("pinned.bytes", engine.pinned);
  stats["kept.bytes.current"] = engine.kept.current;
  stats["evictions"] = engine.evictions;
  stats["evictions.clean"] = engine.clean_evictions;
  stats["drops"] = engine.drops;
  stats["remakes"] = engine.remakes;
  stats["bytes_remade"] = engine.bytes_remade;
  stats["relocations"] = engine.relocations;
  stats["page_ins"] = engine.page_ins;
  stats["bytes_out"] = engine.bytes_out;
  stats["bytes_in"] = engine.bytes_in;
  stats["operators"] = engine.operators;
  stats["op_retries"] = manager.op_retries.load();
  stats["op_changes"] = manager.op_changes.load();
  stats["list_splits"] = manager.list_splits.load();
  stats["deferred.parts"] = deferred.parts;
  stats["deferred.in_lists"] = deferred.in_lists;
  stats["deferred.in_passes"] = deferred.in_passes;
  stats["deferred.in_rows"] = deferred.rows;
  stats["deferred.waiting"] = deferred.waiting;
  stats["deferred.bytes"] = deferred.bytes;
  stats["deferred.waited_us"] = deferred.waited_us;
  stats["slices.operators"] = manager.sliced_operators.load();
  stats["slices.bytes"] = manager.sliced_bytes.load();
  stats["slices.by_rows"] = manager.row_operators.load();
  stats["slices.in_place"] = manager.in_place_operators.load();
  stats["slices.in_place_bytes"] = manager.in_place_bytes.load();
  stats["replays.fused"] = manager.chains_replayed.load();
  const Pilot::Stats plan = manager.pilot().stats();
  stats["plan.shapes"] = plan.shapes;
  stats["plan.planned"] = plan.planned;
  stats["plan.kept"] = plan.kept;
  stats["plan.refined"] = plan.refined;
  stats["plan.taken_back"] = plan.taken_back;
  stats["plan.on_trial"] = plan.on_trial ? 1 : 0;
  stats["plan.rests"] = plan.rests ? 1 : 0;
  stats["plan.steps"] = plan.steps;
  stats["plan.divergences"] = plan.divergences;
  stats["plan.detours"] = plan.detours;
  stats["plan.refused"] = plan.refused;
  stats["plan.failed"] = plan.failed;
  stats["plan.predicted_us"] = static_cast<std::int64_t>(plan.predicted_ms * 1e3);
  stats["plan.host_us"] = static_cast<std::int64_t>(plan.host_ms * 1e3);
  stats["plan.late_us"] = static_cast<std::int64_t>(plan.late_ms * 1e3);
  stats["plan.peak"] = plan.planned_peak;
  stats["plan.arena"] = plan.placed;
  stats["plan.arena_bound"] = plan.lower_bound;
  stats["limit"] = manager.limit();
  stats["host_limit"] = manager.host_limit();
  manager.add_stats(stats);
  return stats;
}

}  // namespace lms::torch
