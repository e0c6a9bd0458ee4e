#include "adapters/torch/cuda/product_kernels.h"

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "base/error.h"

namespace lms::torch {
namespace {

constexpr unsigned kProductThreads = 256;
constexpr std::uint32_t kLanes = 8;

/// Defined outside: HALF (else bfloat16), LANES (1 or 8). A product is rounded to float first, as
/// by mul, and then to 16 bits, as by _to_copy.
constexpr const char* kProductSource = R"cuda(
typedef unsigned int u32;
typedef unsigned short u16;

__device__ __forceinline__ u32 two(float low, float high) {
  u32 word;
#if HALF
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#else
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#endif
  return word;
}

extern "C" __global__ void __launch_bounds__(256)
    multiply(const float* __restrict__ factor, const float* __restrict__ row,
             u16* __restrict__ result, u32 elements, u32 width) {
  const u32 threads = gridDim.x * blockDim.x;
  const u32 thread = blockIdx.x * blockDim.x + threadIdx.x;
#if LANES == 1
  for (u32 i = thread; i < elements; i += threads) {
    const float value = __fmul_rn(__ldg(factor + i), __ldg(row + i % width));
    result[i] = static_cast<u16>(two(value, 0.0f));
  }
#else
  const float4* const factors = reinterpret_cast<const float4*>(factor);
  const float4* const rows = reinterpret_cast<const float4*>(row);
  uint4* const results = reinterpret_cast<uint4*>(result);
  const u32 columns = width / 8;
  for (u32 i = thread; i < elements / 8; i += threads) {
    const float4 a = __ldg(factors + 2 * i);
    const float4 b = __ldg(factors + 2 * i + 1);
    const u32 column = i % columns;
    const float4 c = __ldg(rows + 2 * column);
    const float4 d = __ldg(rows + 2 * column + 1);
    results[i] = make_uint4(two(__fmul_rn(a.x, c.x), __fmul_rn(a.y, c.y)),
                            two(__fmul_rn(a.z, c.z), __fmul_rn(a.w, c.w)),
                            two(__fmul_rn(b.x, d.x), __fmul_rn(b.y, d.y)),
                            two(__fmul_rn(b.z, d.z), __fmul_rn(b.w, d.w)));
  }
#endif
}
)cuda";

}  // namespace

bool ProductKernels::available() const noexcept {
  if (failed_) return false;
  if (multiprocessors_ < 0) multiprocessors_ = multiprocessors_for_replays(device_);
  return multiprocessors_ > 0;
}

CUfunction ProductKernels::kernel_for(c10::ScalarType type, bool vectors) {
  const std::lock_guard guard(mutex_);
  const auto key = std::pair(type, vectors);
  if (const auto found = kernels_.find(key); found != kernels_.end()) return found->second;
  if (!maker_) maker_.emplace();
  return kernels_[key] = maker_->make(kProductSource, "multiply",
                                      {"--std=c++17", "--fmad=false", "--ftz=false",
                                       type == c10::ScalarType::Half ? "-DHALF=1" : "-DHALF=0",
                                       vectors ? "-DLANES=8" : "-DLANES=1"});
}

bool ProductKernels::launch(const ProductCast& cast, const void* factor, const void* row,
                            void* result) noexcept {
  constexpr unsigned kBlocksEach = 8;  // of a multiprocessor's 2048 threads
  try {
    // The driver, unlike the runtime, does nothing in a thread that has not chosen a device.
    if (cudaSetDevice(device_) != cudaSuccess) throw Error("CUDA: the device cannot be chosen");
    const bool vectors =
        cast.width % kLanes == 0 && is_vector(factor) && is_vector(row) && is_vector(result);
    const CUfunction kernel = kernel_for(cast.type, vectors);
    const std::uint32_t work = cast.elements / (vectors ? kLanes : 1);
    const unsigned most = kBlocksEach * static_cast<unsigned>(multiprocessors_.load());
    const unsigned blocks = std::min((work + kProductThreads - 1) / kProductThreads, most);
    std::uint32_t elements = cast.elements;
    std::uint32_t width = cast.width;
    std::array<void*, 5> arguments{&factor, &row, &result, &elements, &width};
    const auto stream =
        c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device_)).stream();
    if (maker_->launch(kernel, blocks, kProductThreads, stream, arguments.data())) return true;
  } catch (const std::exception&) {
    // As below.
  }
  failed_ = true;
  return false;
}

}  // namespace lms::torch
