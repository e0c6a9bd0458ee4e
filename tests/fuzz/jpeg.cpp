#include "lab/datasets/jpeg.h"

#include <cstdlib>

#include "lab/datasets/exif.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lms::data;
  const ByteView file(data, size);
  fuzz::refusable([&] {
    const Image image = decode_jpeg(file, "jpeg", fuzz::kLimits);
    if (std::ssize(image.pixels) != 3 * image.width * image.height) std::abort();
  });
  // The same bytes as EXIF data, behind their mark.
  std::vector<std::uint8_t> exif = {'E', 'x', 'i', 'f', 0, 0};
  exif.insert(exif.end(), file.begin(), file.end());
  const int orientation = exif_orientation(exif);
  if (orientation < 1 || orientation > 8) std::abort();
  return 0;
}
