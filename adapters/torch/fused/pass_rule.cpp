#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <tuple>

#include "adapters/torch/fused/prices.h"
#include "adapters/torch/fused/rule.h"
#include "adapters/torch/fused/single_pass.h"

namespace lms::torch {
namespace {

constexpr unsigned kPassThreads = 256;
constexpr std::uint32_t kLanes = 4;
constexpr std::uint32_t kUnrolled = 4;  // vectors of a thread that are on their way at once

/// Defined outside: TYPE (0: bfloat16, 1: half, 2: float), WITH (0: nothing, 1: column factors, 2:
/// row factors, 3: addend), ADDEND (0: bfloat16, 1: half), LANES (1 or 4), UNROLLED. A product is
/// rounded to float first, as by mul, and then to 16 bits, as by _to_copy.
constexpr const char* kPassSource = R"cuda(
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

__device__ __forceinline__ float widened(u16 bits) {
#if ADDEND == 1
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  return __uint_as_float(static_cast<u32>(bits) << 16);
#endif
}

__device__ __forceinline__ float4 times(float4 a, float4 b) {
  return make_float4(__fmul_rn(a.x, b.x), __fmul_rn(a.y, b.y), __fmul_rn(a.z, b.z),
                     __fmul_rn(a.w, b.w));
}

extern "C" __global__ void __launch_bounds__(256)
    pass(const float* __restrict__ input, const void* __restrict__ other,
         void* __restrict__ result, u32 elements, u32 width) {
#if WITH == 3
  const u16* const addends = static_cast<const u16*>(other);
#else
  const float* const factors = static_cast<const float*>(other);
#endif
#if LANES == 1
  for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += gridDim.x * blockDim.x) {
    float value = __ldg(input + i);
#if WITH == 3
    value = __fadd_rn(value, widened(__ldg(addends + i)));
#elif WITH != 0
    value = __fmul_rn(value, __ldg(factors + (WITH == 2 ? i / width : i % width)));
#endif
#if TYPE == 2
    static_cast<float*>(result)[i] = value;
#else
    static_cast<u16*>(result)[i] = static_cast<u16>(two(value, 0.0f));
#endif
  }
#else
  const u32 vectors = elements / 4;
  for (u32 tile = blockIdx.x * blockDim.x * UNROLLED; tile < vectors;
       tile += gridDim.x * blockDim.x * UNROLLED) {
    float4 values[UNROLLED];
#if WITH == 3
    ushort4 added[UNROLLED];
#endif
#pragma unroll
    for (u32 k = 0; k < UNROLLED; ++k) {
      const u32 i = tile + k * blockDim.x + threadIdx.x;
      if (i >= vectors) continue;
      values[k] = __ldg(reinterpret_cast<const float4*>(input) + i);
#if WITH == 3
      added[k] = __ldg(reinterpret_cast<const ushort4*>(addends) + i);
#endif
    }
#pragma unroll
    for (u32 k = 0; k < UNROLLED; ++k) {
      const u32 i = tile + k * blockDim.x + threadIdx.x;
      if (i >= vectors) continue;
      float4 value = values[k];
#if WITH == 3
      value = make_float4(__fadd_rn(value.x, widened(added[k].x)),
                          __fadd_rn(value.y, widened(added[k].y)),
                          __fadd_rn(value.z, widened(added[k].z)),
                          __fadd_rn(value.w, widened(added[k].w)));
#elif WITH == 2
      const float number = __ldg(factors + i / (width / 4));
      value = times(value, make_float4(number, number, number, number));
#elif WITH == 1
      value = times(value, __ldg(reinterpret_cast<const float4*>(factors) + i % (width / 4)));
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

using With = SinglePass::With;

const char* type_option(c10::ScalarType type) {
  if (type == c10::ScalarType::Float) return "-DTYPE=2";
  return type == c10::ScalarType::Half ? "-DTYPE=1" : "-DTYPE=0";
}

const char* with_option(With with) {
  switch (with) {
    case With::kColumnFactors:
      return "-DWITH=1";
    case With::kRowFactors:
      return "-DWITH=2";
    case With::kAddend:
      return "-DWITH=3";
    case With::kNothing:
      break;
  }
  return "-DWITH=0";
}

enum PassRole : std::uint8_t { kProduct, kSum, kConversion };
constexpr std::array<std::string_view, 3> kPassOperators{"aten::mul.Tensor", "aten::add.Tensor",
                                                         "aten::_to_copy"};

/// Single passes. Each kernel is made when the first of its kind comes; if one cannot be made or
/// queued, there are none for good.
class PassRule final : public FusedRule {
 public:
  PassRule(c10::Device device, Kernels& kernels) : device_(device), kernels_(kernels) {}

  [[nodiscard]] ReplayCost price(std::uint8_t role, const OpInfo& info,
                                 const c10::Stack& stack) const override {
    if (!available()) return {};
    const std::size_t base = stack.size() - info.argument_count;
    switch (role) {
      case kProduct:
        if (!may_be_product(stack, base)) return {};
        return {.alone = prices::kProduct, .fold = Fold::kProduct};
      case kSum:
        return may_be_sum(stack, base) ? ReplayCost{.alone = prices::kSum} : ReplayCost{};
      default:
        return may_be_cast(stack, base) ? ReplayCost{.fold = Fold::kConversion} : ReplayCost{};
    }
  }

  [[nodiscard]] std::optional<FusedRun> find(std::span<const std::shared_ptr<const Call>> calls,
                                             const MakerOf& maker_of) override {
    if (!available()) return std::nullopt;
    const Call& call = *calls.front();
    FusedRun run{.calls = 1};
    auto pass = find_product(call, device_);
    if (!pass) pass = find_sum(call, device_);
    if (!pass && (pass = find_cast(call, device_))) {
      auto maker = maker_of(*pass->input);
      if (const auto whole = maker ? find_cast_of_product(*maker, call, device_) : std::nullopt) {
        pass = whole;
        run.maker = std::move(maker);
      }
    }
    if (!pass) return std::nullopt;
    run.bytes = pass->bytes();
    run.reads = {pass->input, pass->other};
    run.launch = [this, pass = *pass](std::span<const void* const> reads, void* result) {
      return launch(pass, reads[0], reads[1], result);
    };
    return run;
  }

  [[nodiscard]] std::int64_t failures() const noexcept override { return failed_ ? 1 : 0; }

 private:
  [[nodiscard]] bool available() const noexcept {
    return !failed_ && kernels_.multiprocessors() > 0;
  }

  /// Throws Error.
  Kernels::Kernel kernel_for(const SinglePass& pass, bool vectors) {
    const std::lock_guard guard(mutex_);
    const Key key(pass.type, pass.with, pass.addend, vectors);
    if (const auto found = made_.find(key); found != made_.end()) return found->second;
    return made_[key] = kernels_.make(
               kPassSource, "pass",
               {"--std=c++17", "--fmad=false", "--ftz=false", type_option(pass.type),
                with_option(pass.with),
                pass.addend == c10::ScalarType::Half ? "-DADDEND=1" : "-DADDEND=0",
                vectors ? "-DLANES=4" : "-DLANES=1", "-DUNROLLED=" + std::to_string(kUnrolled)});
  }

  bool launch(const SinglePass& pass, const void* input, const void* other, void* result) noexcept {
    constexpr std::uint32_t kMostBlocks = 1U << 20;
    try {
      const bool one_by_one = pass.with == With::kColumnFactors || pass.with == With::kAddend;
      const bool vectors = pass.width % kLanes == 0 && Kernels::is_vector(input) &&
                           Kernels::is_vector(result) && (!one_by_one || Kernels::is_vector(other));
      const Kernels::Kernel kernel = kernel_for(pass, vectors);
      const std::uint32_t each = kPassThreads * (vectors ? kLanes * kUnrolled : 1);
      const unsigned blocks = std::min((pass.elements - 1) / each + 1, kMostBlocks);
      std::uint32_t elements = pass.elements;
      std::uint32_t width = pass.width;
      std::array<void*, 5> arguments{&input, &other, &result, &elements, &width};
      if (kernels_.launch(kernel, blocks, kPassThreads, arguments.data())) return true;
    } catch (const std::exception&) {
      // As below.
    }
    failed_ = true;
    return false;
  }

  const c10::Device device_;
  Kernels& kernels_;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  ///< guards `made_`
  using Key = std::tuple<c10::ScalarType, SinglePass::With, c10::ScalarType, bool>;
  std::map<Key, Kernels::Kernel> made_;
};

std::unique_ptr<FusedRule> make_pass_rule(c10::Device device, Kernels& kernels) {
  return std::make_unique<PassRule>(device, kernels);
}

}  // namespace

extern const FusedKind kPassKind;
const FusedKind kPassKind{kPassOperators, &make_pass_rule};

}  // namespace lms::torch
