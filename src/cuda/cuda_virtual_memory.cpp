#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <string>

#include "base/error.h"
#include "cuda/event.h"
#include "cuda/virtual_memory.h"

namespace lms::cuda {
namespace {

/// The driver's calls, through the runtime: libcuda is not linked, so that LMS loads where there is
/// no driver.
struct Driver {
  PFN_cuDeviceGet_v2000 device_get = nullptr;
  PFN_cuDeviceGetAttribute_v2000 device_get_attribute = nullptr;
  PFN_cuGetErrorString_v6000 get_error_string = nullptr;
  PFN_cuMemAddressReserve_v10020 address_reserve = nullptr;
  PFN_cuMemAddressFree_v10020 address_free = nullptr;
  PFN_cuMemCreate_v10020 create = nullptr;
  PFN_cuMemRelease_v10020 release = nullptr;
  PFN_cuMemMap_v10020 map = nullptr;
  PFN_cuMemUnmap_v10020 unmap = nullptr;
  PFN_cuMemSetAccess_v10020 set_access = nullptr;
  PFN_cuMemGetAllocationGranularity_v10020 get_granularity = nullptr;

  Driver() {
    find(device_get, "cuDeviceGet", 2000);
    find(device_get_attribute, "cuDeviceGetAttribute", 2000);
    find(get_error_string, "cuGetErrorString", 6000);
    find(address_reserve, "cuMemAddressReserve", 10020);
    find(address_free, "cuMemAddressFree", 10020);
    find(create, "cuMemCreate", 10020);
    find(release, "cuMemRelease", 10020);
    find(map, "cuMemMap", 10020);
    find(unmap, "cuMemUnmap", 10020);
    find(set_access, "cuMemSetAccess", 10020);
    find(get_granularity, "cuMemGetAllocationGranularity", 10020);
  }

 private:
  template <class Function>
  static void find(Function& function, const char* name, [[maybe_unused]] unsigned version) {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    check(cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &found),
          name);
#else
    check(cudaGetDriverEntryPoint(name, &address, cudaEnableDefault, &found), name);
#endif
    if (found != cudaDriverEntryPointSuccess || address == nullptr) {
      throw Error(std::string("CUDA: this driver has no ") + name);
    }
    function = reinterpret_cast<Function>(address);
  }
};

const Driver& driver() {
  static const Driver driver;
  return driver;
}

void check_driver(CUresult code, const char* call) {
  if (code == CUDA_SUCCESS) return;
  const char* reason = nullptr;
  (void)driver().get_error_string(code, &reason);
  const std::string text =
      std::string("CUDA: ") + call + ": " + (reason != nullptr ? reason : "unknown error");
  if (code == CUDA_ERROR_OUT_OF_MEMORY) throw OutOfMemory(text);
  throw Error(text);
}

/// Makes a device current, and the one before it again at the end; `ok` says whether it is.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    code_ = cudaGetDevice(&before_);
    restore_ = code_ == cudaSuccess;
    if (restore_) code_ = cudaSetDevice(device);
  }
  ~DeviceScope() {
    if (restore_) (void)cudaSetDevice(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  void expect() const { check(code_, "cudaSetDevice"); }

 private:
  cudaError_t code_ = cudaSuccess;
  int before_ = 0;
  bool restore_ = false;
};

CUdeviceptr address_of(const std::byte* base, Bytes offset) {
  return reinterpret_cast<CUdeviceptr>(base) + static_cast<CUdeviceptr>(offset);
}

CUmemAllocationProp properties(int device, bool reachable_by_network) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  prop.allocFlags.gpuDirectRDMACapable = reachable_by_network ? 1 : 0;
  return prop;
}

