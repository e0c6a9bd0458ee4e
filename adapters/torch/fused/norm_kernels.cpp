#include "adapters/torch/fused/norm_kernels.h"

#include <algorithm>
#include <array>
#include <exception>
#include <string>
#include <utility>

#include "adapters/torch/fused/norm_kernel_source.h"
#include "base/error.h"

namespace lms::torch {
namespace {

constexpr unsigned kThreads = 256;

std::uint32_t lanes_of(const NormChain& chain) {
  return Kernels::kVectorBytes / static_cast<std::uint32_t>(c10::elementSize(chain.type));
}

/// As the kernels' source has it.
std::uint32_t number_of(c10::ScalarType type) {
  if (type == c10::ScalarType::BFloat16) return 1;
  return type == c10::ScalarType::Half ? 2 : 0;
}

std::string option(const char* name, std::uint32_t value) {
  return std::string("-D") + name + "=" + std::to_string(value);
}

}  // namespace

NormKernels::Way NormKernels::way_of(const NormChain& chain) {
  const std::uint32_t lanes = lanes_of(chain);
  if (chain.plane == 1) return chain.channels % lanes == 0 ? Way::kChannels : Way::kElements;
  return chain.plane % lanes == 0 ? Way::kPlanes : Way::kElements;
}

bool NormKernels::aligned(const NormChain& chain, const NormChainMemory& memory) {
  return Kernels::is_vector(memory.input) && Kernels::is_vector(memory.result) &&
         (chain.other == nullptr || Kernels::is_vector(memory.other));
}

Kernels::Kernel NormKernels::kernel_for(const NormChain& chain, Way way) {
  const std::uint32_t data = number_of(chain.type);
  const std::uint32_t parameters = number_of(chain.parameters);
  const std::uint32_t add = chain.other != nullptr ? 1 : 0;
  const std::uint32_t leaky = chain.slope ? 2 : 1;
  const std::uint32_t relu = chain.relu ? leaky : 0;
  const auto walk = static_cast<std::uint32_t>(way);
  const std::uint32_t flushes = chain.rounding == Rounding::kFlushed ? 1 : 0;
  const std::uint32_t key =
      ((((data * 3 + parameters) * 3 + walk) * 2 + add) * 3 + relu) * 2 + flushes;
  const std::lock_guard guard(mutex_);
  if (const auto found = made_.find(key); found != made_.end()) return found->second;
  return made_[key] = make("normalise",
                           {option("DATA", data), option("PARAMETERS", parameters),
                            option("ADD", add), option("RELU", relu), option("WAY", walk)},
                           chain.rounding);
}

Kernels::Kernel NormKernels::trial_for(Rounding rounding) {
  const std::lock_guard guard(mutex_);
  if (const auto found = trials_.find(rounding); found != trials_.end()) return found->second;
  return trials_[rounding] = make("compare",
                                  {"-DTRIAL", option("DATA", 0), option("PARAMETERS", 0),
                                   option("ADD", 0), option("RELU", 0), option("WAY", 0)},
                                  rounding);
}

Kernels::Kernel NormKernels::make(const char* name, std::vector<std::string> options,
                                  Rounding rounding) {
  options.emplace_back("--std=c++17");
  options.emplace_back("--fmad=false");
  options.emplace_back(rounding == Rounding::kFlushed ? "--ftz=true" : "--ftz=false");
  return kernels_.make(kNormKernelSource, name, std::move(options));
}

bool NormKernels::prepare(const NormChain& chain) noexcept {
  if (!available()) return false;
  try {
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
  const unsigned most = kBlocksEach * static_cast<unsigned>(kernels_.multiprocessors());
  const unsigned least = way == Way::kChannels ? blocks(chain.channels / lanes) : 1;
  return std::max(std::min(blocks(work), most), least);
}

bool NormKernels::launch(const NormChain& chain, const NormChainMemory& memory) noexcept {
  try {
    const Way way = aligned(chain, memory) ? way_of(chain) : Way::kElements;
    const Kernels::Kernel kernel = kernel_for(chain, way);
    NormChainMemory at = memory;
    std::uint32_t elements = chain.elements;
    std::uint32_t channels = chain.channels;
    std::uint32_t plane = chain.plane;
    float slope = chain.slope.value_or(0.0F);
    std::array<void*, 11> arguments{&at.input,     &at.weight, &at.bias,   &at.mean,
                                    &at.deviation, &at.other,  &at.result, &elements,
                                    &channels,     &plane,     &slope};
    if (kernels_.launch(kernel, blocks_for(chain, way), kThreads, arguments.data())) return true;
  } catch (const std::exception&) {
    // As below.
  }
  failed_ = true;
  return false;
}

NormTrial NormKernels::examine(const NormChain& chain, const NormChainMemory& memory,
                               void* counts) noexcept {
  // So many elements must tell the kernel's way from each of the others.
  constexpr std::uint32_t kEvidence = 500;
  NormTrial trial;
  try {
    for (const Rounding rounding : {Rounding::kPlain, Rounding::kFlushed}) {
      std::array<std::uint32_t, kTrialCounts> found{};
      NormChainMemory at = memory;
      NormChain geometry = chain;
      std::array<void*, 10> arguments{
          &at.input,  &at.weight, &at.bias,           &at.mean,           &at.deviation,
          &at.result, &counts,    &geometry.elements, &geometry.channels, &geometry.plane};
      kernels_.clear(counts, sizeof(found));
      if (!kernels_.launch(trial_for(rounding), blocks_for(chain, Way::kElements), kThreads,
                           arguments.data())) {
        return {};
      }
      kernels_.read(found.data(), counts, sizeof(found));
      if (found[0] > 0) continue;
      trial.certain = std::all_of(found.begin() + 1, found.begin() + 6,
                                  [](std::uint32_t count) { return count >= kEvidence; }) &&
                      (rounding == Rounding::kFlushed || found[6] > 0);
      if (!trial.certain) return {};
      trial.rounding = rounding;
      NormChain same = chain;
      same.rounding = rounding;
      trial.ms = kernels_.time([&] {
        if (!prepare(same) || !launch(same, memory)) throw Error("a kernel does not run");
      });
      return trial;
    }
    trial.certain = true;
    return trial;
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace lms::torch
