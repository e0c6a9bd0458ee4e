#include "lab/studies/worker/machine_facts.h"

#include <ATen/core/CachingHostAllocator.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <sstream>

#include "base/error.h"
#include "base/text_file.h"

#if LMS_HAS_CUDA
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#endif

namespace lms::studies {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kLinkBytes = 256 * kMiB;
constexpr int kCopies = 6;
constexpr std::int64_t kBallastUnit = 2 * kMiB;
/// Of the host's memory, below which the watch calls.
constexpr std::int64_t kLeastFree = 3 * kGiB;
constexpr auto kWatchEvery = std::chrono::milliseconds(50);

std::int64_t meminfo(const std::string& field) {
  std::istringstream lines(read_text_file("/proc/meminfo").value_or(""));
  std::string name;
  while (lines >> name) {
    std::int64_t kib = 0;
    if (name == field + ":" && lines >> kib) return kib * 1024;
    std::getline(lines, name);
  }
  return 0;
}

/// A number of this process's control group; 0 where there is none, or no limit.
std::int64_t group_number(const char* name) {
  for (const char* folder : {"/sys/fs/cgroup/", "/sys/fs/cgroup/memory/"}) {
    const auto text = read_text_file(folder + std::string(name));
    if (!text || text->empty() || text->front() < '0' || text->front() > '9') continue;
    return std::strtoll(text->c_str(), nullptr, 10);
  }
  return 0;
}

std::int64_t group_limit() {
  const std::int64_t limit =
      std::max(group_number("memory.max"), group_number("memory.limit_in_bytes"));
  return limit > (std::int64_t{1} << 50) ? 0 : limit;
}

/// Memory of the group that cannot be given up: what it has cached of files can.
std::int64_t group_used() {
  for (const char* folder : {"/sys/fs/cgroup/", "/sys/fs/cgroup/memory/"}) {
    const auto text = read_text_file(folder + std::string("memory.stat"));
    if (!text) continue;
    std::istringstream lines(*text);
    std::int64_t used = 0;
    std::string name;
    std::int64_t bytes = 0;
    while (lines >> name >> bytes) {
      if (name == "anon" || name == "shmem" || name == "kernel" || name == "rss") used += bytes;
    }
    return used;
  }
  return 0;
}

std::string processor() {
  std::istringstream lines(read_text_file("/proc/cpuinfo").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

double best_rate(torch::Tensor to, const torch::Tensor& from, const torch::Device& device) {
  double best = 0;
  for (int i = 0; i < kCopies; ++i) {
    torch::cuda::synchronize(device.index());
    const auto begin = std::chrono::steady_clock::now();
    to.copy_(from, /*non_blocking=*/true);
    torch::cuda::synchronize(device.index());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::max(best, static_cast<double>(kLinkBytes) / took.count());
  }
  return best;
}

}  // namespace

std::int64_t host_memory() {
  const std::int64_t all = meminfo("MemTotal");
  const std::int64_t group = group_limit();
  return group > 0 ? std::min(all, group) : all;
}

std::int64_t usual_host_budget() {
  return std::min<std::int64_t>(100 * kGiB, host_memory() / 100 * 85);
}

std::map<std::string, std::string> machine_facts(const torch::Device& device) {
  std::map<std::string, std::string> facts = {{"gpu", "none"},
                                              {"host", processor()},
                                              {"host_memory", std::to_string(host_memory())},
                                              {"pytorch", TORCH_VERSION}};
#if LMS_HAS_CUDA
  cudaDeviceProp properties{};
  if (device.is_cuda() && cudaGetDeviceProperties(&properties, device.index()) == cudaSuccess) {
    facts["gpu"] = properties.name;
    facts["gpu_memory"] = std::to_string(properties.totalGlobalMem);
    int version = 0;
    if (cudaRuntimeGetVersion(&version) == cudaSuccess) {
      facts["cuda"] = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
    }
  }
#else
  (void)device;
#endif
  return facts;
}

void cap_device(const torch::Device& device, std::int64_t bytes) {
#if LMS_HAS_CUDA
  if (!device.is_cuda() || bytes <= 0) return;
  std::size_t free = 0;
  std::size_t total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) throw Error("the device's memory is not known");
  const double fraction = (static_cast<double>(bytes) + 0.5) / static_cast<double>(total);
  c10::cuda::CUDACachingAllocator::setMemoryFraction(std::min(1.0, fraction), device.index());
#else
  (void)device, (void)bytes;
#endif
}

std::int64_t take_all_but(const torch::Device& device, std::int64_t bytes) {
#if LMS_HAS_CUDA
  if (!device.is_cuda()) return 0;
  std::size_t free = 0;
  std::size_t total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) throw Error("the device's memory is not known");
  const std::int64_t taken =
      (static_cast<std::int64_t>(free) - bytes) / kBallastUnit * kBallastUnit;
  if (taken <= 0) return 0;
  void* memory = nullptr;
  if (const auto status = cudaMalloc(&memory, static_cast<std::size_t>(taken));
      status != cudaSuccess) {
    (void)cudaGetLastError();
    throw Error("cannot take " + std::to_string(taken) +
                " bytes of the device: " + cudaGetErrorString(status));
  }
  return taken;
#else
  (void)device, (void)bytes;
  return 0;
#endif
}

