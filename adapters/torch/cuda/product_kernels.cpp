#include "adapters/torch/cuda/product_kernels.h"

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <exception>
#include <tuple>

#include "base/error.h"

namespace lms::torch {
namespace {

constexpr unsigned kProductThreads = 256;
constexpr std::uint32_t kLanes = 8;

/// Defined outside: TYPE (0: bfloat16, 1: half, 2: float), PER_ROW, LANES (1 or 8). A product is
/// rounded to float first, as by mul, and then to 16 bits, as by _to_copy.
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
  const u32 threads = gridDim.x * blockDim.x;
  const u32 thread = blockIdx.x * blockDim.x + threadIdx.x;
#if LANES == 1
  for (u32 i = thread; i < elements; i += threads) {
    const float number = __ldg(other + (PER_ROW ? i / width : i % width));
    const float value = __fmul_rn(__ldg(factor + i), number);
#if TYPE == 2
    static_cast<float*>(result)[i] = value;
#else
    static_cast<u16*>(result)[i] = static_cast<u16>(two(value, 0.0f));
#endif
  }
#else
  const float4* const factors = reinterpret_cast<const float4*>(factor);
  const u32 columns = width / 8;
  for (u32 i = thread; i < elements / 8; i += threads) {
    const float4 a = __ldg(factors + 2 * i);
    const float4 b = __ldg(factors + 2 * i + 1);
#if PER_ROW
    const float number = __ldg(other + i / columns);
    const float4 c = make_float4(number, number, number, number);
    const float4 d = c;
#else
    const float4* const others = reinterpret_cast<const float4*>(other) + 2 * (i % columns);
    const float4 c = __ldg(others);
    const float4 d = __ldg(others + 1);
#endif
    const float4 e = times(a, c);
    const float4 f = times(b, d);
#if TYPE == 2
    static_cast<float4*>(result)[2 * i] = e;
    static_cast<float4*>(result)[2 * i + 1] = f;
#else
    static_cast<uint4*>(result)[i] =
        make_uint4(two(e.x, e.y), two(e.z, e.w), two(f.x, f.y), two(f.z, f.w));
#endif
  }
#endif
}
)cuda";

const char* type_option(c10::ScalarType type) {
  if (type == c10::ScalarType::Float) return "-DTYPE=2";
  return type == c10::ScalarType::Half ? "-DTYPE=1" : "-DTYPE=0";
}

}  // namespace

bool ProductKernels::available() const noexcept {
  if (failed_) return false;
  if (multiprocessors_ < 0) multiprocessors_ = multiprocessors_for_replays(device_);
  return multiprocessors_ > 0;
}

CUfunction ProductKernels::kernel_for(const ProductCast& cast, bool vectors) {
  const std::lock_guard guard(mutex_);
  const auto key = std::tuple(cast.type, cast.per_row, vectors);
  if (const auto found = kernels_.find(key); found != kernels_.end()) return found->second;
  if (!maker_) maker_.emplace();
  return kernels_[key] = maker_->make(
             kProductSource, "multiply",
             {"--std=c++17", "--fmad=false", "--ftz=false", type_option(cast.type),
              cast.per_row ? "-DPER_ROW=1" : "-DPER_ROW=0", vectors ? "-DLANES=8" : "-DLANES=1"});
}

bool ProductKernels::launch(const ProductCast& cast, const void* factor, const void* other,
                            void* result) noexcept {
  constexpr unsigned kBlocksEach = 8;  // of a multiprocessor's 2048 threads
  try {
    // The driver, unlike the runtime, does nothing in a thread that has not chosen a device.
    if (cudaSetDevice(device_) != cudaSuccess) throw Error("CUDA: the device cannot be chosen");
    const bool vectors = cast.width % kLanes == 0 && is_vector(factor) &&
                         (cast.per_row || is_vector(other)) && is_vector(result);
    const CUfunction kernel = kernel_for(cast, vectors);
    const std::uint32_t work = cast.elements / (vectors ? kLanes : 1);
    const unsigned most = kBlocksEach * static_cast<unsigned>(multiprocessors_.load());
    const unsigned blocks = std::min((work + kProductThreads - 1) / kProductThreads, most);
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
