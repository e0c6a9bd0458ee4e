#pragma once

// The device of a run, how it computes, and what of its memory is in use.

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "lab/train/settings.h"

namespace lms::train {

struct Memory {
  std::int64_t current = 0;  ///< bytes on the device; on the CPU without LMS, of the process
  std::int64_t peak = 0;
};

/// Applies the settings that hold for the whole process (threads, determinism, TF32, seed), then
/// enables LMS: so models are to be made after it. One at a time; PyTorch's settings stay after it.
class Machine {
 public:
  /// Throws BadSetting for a device that there is not, or a limit that is none.
  explicit Machine(const Settings& settings);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  [[nodiscard]] const ::torch::Device& device() const { return device_; }
  [[nodiscard]] bool managed() const { return lms_ != nullptr; }
  /// As lms/torch.h names it.
  [[nodiscard]] const std::string& name() const { return name_; }
  /// The type that autocast uses, if it is to be on.
  [[nodiscard]] std::optional<::torch::ScalarType> autocast() const { return autocast_; }

  [[nodiscard]] Memory memory() const;
  /// LMS's statistics where it manages the device; on CUDA those of PyTorch's allocator else.
  [[nodiscard]] std::map<std::string, std::int64_t> statistics() const;
  /// Waits for the device.
  void synchronize() const;
  /// A training step ends here; LMS would find that out by itself where steps do not repeat
  /// anything.
  void end_step() const;
  /// The step that LMS has learnt, once it has been: a trace for lms plan.
  void save_trace(const std::string& path) const;

 private:
  struct Lms;

  ::torch::Device device_;
  std::string name_;
  std::optional<::torch::ScalarType> autocast_;
  std::unique_ptr<Lms> lms_;
};

/// "12GiB" or "25%" of the device's memory, as bytes; -1 for "".
std::int64_t read_amount(const std::string& key, const std::string& text,
                         const ::torch::Device& device);

/// Autocast for the length of a scope, with an empty cache at its end.
class Autocast {
 public:
  explicit Autocast(const Machine& machine);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  ::torch::DeviceType type_;
  bool on_;
  bool was_on_ = false;
};

/// The state of PyTorch's generators: of the CPU, and of the device.
std::map<std::string, ::torch::Tensor> generator_states(const ::torch::Device& device);
void restore_generators(const ::torch::Device& device,
                        const std::map<std::string, ::torch::Tensor>& states);

/// Random numbers of its own for a scope: seeded at its start, and as they were after it.
class GeneratorScope {
 public:
  GeneratorScope(const ::torch::Device& device, std::uint64_t seed);
  ~GeneratorScope();
  GeneratorScope(const GeneratorScope&) = delete;
  GeneratorScope& operator=(const GeneratorScope&) = delete;

 private:
  ::torch::Device device_;
  std::map<std::string, ::torch::Tensor> states_;
};

/// Time on the device between marks. A mark does not wait; reading does.
class Stopwatch {
 public:
  explicit Stopwatch(const ::torch::Device& device);
  void start();
  void stop();
  /// Milliseconds between the two, once the device has got there.
  [[nodiscard]] double milliseconds() const;

 private:
  struct Mark;
  ::torch::Device device_;
  std::shared_ptr<Mark> start_;
  std::shared_ptr<Mark> stop_;
};

}  // namespace lms::train
