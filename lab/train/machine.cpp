#include "lab/train/machine.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <sstream>

#include "base/error.h"
#include "base/quantity.h"
#include "base/text_file.h"

// Last: from here on, `torch` within this namespace is lms::torch.
#include <lms/torch.h>

#if LMS_HAS_CUDA
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#endif

namespace lms::train {
namespace {

using Clock = std::chrono::steady_clock;

::torch::Device read_device(const std::string& text) {
  std::optional<::torch::Device> device;
  try {
    device.emplace(text);
  } catch (const c10::Error&) {
    throw BadSetting("device: '" + text + "' is not one; cuda, cuda:1 or cpu");
  }
  if (device->is_cuda()) {
    const auto count = ::torch::cuda::device_count();
    if (count == 0) throw BadSetting("device: this machine has no CUDA device; device=cpu works");
    if (device->index() >= static_cast<int>(count)) {
      throw BadSetting("device: there is no " + text +
                       ", the last is cuda:" + std::to_string(count - 1));
    }
    if (!device->has_index()) device.emplace(::torch::kCUDA, 0);
  } else if (!device->is_cpu()) {
    throw BadSetting("device: '" + text + "': only cuda and cpu are supported");
  }
  return *device;
}

/// A value of /proc/meminfo or /proc/self/status, in bytes.
std::int64_t proc_bytes(const std::string& file, const std::string& field) {
  std::istringstream lines(read_text_file(file).value_or(""));
  std::string name;
  while (lines >> name) {
    std::int64_t kib = 0;
    if (name == field + ":" && lines >> kib) return kib * 1024;
    std::getline(lines, name);
  }
  return 0;
}

std::int64_t device_bytes(const ::torch::Device& device) {
#if LMS_HAS_CUDA
  if (device.is_cuda()) {
    std::size_t free = 0;
    std::size_t total = 0;
    const c10::DeviceGuard guard(device);
    if (cudaMemGetInfo(&free, &total) == cudaSuccess) return static_cast<std::int64_t>(total);
    return 0;
  }
#endif
  (void)device;
  return proc_bytes("/proc/meminfo", "MemTotal");
}

void choose_kernels(const Settings& settings) {
  auto& context = at::globalContext();
  const bool deterministic = settings.deterministic != "false";
  if (deterministic) {
    context.setDeterministicAlgorithms(true, settings.deterministic == "warn");
    context.setDeterministicFillUninitializedMemory(false);
  } else {
    context.setDeterministicAlgorithms(false, false);
  }
  context.setDeterministicCuDNN(deterministic);
  context.setBenchmarkCuDNN(false);
  const bool tf32 = settings.precision == "tf32";
  context.setAllowTF32CuBLAS(tf32);
  context.setAllowTF32CuDNN(tf32);
}

lms::torch::Options lms_options(const Settings& settings, const ::torch::Device& device) {
  lms::torch::Options options;
  options.device = device.str();
  for (const lms::torch::OptionKey& option : lms::torch::option_keys()) {
    const auto given = settings.managed.find(option.name);
    if (given == settings.managed.end()) continue;
    const bool amount = option.kind == lms::torch::OptionKey::Kind::kAmount;
    const ::torch::Device memory = option.name == "host_limit" ? ::torch::kCPU : device;
    option.set(options, amount ? std::to_string(read_amount(option.name, given->second, memory))
                               : given->second);
  }
  return options;
}

at::Generator generator_of(const ::torch::Device& device) {
  return at::globalContext().defaultGenerator(device);
}

}  // namespace

std::int64_t read_amount(const std::string& key, const std::string& text,
                         const ::torch::Device& device) {
  if (text.empty()) return -1;
  try {
    const bool share = text.ends_with('%');
    return share ? parse_limit(text, device_bytes(device)) : parse_bytes(text);
  } catch (const BadSetting& error) {
    throw BadSetting(key + ": " + error.what());
  }
}

struct Machine::Lms {
  explicit Lms(const lms::torch::Options& options) : managed(options) {}
  lms::torch::Managed managed;
};

Machine::~Machine() = default;

Machine::Machine(const Settings& settings) : device_(read_device(settings.device)) {
  if (settings.threads > 0) at::set_num_threads(static_cast<int>(settings.threads));
  choose_kernels(settings);
  if (settings.precision == "bf16") autocast_ = ::torch::kBFloat16;
  if (settings.precision == "fp16") autocast_ = ::torch::kFloat16;
  name_ = device_.str();
  const bool lms =
      settings.lms == "true" || (settings.lms == "auto" && settings.managed.contains("limit"));
  const lms::torch::Options options = lms_options(settings, device_);
  if (lms) {
    try {
      lms_ = std::make_unique<Lms>(options);
    } catch (const c10::ValueError& error) {
      throw BadSetting(std::string("LMS: ") + error.what_without_backtrace());
    }
    name_ = lms_->managed.device();
  }
  ::torch::manual_seed(static_cast<std::uint64_t>(settings.seed));
}

Memory Machine::memory() const {
  if (lms_) {
    const auto all = lms::torch::memory_stats(name_);
    const auto value = [&](const char* key) {
      const auto found = all.find(key);
      return found == all.end() ? 0 : found->second;
    };
    return {value("device.bytes.current"), value("device.bytes.peak")};
  }
  const auto all = statistics();
  const auto found = all.find("allocated.bytes.current");
  if (found != all.end()) return {found->second, all.at("allocated.bytes.peak")};
  return {proc_bytes("/proc/self/status", "VmRSS"), proc_bytes("/proc/self/status", "VmHWM")};
}

std::map<std::string, std::int64_t> Machine::statistics() const {
  std::map<std::string, std::int64_t> all;
#if LMS_HAS_CUDA
  if (device_.is_cuda()) {
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device_.index());
    all["allocated.bytes.current"] = stats.allocated_bytes[kAll].current;
    all["allocated.bytes.peak"] = stats.allocated_bytes[kAll].peak;
    all["reserved.bytes.current"] = stats.reserved_bytes[kAll].current;
    all["reserved.bytes.peak"] = stats.reserved_bytes[kAll].peak;
    all["alloc_retries"] = stats.num_alloc_retries;
  }
#endif
  if (lms_) {
    for (const auto& [key, value] : lms::torch::memory_stats(name_)) all[key] = value;
  }
  return all;
}