void release_caches(const torch::Device& device) {
#if LMS_HAS_CUDA
  if (!device.is_cuda()) return;
  torch::cuda::synchronize(device.index());
  c10::cuda::CUDACachingAllocator::emptyCache();
  at::getHostAllocator(at::kCUDA)->empty_cache();
  at::getHostAllocator(at::kCUDA)->reset_peak_stats();
  c10::cuda::CUDACachingAllocator::resetPeakStats(device.index());
  c10::cuda::CUDACachingAllocator::resetAccumulatedStats(device.index());
#else
  (void)device;
#endif
}

std::optional<LinkRates> best_copies(const torch::Device& device) {
  if (!device.is_cuda()) return std::nullopt;
  const auto byte = torch::TensorOptions(torch::kUInt8);
  const torch::Tensor host = torch::zeros({kLinkBytes}, byte.pinned_memory(true));
  const torch::Tensor there = torch::zeros({kLinkBytes}, byte.device(device));
  LinkRates rates;
  rates.to_host = best_rate(host, there, device);
  rates.to_device = best_rate(there, host, device);
  return rates;
}

void add_memory(Record& record, const torch::Device& device) {
#if LMS_HAS_CUDA
  if (!device.is_cuda()) return;
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
  record.peak_allocated = stats.allocated_bytes[kAll].peak;
  record.peak_reserved = stats.reserved_bytes[kAll].peak;
  record.peak_host = at::getHostAllocator(at::kCUDA)->get_stats().allocated_bytes.peak;
#else
  (void)record, (void)device;
#endif
}

std::map<std::string, std::int64_t> allocation_sources(const torch::Device& device) {
#if LMS_HAS_CUDA
  if (!device.is_cuda()) return {};
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
  const std::int64_t driver = stats.num_device_alloc;
  return {{"driver", driver},
          {"freelist", stats.allocation[kAll].allocated - driver},
          {"retry", stats.num_alloc_retries}};
#else
  (void)device;
  return {};
#endif
}

HostWatch::HostWatch(std::function<void(const std::string& why)> full)
    : thread_([this, full = std::move(full)] {
        const std::int64_t limit = group_limit();
        while (!ended_) {
          const bool group_full = limit > 0 && limit - group_used() < kLeastFree;
          if (group_full || meminfo("MemAvailable") < kLeastFree) {
            full("the host's memory is nearly full");
            return;
          }
          std::this_thread::sleep_for(kWatchEvery);
        }
      }) {}

HostWatch::~HostWatch() {
  ended_ = true;
  thread_.join();
}

}  // namespace lms::studies