void set_access(CUdeviceptr address, std::size_t bytes, const std::vector<int>& devices) {
  std::vector<CUmemAccessDesc> access(devices.size());
  for (std::size_t i = 0; i < devices.size(); ++i) {
    access[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access[i].location.id = devices[i];
    access[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  check_driver(driver().set_access(address, bytes, access.data(), access.size()), "cuMemSetAccess");
}

}  // namespace

VirtualMemory::VirtualMemory(int device, Bytes reserve, Bytes chunk)
    : device_(device), chunk_(chunk), users_{device} {
  if (reserve <= 0) throw Error("VirtualMemory: no bytes to reserve");
  if (chunk <= 0 || chunk % kUnit != 0) {
    throw Error("VirtualMemory: chunks of " + std::to_string(chunk) + " bytes");
  }
  reserved_ = round_up(reserve, chunk);
  unused_ = reserved_;
  const DeviceScope scope(device);
  scope.expect();
  check(cudaFree(nullptr), "cudaFree");  // makes the device's context, if nothing has yet
  CUdevice handle = 0;
  check_driver(driver().device_get(&handle, device), "cuDeviceGet");
  const auto has = [handle](CUdevice_attribute attribute) {
    int value = 0;
    return driver().device_get_attribute(&value, attribute, handle) == CUDA_SUCCESS && value != 0;
  };
  if (!has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) {
    throw Error("CUDA: device " + std::to_string(device) + " cannot map memory to addresses");
  }
  reachable_by_network_ = has(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  const CUmemAllocationProp prop = properties(device, reachable_by_network_);
  std::size_t unit = 0;
  check_driver(driver().get_granularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
               "cuMemGetAllocationGranularity");
  if (unit == 0 || static_cast<std::size_t>(chunk_) % unit != 0) {
    throw Error("CUDA: memory is mapped in units of " + std::to_string(unit) + " bytes");
  }
  CUdeviceptr address = 0;
  check_driver(driver().address_reserve(&address, static_cast<std::size_t>(2 * reserved_), 0, 0, 0),
               "cuMemAddressReserve");
  base_ = std::bit_cast<std::byte*>(address);
  chunks_.assign(static_cast<std::size_t>(reserved_ / chunk_), 0);
}

VirtualMemory::~VirtualMemory() {
  const DeviceScope scope(device_);
  (void)cudaDeviceSynchronize();
  release(0, chunks_.size());
  (void)driver().address_free(address_of(base_, 0), static_cast<std::size_t>(2 * reserved_));
  (void)cudaGetLastError();
}

void VirtualMemory::release(std::size_t first, std::size_t last) noexcept {
  part(first, last);
  for (std::size_t i = first; i < last; ++i) {
    if (chunks_[i] == 0) continue;
    (void)driver().unmap(address_of(base_, static_cast<Bytes>(i) * chunk_),
                         static_cast<std::size_t>(chunk_));
    (void)driver().release(chunks_[i]);
    chunks_[i] = 0;
    mapped_ -= chunk_;
  }
}

/// Chunks in [first, last) no longer lie beside others.
void VirtualMemory::part(std::size_t first, std::size_t last) noexcept {
  std::erase_if(joined_, [&](const auto& joined) {
    const auto& [chunks, offset] = joined;
    const bool gone =
        std::ranges::any_of(chunks, [&](std::uint32_t i) { return i >= first && i < last; });
    if (gone) unmap_joined(chunks, offset);
    return gone;
  });
}

void VirtualMemory::unmap_joined(const std::vector<std::uint32_t>& chunks, Bytes offset) noexcept {
  (void)driver().unmap(address_of(base_, offset), chunks.size() * static_cast<std::size_t>(chunk_));
}

void VirtualMemory::forget(const std::function<bool(Bytes)>& keep) {
  const DeviceScope scope(device_);
  scope.expect();
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  std::erase_if(joined_, [&](const auto& joined) {
    const bool goes = !keep(joined.second);
    if (goes) unmap_joined(joined.first, joined.second);
    return goes;
  });
}

/// Addresses beyond reserved() behind which there is nothing. They are plenty: those that were
/// given up are looked at when all have been used once.
Bytes VirtualMemory::addresses_for(Bytes bytes) {
  if (unused_ + bytes <= 2 * reserved_) return unused_;
  Bytes at = reserved_;
  std::map<Bytes, Bytes> taken;
  for (const auto& [chunks, offset] : joined_) {
    taken[offset] = static_cast<Bytes>(chunks.size()) * chunk_;
  }
  for (const auto& [offset, length] : taken) {
    if (offset - at >= bytes) break;
    at = offset + length;
  }
  if (at + bytes > 2 * reserved_) {
    throw OutOfMemory("the addresses reserved for memory in pieces have run out");
  }
  return at;
}

Bytes VirtualMemory::side_by_side(const std::vector<std::uint32_t>& chunks) {
  if (const auto known = joined_.find(chunks); known != joined_.end()) return known->second;
  const Bytes bytes = static_cast<Bytes>(chunks.size()) * chunk_;
  const Bytes offset = addresses_for(bytes);
  const DeviceScope scope(device_);
  scope.expect();
  Bytes end = offset;
  try {
    for (const std::uint32_t i : chunks) {
      if (i >= chunks_.size() || chunks_[i] == 0) throw Error("VirtualMemory: no such chunk");
      check_driver(
          driver().map(address_of(base_, end), static_cast<std::size_t>(chunk_), 0, chunks_[i], 0),
          "cuMemMap");
      end += chunk_;
    }
    set_access(address_of(base_, offset), static_cast<std::size_t>(bytes), users_);
    joined_.emplace(chunks, offset);
    unused_ = std::max(unused_, offset + bytes);
    ++joins_;
  } catch (...) {
    if (end > offset) {
      (void)driver().unmap(address_of(base_, offset), static_cast<std::size_t>(end - offset));
    }
    throw;
  }
  return offset;
}

void VirtualMemory::map(Bytes begin, Bytes end) {
  if (end > reserved_) {
    throw Error("VirtualMemory: " + format_bytes(end) + " asked for, addresses reserved for " +
                format_bytes(reserved_));
  }
  auto first = static_cast<std::size_t>(begin / chunk_);
  const auto last = static_cast<std::size_t>(round_up(end, chunk_) / chunk_);
  while (first < last && chunks_[first] != 0) ++first;
  if (first >= last) return;
  const DeviceScope scope(device_);
  scope.expect();
  const auto size = static_cast<std::size_t>(chunk_);
  const auto address = [&](std::size_t i) {
    return address_of(base_, static_cast<Bytes>(i) * chunk_);
  };
  std::vector<std::size_t> made;
  made.reserve(last - first);
  try {
    for (std::size_t i = first; i < last; ++i) {
      if (chunks_[i] != 0) continue;
      CUmemAllocationProp prop = properties(device_, reachable_by_network_);
      CUmemGenericAllocationHandle handle = 0;
      CUresult code = driver().create(&handle, size, &prop, 0);
      if (reachable_by_network_ && code != CUDA_SUCCESS && code != CUDA_ERROR_OUT_OF_MEMORY) {
        // Some systems say that they can, and then refuse.
        prop = properties(device_, false);
        code = driver().create(&handle, size, &prop, 0);
        if (code == CUDA_SUCCESS) reachable_by_network_ = false;
      }
      check_driver(code, "cuMemCreate");
      code = driver().map(address(i), size, 0, handle, 0);
      if (code != CUDA_SUCCESS) (void)driver().release(handle);
      check_driver(code, "cuMemMap");
      chunks_[i] = handle;
      mapped_ += chunk_;
      made.push_back(i);
    }
    // One call a run of new chunks: it is what takes the time.
    for (std::size_t i = 0; i < made.size();) {
      std::size_t j = i + 1;
      while (j < made.size() && made[j] == made[j - 1] + 1) ++j;
      set_access(address(made[i]), (j - i) * size, users_);
      i = j;
    }
  } catch (...) {
    for (const std::size_t i : made) release(i, i + 1);
    throw;
  }
}

void VirtualMemory::unmap(Bytes begin, Bytes end) {
  const auto first = static_cast<std::size_t>(round_up(std::max<Bytes>(begin, 0), chunk_) / chunk_);
  const auto last = static_cast<std::size_t>(std::min(end, reserved_) / chunk_);
  bool any = false;
  for (std::size_t i = first; i < last; ++i) any = any || chunks_[i] != 0;
  if (!any) return;
  const DeviceScope scope(device_);
  scope.expect();
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  release(first, last);
}

void VirtualMemory::allow(int peer) {
  if (std::ranges::find(users_, peer) != users_.end()) return;
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, peer, device_), "cudaDeviceCanAccessPeer");
  if (can == 0) {
    throw Error("CUDA: device " + std::to_string(peer) + " cannot reach the memory of device " +
                std::to_string(device_));
  }
  const DeviceScope scope(device_);
  scope.expect();
  users_.reserve(users_.size() + 1);
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    if (chunks_[i] == 0) continue;
    set_access(address_of(base_, static_cast<Bytes>(i) * chunk_), static_cast<std::size_t>(chunk_),
               {peer});
  }
  for (const auto& [chunks, offset] : joined_) {
    set_access(address_of(base_, offset), chunks.size() * static_cast<std::size_t>(chunk_), {peer});
  }
  users_.push_back(peer);
}

}  // namespace lms::cuda
