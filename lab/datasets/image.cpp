#include "lab/datasets/image.h"

#include <algorithm>
#include <cmath>

#include "lab/datasets/files.h"
#include "lab/datasets/jpeg.h"
#include "lab/datasets/png.h"

namespace lms::data {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;

}  // namespace

Image read_image(const std::string& path, const ImageLimits& limits) {
  const std::vector<std::uint8_t> file = read_bytes(path, kMostBytes);
  if (is_png(file)) return decode_png(file, path, limits);
  if (is_jpeg(file)) return decode_jpeg(file, path, limits);
  fail(path, "is neither a PNG nor a JPEG file, by its first bytes");
}

Array<std::uint8_t> read_labels(const std::string& path, const ImageLimits& limits) {
  const std::vector<std::uint8_t> file = read_bytes(path, kMostBytes);
  if (!is_png(file)) fail(path, "is no PNG file, by its first bytes; labels are to be PNG");
  return decode_label_png(file, path, limits);
}

Array<float> to_planes(const Image& image) {
  const std::int64_t count = image.width * image.height;
  Array<float> planes;
  planes.shape = {3, image.height, image.width};
  planes.values.resize(static_cast<std::size_t>(3 * count));
  float* out = planes.values.data();
  const std::uint8_t* from = image.pixels.data();
  for (std::int64_t i = 0; i < count; ++i) {
    // A division, not a product: 255 is then 1, and every value the nearest to n/255.
    out[i] = static_cast<float>(from[3 * i]) / 255.0F;
    out[count + i] = static_cast<float>(from[3 * i + 1]) / 255.0F;
    out[2 * count + i] = static_cast<float>(from[3 * i + 2]) / 255.0F;
  }
  return planes;
}

Image from_planes(const Array<float>& planes) {
  if (planes.shape.size() != 3 || planes.shape[0] != 3) {
    throw DataError("from_planes: an array of 3 x height x width is expected");
  }
  Image image;
  image.height = planes.shape[1];
  image.width = planes.shape[2];
  const std::int64_t count = image.width * image.height;
  image.pixels.resize(static_cast<std::size_t>(3 * count));
  for (std::int64_t channel = 0; channel < 3; ++channel) {
    const float* from = planes.values.data() + channel * count;
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = std::isnan(from[i]) ? 0.0F : std::clamp(from[i], 0.0F, 1.0F);
      image.pixels[static_cast<std::size_t>(3 * i + channel)] =
          static_cast<std::uint8_t>(std::lround(value * 255.0F));
    }
  }
  return image;
}

void write_label_png(const std::string& path, const Array<std::uint8_t>& labels,
                     const Palette& palette) {
  write_bytes(path, encode_label_png(labels, palette, path));
}

void write_rgb_png(const std::string& path, const Image& image) {
  write_bytes(path, encode_png(image, path));
}

}  // namespace lms::data
