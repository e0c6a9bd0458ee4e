#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <string>

#include "base/text_file.h"
#include "cuda/device.h"
#include "cuda/lane.h"

namespace lms::cuda {
namespace {

/// Makes a device current, and the one before it again at the end.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    check(cudaSetDevice(device), "cudaSetDevice");
  }
  ~DeviceGuard() { (void)cudaSetDevice(before_); }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
};

class DeviceBuffer {
 public:
  explicit DeviceBuffer(Bytes bytes) {
    check(cudaMalloc(&data_, static_cast<std::size_t>(bytes)), "cudaMalloc");
  }
  ~DeviceBuffer() { (void)cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  [[nodiscard]] void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return count;
}

int numa_node(int device) {
  std::array<char, 32> bus{};
  if (cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device) != cudaSuccess) {
    (void)cudaGetLastError();
    return -1;
  }
  std::string id = bus.data();
  std::ranges::transform(id, id.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto text = read_text_file("/sys/bus/pci/devices/" + id + "/numa_node");
  return text ? std::atoi(text->c_str()) : -1;
}

LinkRates measure_link(int device, Bytes bytes) {
  constexpr int kRounds = 4;
  const DeviceGuard guard(device);
  LinkRates rates;
  const auto start = std::chrono::steady_clock::now();
  HostArena arena({.limit = 2 * bytes, .step = 2 * bytes, .numa_node = numa_node(device)},
                  std::make_shared<Pinning>());
  HostSlot up = arena.acquire(bytes);
  rates.pinning = static_cast<double>(2 * bytes) / static_cast<double>(kGiB) / seconds_since(start);
  HostSlot down = arena.acquire(bytes);
  const DeviceBuffer from(bytes);
  const DeviceBuffer to(bytes);
  Lane out(device, /*out=*/true);
  Lane in(device, /*out=*/false);
  const auto run = [&](bool use_out, bool use_in) {
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kRounds; ++i) {
      if (use_out) (void)out.copy(down.data(), from.data(), bytes);
      if (use_in) (void)in.copy(to.data(), up.data(), bytes);
    }
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    return kRounds * static_cast<double>(bytes) / 1e9 / seconds_since(begin);
  };
  (void)run(true, true);  // first touch
  rates.to_host = run(true, false);
  rates.to_device = run(false, true);
  rates.both_each_way = run(true, true);
  (void)cudaStreamDestroy(out.stream());
  (void)cudaStreamDestroy(in.stream());
  return rates;
}

}  // namespace lms::cuda
