#include "lab/datasets/coco_file.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lms::data;
  fuzz::refusable([&] {
    const CocoFile file = parse_coco({data, size}, "coco");
    for (const CocoImage& image : file.images) {
      if (image.width * image.height > fuzz::kLimits.pixels) continue;
      fuzz::refusable([&] { (void)label_image(image, "coco"); });
    }
  });
  return 0;
}
