#include "adapters/torch/cuda/product_kernels.h"

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <exception>
#include <string>
#include <tuple>

#include "base/error.h"

namespace lms::torch {
namespace {

constexpr unsigned kProductThreads = 256;
constexpr std::uint32_t kLanes = 4;
constexpr std::uint32_t kUnrolled = 4;  // vectors of a thread that are on their way at once

/// Defined outside: TYPE (0: bfloat16, 1: half, 2: float), BY (0: nothing, 1: columns, 2: rows),
/// LANES (1 or 4), UNROLLED. A product is rounded to float first, as by mul, and then to 16 bits,
/// as by _to_copy.
constexpr const char* kProductSource = R"cuda(
typedef unsigned int u32;
typedef unsigned short u16;

__device__ __forceinline__ u32 two(float low, float high) {
  u32 word;
#if TYPE == 1
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#else
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#endif
  return word;
}

__device__ __forceinline__ float4 times(float4 a, float4 b) {
  return make_float4(__fmul_rn(a.x, b.x), __fmul_rn(a.y, b.y), __fmul_rn(a.z, b.z),
                     __fmul_rn(a.w, b.w));
}

extern "C" __global__ void __launch_bounds__(256)
    multiply(const float* __restrict__ factor, const float* __restrict__ other,
             void* __restrict__ result, u32 elements, u32 width) {
#if LANES == 1
  for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += gridDim.x * blockDim.x) {
    float value = __ldg(factor + i);
#if BY != 0
    value = __fmul_rn(value, __ldg(other + (BY == 2 ? i / width : i % width)));
#endif
#if TYPE == 2
    static_cast<float*>(result)[i] = value;
#else
    static_cast<u16*>(result)[i] = static_cast<u16>(two(value, 0.0f));
#endif
  }
#else
  const float4* const factors = reinterpret_cast<const float4*>(factor);
  const u32 vectors = elements / 4;
  for (u32 tile = blockIdx.x * blockDim.x * UNROLLED; tile < vectors;
       tile += gridDim.x * blockDim.x * UNROLLED) {
    float4 values[UNROLLED];
#pragma unroll
    for (u32 k = 0; k < UNROLLED; ++k) {
      const u32 i = tile + k * blockDim.x + threadIdx.x;
      if (i < vectors) values[k] = __ldg(factors + i);
    }
#pragma unroll
    for (u32 k = 0; k < UNROLLED; ++k) {
      const u32 i = tile + k * blockDim.x + threadIdx.x;
      if (i >= vectors) continue;
      float4 value = values[k];
#if BY == 2
      const float number = __ldg(other + i / (width / 4));
      value = times(value, make_float4(number, number, number, number));
#elif BY == 1
      value = times(value, __ldg(reinterpret_cast<const float4*>(other) + i % (width / 4)));
#endif
#if TYPE == 2
      static_cast<float4*>(result)[i] = value;
#else
      static_cast<uint2*>(result)[i] = make_uint2(two(value.x, value.y), two(value.z, value.w));
#endif
    }
  }
#endif
}
)cuda";

const char* type_option(c10::ScalarType type) {
  if (type == c10::ScalarType::Float) return "-DTYPE=2";
  return type == c10::ScalarType::Half ? "-DTYPE=1" : "-DTYPE=0";
}

const char* by_option(ProductCast::By by) {
  if (by == ProductCast::By::kNothing) return "-DBY=0";
  return by == ProductCast::By::kRows ? "-DBY=2" : "-DBY=1";
}

}  // namespace

bool ProductKernels::available() const noexcept {
  if (failed_) return false;
  if (multiprocessors_ < 0) multiprocessors_ = multiprocessors_for_replays(device_);
  return multiprocessors_ > 0;
}

CUfunction ProductKernels::kernel_for(const ProductCast& cast, bool vectors) {
  const std::lock_guard guard(mutex_);
  const auto key = std::tuple(cast.type, cast.by, vectors);
  if (const auto found = kernels_.find(key); found != kernels_.end()) return found->second;
  if (!maker_) maker_.emplace();
  return kernels_[key] =
             maker_->make(kProductSource, "multiply",
                          {"--std=c++17", "--fmad=false", "--ftz=false", type_option(cast.type),
                           by_option(cast.by), vectors ? "-DLANES=4" : "-DLANES=1",
                           "-DUNROLLED=" + std::to_string(kUnrolled)});
}

bool ProductKernels::launch(const ProductCast& cast, const void* factor, const void* other,
                            void* result) noexcept {
  constexpr std::uint32_t kMostBlocks = 1U << 20;
  try {
    // The driver, unlike the runtime, does nothing in a thread that has not chosen a device.
    if (cudaSetDevice(device_) != cudaSuccess) throw Error("CUDA: the device cannot be chosen");
    const bool vectors = cast.width % kLanes == 0 && is_vector(factor) &&
                         (cast.by != ProductCast::By::kColumns || is_vector(other)) &&
                         is_vector(result);
    const CUfunction kernel = kernel_for(cast, vectors);
    const std::uint32_t each = kProductThreads * (vectors ? kLanes * kUnrolled : 1);
    const unsigned blocks = std::min((cast.elements - 1) / each + 1, kMostBlocks);
    std::uint32_t elements = cast.elements;
    std::uint32_t width = cast.width;
    std::array<void*, 5> arguments{&factor, &other, &result, &elements, &width};
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
