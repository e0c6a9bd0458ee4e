#pragma once

#include <c10/core/Device.h>

#include <map>
#include <string>
#include <vector>

#include "adapters/torch/device_manager.h"

namespace lms::torch {

/// Turns management of a device on, or changes the settings of one that is on. Throws BadSetting
/// with nothing changed.
void enable_device(const Options& options);
/// Turns one device off, or with "" all. What was absent comes back first; throws OutOfMemory, and
/// that device stays on, if it does not fit.
void disable_device(const std::string& device);

/// The devices that are on.
std::vector<std::string> enabled_devices();
/// The managers meant by a device string: one, or all that are on for "". Throws BadSetting if the
/// device is not one, or (with `must_be_on`) is not on.
std::vector<DeviceManager*> managers_of(const std::string& device, bool must_be_on);

std::map<std::string, std::int64_t> device_stats(DeviceManager& manager);

/// An eviction has happened somewhere; see pressed().
void mark_pressed() noexcept;

/// Whether say() may: the log is on.
void speak(bool may);
/// Tells the user something on standard error, if the log is on.
void say(c10::Device device, const std::string& line);

/// Around fork(), so that a child can use the registry.
void lock_registry();
void unlock_registry();
/// Nobody else turns a device on or off, or changes its settings, as long as it lives.
class RegistryLock {
 public:
  RegistryLock() { lock_registry(); }
  ~RegistryLock() { unlock_registry(); }
  RegistryLock(const RegistryLock&) = delete;
  RegistryLock& operator=(const RegistryLock&) = delete;
};

}  // namespace lms::torch
