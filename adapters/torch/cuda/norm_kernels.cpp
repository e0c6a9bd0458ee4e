#include "adapters/torch/cuda/norm_kernels.h"

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <exception>
#include <string>

#include "adapters/torch/cuda/norm_kernel_source.h"
#include "base/error.h"

namespace lms::torch {
namespace {

constexpr std::uint32_t kVectorBytes = 16;
constexpr unsigned kThreads = 256;
/// Conversions to bfloat16 are the device's own from there on; PyTorch makes other NaNs before.
constexpr int kLeastMajor = 8;

std::uint32_t lanes_of(const NormChain& chain) {
  return kVectorBytes / static_cast<std::uint32_t>(c10::elementSize(chain.type));
}

/// As the kernels' source has it.
std::uint32_t number_of(c10::ScalarType type) {
  if (type == c10::ScalarType::BFloat16) return 1;
  return type == c10::ScalarType::Half ? 2 : 0;
}

bool is_vector(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % kVectorBytes == 0;
}

}  // namespace

bool NormKernels::available() const noexcept {
  if (failed_) return false;
  int known = multiprocessors_;
  if (known < 0) {
    int major = 0;
    known = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_) != cudaSuccess ||
        major < kLeastMajor ||
        cudaDeviceGetAttribute(&known, cudaDevAttrMultiProcessorCount, device_) != cudaSuccess) {
      known = 0;
    }
    multiprocessors_ = known;
  }
  return known > 0;
}

void NormKernels::make_current() const {
  // The driver, unlike the runtime, does nothing in a thread that has not chosen a device.
  if (cudaSetDevice(device_) != cudaSuccess) throw Error("CUDA: the device cannot be chosen");
}

NormKernels::Way NormKernels::way_of(const NormChain& chain) {
  const std::uint32_t lanes = lanes_of(chain);
  if (chain.plane == 1) return chain.channels % lanes == 0 ? Way::kChannels : Way::kElements;
  return chain.plane % lanes == 0 ? Way::kPlanes : Way::kElements;
}

bool NormKernels::aligned(const NormChain& chain, const NormChainMemory& memory) {
  return is_vector(memory.input) && is_vector(memory.result) &&
         (chain.other == nullptr || is_vector(memory.other));
}

CUfunction NormKernels::kernel_for(const NormChain& chain, Way way) {
  const std::uint32_t data = number_of(chain.type);
  const std::uint32_t parameters = number_of(chain.parameters);
  const std::uint32_t add = chain.other != nullptr ? 1 : 0;
  const std::uint32_t relu = chain.relu ? 1 : 0;
  const auto walk = static_cast<std::uint32_t>(way);
  const std::uint32_t key = (((data * 3 + parameters) * 3 + walk) * 2 + add) * 2 + relu;
  const std::lock_guard guard(mutex_);
  if (const auto found = kernels_.find(key); found != kernels_.end()) return found->second;
  if (!maker_) maker_.emplace();
  const auto option = [](const char* name, std::uint32_t value) {
    return std::string("-D") + name + "=" + std::to_string(value);
  };
  const CUfunction kernel =
      maker_->make(kNormKernelSource, "normalise",
                   {"--std=c++17", "--fmad=false", "--ftz=false", option("DATA", data),
                    option("PARAMETERS", parameters), option("ADD", add), option("RELU", relu),
                    option("WAY", walk)});
  return kernels_[key] = kernel;
}

bool NormKernels::prepare(const NormChain& chain) noexcept {
  if (!available()) return false;
  try {
    make_current();
    // Which of them, the addresses will say; the second is seldom wanted.
    (void)kernel_for(chain, way_of(chain));
    return true;
  } catch (const std::exception&) {
    failed_ = true;
    return false;
  }
}

unsigned NormKernels::blocks_for(const NormChain& chain, Way way) const {
  constexpr unsigned kBlocksEach = 8;  // of a multiprocessor's 2048 threads
  const std::uint32_t lanes = way == Way::kElements ? 1 : lanes_of(chain);
  const std::uint32_t work = chain.elements / lanes;
  const auto blocks = [](std::uint32_t threads) { return (threads + kThreads - 1) / kThreads; };
  const unsigned most = kBlocksEach * static_cast<unsigned>(multiprocessors_.load());
  const unsigned least = way == Way::kChannels ? blocks(chain.channels / lanes) : 1;
  return std::max(std::min(blocks(work), most), least);
}

bool NormKernels::launch(const NormChain& chain, const NormChainMemory& memory) noexcept {
  try {
    make_current();
    const Way way = aligned(chain, memory) ? way_of(chain) : Way::kElements;
    const CUfunction kernel = kernel_for(chain, way);
    NormChainMemory at = memory;
    std::uint32_t elements = chain.elements;
    std::uint32_t channels = chain.channels;
    std::uint32_t plane = chain.plane;
    std::array<void*, 10> arguments{&at.input, &at.weight, &at.bias,  &at.mean,  &at.deviation,
                                    &at.other, &at.result, &elements, &channels, &plane};
    const auto stream =
        c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device_)).stream();
    if (maker_->launch(kernel, blocks_for(chain, way), kThreads, stream, arguments.data())) {
      return true;
    }
  } catch (const std::exception&) {
    // As below.
  }
  failed_ = true;
  return false;
}

}  // namespace lms::torch
