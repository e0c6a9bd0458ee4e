// The public C++ API, on the managers. The operators of binding.cpp are the same functions.

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <lms/torch.h>

#include <exception>
#include <limits>
#include <vector>

#include "adapters/torch/deferred/deferred.h"
#include "adapters/torch/errors.h"
#include "adapters/torch/registry.h"
#include "adapters/torch/replay/lineages.h"
#include "adapters/torch/thread_state.h"
#include "figures/timeline.h"
#include "trace/gz_file.h"
#include "trace/trace_io.h"

namespace lms::torch {

void enable(const Options& options) {
  guarded([&] { enable_device(options); });
}

void disable(const std::string& device) {
  guarded([&] { disable_device(device); });
}

bool is_enabled(const std::string& device) {
  return guarded([&] {
    const auto managers = managers_of(device, false);
    return !managers.empty() && managers.front()->manages();
  });
}

std::map<std::string, std::int64_t> memory_stats(const std::string& device) {
  return guarded([&]() -> std::map<std::string, std::int64_t> {
    const auto managers = managers_of(device, false);
    if (managers.empty()) return {};
    return device_stats(*managers.front());
  });
}

void reset_peak_memory_stats(const std::string& device) {
  guarded([&] {
    for (DeviceManager* manager : managers_of(device, false)) manager->reset_peak();
  });
}

void step(const std::string& device) {
  guarded([&] {
    for (DeviceManager* manager : managers_of(device, false)) manager->pilot().mark_step();
  });
}

std::string plan_state(const std::string& device) {
  const auto managers = managers_of(device, false);
  return managers.empty() ? "nothing is managed" : managers.front()->pilot().stats().why;
}

std::string plan_detour(const std::string& device) {
  const auto managers = managers_of(device, false);
  return managers.empty() ? "" : managers.front()->pilot().stats().detour;
}

void wait_for_plan(const std::string& device) {
  guarded([&] {
    for (DeviceManager* manager : managers_of(device, false)) manager->pilot().wait_for_plan();
  });
}

void save_trace(const std::string& path, const std::string& device) {
  guarded([&] {
    for (DeviceManager* manager : managers_of(device, false)) {
      const auto script = manager->pilot().current();
      if (!script) continue;
      lms::save_trace(script->shape.trace, path);
      return;
    }
    throw Error("LMS: no step is known yet on " + (device.empty() ? "any device" : device) +
                "; steps are learnt once blocks have had to leave the device");
  });
}

namespace {

void draw(const std::string& path, const std::string& device, const Script& script,
          const MeasuredTimeline* measured) {
  const Trace& trace = script.shape.trace;
  const PlanTiming predicted = script.timeline();
  const std::string title = device + ": a step in " + format_bytes(script.budget);
  lms::write_gz_file(
      path, path.ends_with(".svg")
                ? timeline_svg(trace, script.plan, predicted, script.budget, title, measured)
                : chrome_trace(trace, script.plan, predicted, script.budget, measured));
}

}  // namespace

void save_timeline(const std::string& path, const std::string& device) {
  guarded([&] {
    for (DeviceManager* manager : managers_of(device, false)) {
      const std::string name = manager->device().str();
      if (const auto measured = manager->pilot().measured()) {
        draw(path, name, *measured->script, &measured->timeline);
        return;
      }
      const auto script = manager->pilot().current();
      if (!script || !script->planned) continue;
      draw(path, name, *script, nullptr);
      return;
    }
    throw Error("LMS: no step has been planned yet on " + (device.empty() ? "any device" : device) +
                ", so there is nothing to draw; it takes a loop whose blocks have to leave the "
                "device (a limit below its peak), plans that are not off, and some ten steps: then "
                "wait_for_plan(), and some steps more to have one measured");
  });
}

void emulate_link(double rate, const std::string& device) {
  guarded([&] {
    for (DeviceManager* manager : managers_of(device, true)) manager->emulate_link(rate);
  });
}

std::int64_t reclaim_inactive(const std::string& device) {
  return guarded([&] {
    Bytes left = 0;
    for (DeviceManager* manager : managers_of(device, true)) {
      EngineLock lock = manager->engine().lock();
      left += manager->engine().reclaim(lock, std::numeric_limits<Bytes>::max());
    }
    return left;
  });
}

void access(const at::Tensor& tensor) {
  ThreadState& state = thread_state();
  if (state.access_scopes.empty()) {
    keep(tensor);
    return;
  }
  guarded([&] {
    if (!any_active()) return;
    run_deferred(tensor, /*writes=*/true);
    StorageUses storages;
    collect_storages(tensor, /*writes=*/true, /*inside=*/true, storages);
    state.access_scopes.back().pins.add(storages);
  });
}

void keep(const at::Tensor& tensor) {
  guarded([&] {
    if (!any_active()) return;
    run_deferred(tensor, /*writes=*/true);
    StorageUses storages;
    collect_storages(tensor, /*writes=*/true, /*inside=*/true, storages);
    Pins pins;
    pins.add(storages);
    pins.keep();
    for (const StorageUse& use : storages) {
      DeviceManager* manager = active_manager(use.storage->device());
      if (manager != nullptr) manager->lineages().expose(*use.storage);
    }
  });
}

Managed::Managed(const Options& options) : was_enabled_(is_enabled(options.device)) {
  enable(options);
  device_ = guarded([&] { return managers_of(options.device, true).front()->device().str(); });
}

Managed::~Managed() {
  if (was_enabled_) return;
  try {
    disable(device_);
  } catch (const std::exception& error) {
    try {
      TORCH_WARN(error.what());
    } catch (const std::exception&) {
      // A program may have made warnings errors; a destructor has no place for them.
    }
  }
}

}  // namespace lms::torch
