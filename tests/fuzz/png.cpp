#include "lab/datasets/png.h"

#include <zlib.h>

#include <cstdlib>

#include "tests/fuzz/fuzz.h"

namespace {

std::uint32_t u32(const std::uint8_t* at) {
  return std::uint32_t{at[0]} << 24U | std::uint32_t{at[1]} << 16U | std::uint32_t{at[2]} << 8U |
         at[3];
}

}  // namespace

/// Checksums are made right again: with wrong ones no input would get far.
std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                    unsigned seed) {
  size = LLVMFuzzerMutate(data, size, most);
  if (seed % 16 == 0) return size;
  for (std::size_t at = 8; at + 12 <= size;) {
    const std::size_t length = u32(data + at);
    if (length > size - at - 12) break;
    const auto sum =
        static_cast<std::uint32_t>(crc32(0, data + at + 4, static_cast<unsigned>(length + 4)));
    for (unsigned i = 0; i < 4; ++i) {
      data[at + 8 + length + i] = static_cast<std::uint8_t>(sum >> (24 - 8 * i));
    }
    at += 12 + length;
  }
  return size;
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lms::data;
  const ByteView file(data, size);
  fuzz::refusable([&] {
    const Image image = decode_png(file, "png", fuzz::kLimits);
    if (std::ssize(image.pixels) != 3 * image.width * image.height) std::abort();
  });
  fuzz::refusable([&] {
    const Array<std::uint8_t> labels = decode_label_png(file, "png", fuzz::kLimits);
    if (std::ssize(labels.values) != labels.shape[0] * labels.shape[1]) std::abort();
  });
  return 0;
}
