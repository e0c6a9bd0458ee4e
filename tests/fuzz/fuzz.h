#pragma once

// What a fuzzer may see: a result, or a DataError. Anything else is a find.

#include <cstddef>
#include <cstdint>

#include "lab/datasets/image.h"

namespace lms::data::fuzz {

/// Small, so that an input takes little time and memory.
inline constexpr ImageLimits kLimits{.side = 2000, .pixels = 1 << 20};

template <typename Call>
void refusable(const Call& call) {
  try {
    call();
  } catch (const DataError&) {  // what bad input is to end in
  }
}

}  // namespace lms::data::fuzz

extern "C" {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);
std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                    unsigned seed);
}
