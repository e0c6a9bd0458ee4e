#pragma once

namespace lms::torch {

/// What NVRTC makes NormKernels' kernels of. Roundings are those of PyTorch's kernels, one after
/// the other: batch_norm_elemt (both layouts), add_ and relu_, each of which ends in the type of
/// the data. Only relu, but for the leaky one, comes before the rounding in front of it, which
/// gives the same bits: rounding changes no order, and every NaN into the same one.
///
/// Defined outside: DATA and PARAMETERS (types: 0 float, 1 bfloat16, 2 half), ADD (0 or 1), RELU
/// (0, 1, or 2: leaky_relu), WAY (0 element by element, 1 vectors along the channels, 2 vectors
/// along the planes). In way 1 there must be at least as many threads as a row of channels has
/// vectors.
inline constexpr const char* kNormKernelSource = R"cuda(
typedef unsigned int u32;
typedef unsigned short u16;

template <int TYPE>
struct Element {
  typedef u16 Bits;
};
template <>
struct Element<0> {
  typedef float Bits;
};

template <int TYPE>
__device__ __forceinline__ float widened(typename Element<TYPE>::Bits bits);
template <>
__device__ __forceinline__ float widened<0>(float bits) {
  return bits;
}
template <>
__device__ __forceinline__ float widened<1>(u16 bits) {
  return __uint_as_float(static_cast<u32>(bits) << 16);
}
template <>
__device__ __forceinline__ float widened<2>(u16 bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// A word of memory: an element, or two.
#if DATA == 0
constexpr int kPack = 1;
__device__ __forceinline__ u32 packed(const float* values) { return __float_as_uint(values[0]); }
__device__ __forceinline__ void unpack(u32 word, float* values) {
  values[0] = __uint_as_float(word);
}
#else
constexpr int kPack = 2;
__device__ __forceinline__ u32 packed(const float* values) {
  u32 word;
#if DATA == 1
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(values[1]), "f"(values[0]));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(values[1]), "f"(values[0]));
#endif
  return word;
}
__device__ __forceinline__ void unpack(u32 word, float* values) {
  values[0] = widened<DATA>(static_cast<u16>(word));
  values[1] = widened<DATA>(static_cast<u16>(word >> 16));
}
#endif

typedef Element<DATA>::Bits Data;
typedef Element<PARAMETERS>::Bits Parameter;

struct Channel {
  float mean;
  float deviation;
  float weight;
  float bias;
};

struct Channels {
  const float* mean;
  const float* deviation;
  const Parameter* weight;
  const Parameter* bias;

  __device__ __forceinline__ Channel at(u32 channel) const {
    Channel result;
    result.mean = __ldg(mean + channel);
    result.deviation = __ldg(deviation + channel);
    result.weight = weight == nullptr ? 1.0f : widened<PARAMETERS>(__ldg(weight + channel));
    result.bias = bias == nullptr ? 0.0f : widened<PARAMETERS>(__ldg(bias + channel));
    return result;
  }
};

__device__ __forceinline__ float normalised(float value, const Channel& channel) {
  const float weighted = __fmul_rn(channel.weight, __fsub_rn(value, channel.mean));
  return __fmaf_rn(weighted, channel.deviation, channel.bias);
}

#if RELU == 2
__device__ __forceinline__ float clamped(float value, float slope) {
  return value > 0.0f ? value : __fmul_rn(value, slope);
}
#else
// Also -0 becomes 0, and NaN stays what it is.
__device__ __forceinline__ float clamped(float value, float) {
  return value <= 0.0f ? 0.0f : value;
}
#endif

// `values` after the batch norm: a word of the result.
__device__ __forceinline__ u32 finished(float* values, u32 other, float slope) {
  if (ADD) {
    float others[kPack];
    unpack(packed(values), values);
    unpack(other, others);
#pragma unroll
    for (int k = 0; k < kPack; ++k) values[k] = __fadd_rn(values[k], others[k]);
  }
  if (RELU) {
    if (RELU == 2) unpack(packed(values), values);
#pragma unroll
    for (int k = 0; k < kPack; ++k) values[k] = clamped(values[k], slope);
  }
  return packed(values);
}