void Machine::synchronize() const {
  if (device_.is_cuda()) ::torch::cuda::synchronize(device_.index());
}

void Machine::end_step() const {
  if (lms_) lms::torch::step(name_);
}

void Machine::save_trace(const std::string& path) const {
  if (!lms_) throw BadSetting("save_trace: only LMS records steps; give a limit");
  lms::torch::wait_for_plan(name_);
  lms::torch::save_trace(path, name_);
}

Autocast::Autocast(const Machine& machine)
    : type_(machine.device().type()), on_(machine.autocast().has_value()) {
  if (!on_) return;
  was_on_ = at::autocast::is_autocast_enabled(type_);
  at::autocast::set_autocast_enabled(type_, true);
  at::autocast::set_autocast_dtype(type_, *machine.autocast());
}

Autocast::~Autocast() {
  if (!on_) return;
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(type_, was_on_);
}

std::map<std::string, ::torch::Tensor> generator_states(const ::torch::Device& device) {
  std::map<std::string, ::torch::Tensor> states;
  const auto read = [&](const std::string& name, const ::torch::Device& of) {
    at::Generator generator = generator_of(of);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    states[name] = generator.get_state();
  };
  read("cpu", ::torch::kCPU);
  if (device.is_cuda()) read("cuda", device);
  return states;
}

void restore_generators(const ::torch::Device& device,
                        const std::map<std::string, ::torch::Tensor>& states) {
  for (const auto& [name, state] : states) {
    if (name == "cuda" && !device.is_cuda()) continue;
    at::Generator generator = generator_of(name == "cpu" ? ::torch::Device(::torch::kCPU) : device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
  }
}

GeneratorScope::GeneratorScope(const ::torch::Device& device, std::uint64_t seed)
    : device_(device), states_(generator_states(device)) {
  ::torch::manual_seed(seed);
}

GeneratorScope::~GeneratorScope() { restore_generators(device_, states_); }

struct Stopwatch::Mark {
  Clock::time_point time = Clock::now();
  std::optional<c10::Event> event;
};

Stopwatch::Stopwatch(const ::torch::Device& device) : device_(device) {}

void Stopwatch::start() {
  start_ = std::make_shared<Mark>();
  if (device_.is_cuda()) {
    start_->event.emplace(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    start_->event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
}

void Stopwatch::stop() {
  stop_ = std::make_shared<Mark>();
  if (device_.is_cuda()) {
    stop_->event.emplace(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    stop_->event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
}

double Stopwatch::milliseconds() const {
  if (!start_ || !stop_) return 0;
  if (stop_->event) {
    stop_->event->synchronize();
    return start_->event->elapsedTime(*stop_->event);
  }
  return std::chrono::duration<double, std::milli>(stop_->time - start_->time).count();
}

}  // namespace lms::train
