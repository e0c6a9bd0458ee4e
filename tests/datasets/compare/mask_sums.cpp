// lms_mask_sums ANNOTATIONS.json [EVERY]: a line for each annotation: its place in the list (ids
// are not unique in TACO), the mask's area, the places where it changes, column by column, and, for
// every EVERY-th, the CRC-32 of its pixels.

#include <zlib.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>

#include "lab/datasets/coco_file.h"

int main(int argc, char** argv) {
  using namespace lms::data;
  if (argc < 2 || argc > 3) {
    std::cerr << "lms_mask_sums ANNOTATIONS.json [EVERY]\n";
    return 2;
  }
  std::ifstream file(argv[1], std::ios::binary);
  const std::vector<std::uint8_t> json{std::istreambuf_iterator<char>(file), {}};
  const std::size_t every = argc == 3 ? std::strtoul(argv[2], nullptr, 10) : 0;
  try {
    std::size_t count = 0;
    const CocoFile coco = parse_coco(json, argv[1]);
    for (const CocoImage& image : coco.images) {
      for (const CocoAnnotation& annotation : image.annotations) {
        const Mask mask = annotation_mask(image, annotation, argv[1]);
        std::cout << annotation.number << ' ' << mask.area() << ' ';
        for (const std::int64_t change : mask.changes) std::cout << change << ',';
        if (every > 0 && count++ % every == 0) {
          const std::vector<std::uint8_t> pixels = mask.pixels();
          std::cout << ' ' << crc32_z(0, pixels.data(), pixels.size());
        }
        std::cout << '\n';
      }
    }
  } catch (const DataError& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
