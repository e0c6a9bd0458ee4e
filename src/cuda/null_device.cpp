// Device facts where there is no CUDA.

#include "base/error.h"
#include "cuda/device.h"
#include "cuda/virtual_memory.h"

namespace lms::cuda {

int device_count() noexcept { return 0; }

int numa_node(int /*device*/) { return -1; }

LinkRates measure_link(int /*device*/, Bytes /*bytes*/) {
  throw Error("this build of LMS has no CUDA, so there is no link to measure");
}

VirtualMemory::VirtualMemory(int /*device*/, Bytes /*reserve*/, Bytes /*chunk*/) {
  throw Error("this build of LMS has no CUDA, so there is no device memory to map");
}
VirtualMemory::~VirtualMemory() = default;
void VirtualMemory::release(std::size_t /*first*/, std::size_t /*last*/) noexcept {}
void VirtualMemory::part(std::size_t /*first*/, std::size_t /*last*/) noexcept {}
void VirtualMemory::unmap_joined(const std::vector<std::uint32_t>& /*chunks*/,
                                 Bytes /*offset*/) noexcept {}
void VirtualMemory::forget(const std::function<bool(Bytes)>& /*keep*/) {}
Bytes VirtualMemory::side_by_side(const std::vector<std::uint32_t>& /*chunks*/) { return 0; }
void VirtualMemory::map(Bytes /*begin*/, Bytes /*end*/) {}
void VirtualMemory::unmap(Bytes /*begin*/, Bytes /*end*/) {}
void VirtualMemory::allow(int /*peer*/) {}

}  // namespace lms::cuda
