// The driver's calls for memory mapped to addresses, as the runtime hands them out.

#include <cuda.h>
#include <cuda_runtime_api.h>

#if CUDART_VERSION >= 13000  // the functions of another release have other arguments

#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <string>

#include "model_cuda/model.h"

namespace {

using model::device_bytes;
using model::kPage;
using model::Model;
using model::model_now;

CUresult device_get(CUdevice* device, int index) {
  *device = index;
  return CUDA_SUCCESS;
}
CUresult device_attribute(int* value, CUdevice_attribute attribute, CUdevice /*device*/) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ? 1 : 0;
  return CUDA_SUCCESS;
}
CUresult error_string(CUresult /*code*/, const char** text) {
  *text = "an error of the model";
  return CUDA_SUCCESS;
}
CUresult address_reserve(CUdeviceptr* address, std::size_t size, std::size_t, CUdeviceptr,
                         unsigned long long) {
  void* data =
      mmap(nullptr, size + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  *address = (begin + kPage - 1) / kPage * kPage;
  const std::lock_guard guard(model_now().mutex);
  model_now().device[reinterpret_cast<char*>(*address)] = size;
  return CUDA_SUCCESS;
}
CUresult address_free(CUdeviceptr, std::size_t) { return CUDA_SUCCESS; }
CUresult create(CUmemGenericAllocationHandle* handle, std::size_t size, const CUmemAllocationProp*,
                unsigned long long) {
  const std::lock_guard guard(model_now().mutex);
  Model& model = model_now();
  if (model.memory < 0) model.memory = memfd_create("model_cuda", 0);
  if (model.used + size > device_bytes()) return CUDA_ERROR_OUT_OF_MEMORY;
  model.used += size;
  *handle = static_cast<CUmemGenericAllocationHandle>(model.chunks) + 1;
  model.chunk_sizes[*handle] = size;
  model.chunks += static_cast<off_t>(size);
  return ftruncate(model.memory, model.chunks) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
/// Of what is mapped nowhere any more: LMS releases no other.
CUresult release(CUmemGenericAllocationHandle handle) {
  const std::lock_guard guard(model_now().mutex);
  const auto found = model_now().chunk_sizes.find(handle);
  if (found == model_now().chunk_sizes.end()) return CUDA_ERROR_INVALID_VALUE;
  model_now().used -= found->second;
  model_now().chunk_sizes.erase(found);
  return CUDA_SUCCESS;
}
CUresult map_chunk(CUdeviceptr address, std::size_t size, std::size_t,
                   CUmemGenericAllocationHandle handle, unsigned long long) {
  void* data = mmap(reinterpret_cast<void*>(address), size, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_FIXED, model_now().memory, static_cast<off_t>(handle - 1));
  return data == MAP_FAILED ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}
CUresult unmap(CUdeviceptr address, std::size_t size) {
  void* data = mmap(reinterpret_cast<void*>(address), size, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  return data == MAP_FAILED ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}
CUresult set_access(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t) {
  return CUDA_SUCCESS;
}
CUresult granularity(std::size_t* unit, const CUmemAllocationProp*,
                     CUmemAllocationGranularity_flags) {
  *unit = kPage;
  return CUDA_SUCCESS;
}
CUresult not_here() { return CUDA_ERROR_NOT_SUPPORTED; }

}  // namespace

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** address, unsigned,
                                                        unsigned long long,
                                                        cudaDriverEntryPointQueryResult* found) {
  const std::map<std::string, void*> all{
      {"cuDeviceGet", reinterpret_cast<void*>(&device_get)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(&device_attribute)},
      {"cuGetErrorString", reinterpret_cast<void*>(&error_string)},
      {"cuMemAddressReserve", reinterpret_cast<void*>(&address_reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(&address_free)},
      {"cuMemCreate", reinterpret_cast<void*>(&create)},
      {"cuMemRelease", reinterpret_cast<void*>(&release)},
      {"cuMemMap", reinterpret_cast<void*>(&map_chunk)},
      {"cuMemUnmap", reinterpret_cast<void*>(&unmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(&set_access)},
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(&granularity)},
  };
  const auto entry = all.find(name);
  *address = entry == all.end() ? reinterpret_cast<void*>(&not_here) : entry->second;
  if (found != nullptr) *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

#endif
