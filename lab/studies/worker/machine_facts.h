#pragma once

#include <torch/torch.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "lab/records/record.h"

namespace lms::studies {

using records::Record;

/// Memory of this machine, or of the group of processes that this one is in, if that has less.
std::int64_t host_memory();
/// 100 GiB, or 85 % of the machine's, whichever is less.
std::int64_t usual_host_budget();

/// gpu, gpu_memory, host, host_memory, pytorch, cuda: what is known.
std::map<std::string, std::string> machine_facts(const torch::Device& device);

/// How much PyTorch's caching allocator may reserve of the device. No effect on the CPU.
void cap_device(const torch::Device& device, std::int64_t bytes);

/// Takes all memory of the device but `bytes`, until the process ends: then what goes past the
/// allocator is limited, too. Returns how much it took. Throws lms::Error if the driver refuses.
std::int64_t take_all_but(const torch::Device& device, std::int64_t bytes);

/// Gives back what PyTorch's allocators cache, and starts their peaks anew.
void release_caches(const torch::Device& device);

struct LinkRates {
  double to_host = 0;  ///< bytes a second
  double to_device = 0;
};
/// The best of some copies of 256 MiB, pinned, each way alone. Nothing on the CPU.
std::optional<LinkRates> best_copies(const torch::Device& device);

/// Peaks on the device, and of PyTorch's pinned memory; nothing of it on the CPU.
void add_memory(Record& record, const torch::Device& device);

/// Where the allocations of this process on the device came from, since it began: driver, freelist,
/// retry. Empty on the CPU.
std::map<std::string, std::int64_t> allocation_sources(const torch::Device& device);

/// Watches the host's memory beside the measurement: where nearly all is taken, so that the system
/// would soon end the process, calls `full`, once.
class HostWatch {
 public:
  explicit HostWatch(std::function<void(const std::string& why)> full);
  ~HostWatch();
  HostWatch(const HostWatch&) = delete;
  HostWatch& operator=(const HostWatch&) = delete;

 private:
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace lms::studies