#ifdef TRIAL
// How many of another kernel's results differ, in counts[0]; in the others, how many would differ
// from this one under other ways to the same number, by which it is told from them; in the last,
// how many are too small to be normal.
extern "C" __global__ void __launch_bounds__(256)
    compare(const float* __restrict__ input, const float* __restrict__ weight,
            const float* __restrict__ bias, const float* __restrict__ mean,
            const float* __restrict__ deviation, const float* __restrict__ result,
            u32* __restrict__ counts, u32 elements, u32 channels, u32 plane) {
  const Channels parameters = {mean, deviation, weight, bias};
  u32 own[7] = {};
  for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += gridDim.x * blockDim.x) {
    const Channel c = parameters.at(i / plane % channels);
    const float x = __ldg(input + i);
    const float y = normalised(x, c);
    const u32 bits = __float_as_uint(y);
    const float centred = __fsub_rn(x, c.mean);
    const float scale = __fmul_rn(c.weight, c.deviation);
    const float others[5] = {
        __fmaf_rn(centred, scale, c.bias),
        __fmaf_rn(__fmul_rn(centred, c.deviation), c.weight, c.bias),
        __fmaf_rn(x, scale, __fsub_rn(c.bias, __fmul_rn(c.mean, scale))),
        __fadd_rn(__fmul_rn(__fmul_rn(c.weight, centred), c.deviation), c.bias),
        __fmaf_rn(__fmaf_rn(x, c.weight, -__fmul_rn(c.mean, c.weight)), c.deviation, c.bias)};
    own[0] += bits != __float_as_uint(__ldg(result + i));
#pragma unroll
    for (int k = 0; k < 5; ++k) own[1 + k] += bits != __float_as_uint(others[k]);
    own[6] += (bits & 0x7f800000u) == 0 && (bits & 0x7fffffffu) != 0;
  }
#pragma unroll
  for (int k = 0; k < 7; ++k) {
    if (own[k] != 0) atomicAdd(counts + k, own[k]);
  }
}
#endif

constexpr int kWords = 4;
constexpr u32 kLanes = kWords * kPack;

union Vector {
  uint4 whole;
  u32 words[kWords];
};

#if DATA == 0
__device__ __forceinline__ u32 word_of(float bits) { return __float_as_uint(bits); }
__device__ __forceinline__ float element_of(u32 word) { return __uint_as_float(word); }
#else
__device__ __forceinline__ u32 word_of(u16 bits) { return bits; }
__device__ __forceinline__ u16 element_of(u32 word) { return static_cast<u16>(word); }
#endif

extern "C" __global__ void __launch_bounds__(256)
    normalise(const Data* __restrict__ input, const Parameter* __restrict__ weight,
              const Parameter* __restrict__ bias, const float* __restrict__ mean,
              const float* __restrict__ deviation, const Data* __restrict__ other,
              Data* __restrict__ result, u32 elements, u32 channels, u32 plane, float slope) {
  const Channels parameters = {mean, deviation, weight, bias};
  u32 threads = gridDim.x * blockDim.x;
  const u32 thread = blockIdx.x * blockDim.x + threadIdx.x;
#if WAY == 0
  for (u32 i = thread; i < elements; i += threads) {
    const Channel channel = parameters.at(i / plane % channels);
    float values[2] = {normalised(widened<DATA>(__ldg(input + i)), channel), 0.0f};
    result[i] = element_of(finished(values, ADD ? word_of(__ldg(other + i)) : 0, slope));
  }
#else
  constexpr u32 kAhead = 2;  // vectors that a thread loads before it computes
  const uint4* const inputs = reinterpret_cast<const uint4*>(input);
  const uint4* const others = reinterpret_cast<const uint4*>(other);
  uint4* const results = reinterpret_cast<uint4*>(result);
  const u32 vectors = elements / kLanes;
#if WAY == 1
  // A thread stays with its channels.
  const u32 columns = channels / kLanes;
  threads -= threads % columns;
  if (thread >= threads) return;
  Channel own[kLanes];
#pragma unroll
  for (u32 k = 0; k < kLanes; ++k) own[k] = parameters.at(thread % columns * kLanes + k);
#else
  const u32 columns = plane / kLanes;
#endif
  for (u32 first = thread; first < vectors; first += kAhead * threads) {
    Vector in[kAhead];
    Vector add[kAhead];
#pragma unroll
    for (u32 n = 0; n < kAhead; ++n) {
      const u32 i = first + n * threads;
      if (i >= vectors) break;
      in[n].whole = __ldg(inputs + i);
      if (ADD) add[n].whole = __ldg(others + i);
    }
#pragma unroll
    for (u32 n = 0; n < kAhead; ++n) {
      const u32 i = first + n * threads;
      if (i >= vectors) break;
#if WAY == 2
      const Channel channel = parameters.at(i / columns % channels);
#endif
      Vector out;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        float values[kPack];
        unpack(in[n].words[w], values);
#pragma unroll
        for (int k = 0; k < kPack; ++k) {
#if WAY == 1
          const Channel& channel = own[w * kPack + k];
#endif
          values[k] = normalised(values[k], channel);
        }
        out.words[w] = finished(values, ADD ? add[n].words[w] : 0, slope);
      }
      results[i] = out.whole;
    }
  }
#endif
}
)cuda";

}  // namespace lms::torch
