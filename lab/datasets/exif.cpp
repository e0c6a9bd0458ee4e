#include "lab/datasets/exif.h"

#include <algorithm>
#include <utility>

namespace lms::data {
namespace {

constexpr unsigned kOrientationTag = 0x0112;
constexpr unsigned kShort = 3;

/// Numbers of a TIFF structure; 0 for what lies outside.
class Tiff {
 public:
  explicit Tiff(ByteView bytes) : bytes_(bytes) {
    little_ = bytes.size() >= 2 && bytes[0] == 'I' && bytes[1] == 'I';
    const bool big = bytes.size() >= 2 && bytes[0] == 'M' && bytes[1] == 'M';
    valid_ = (little_ || big) && u16(2) == 42;
  }
  [[nodiscard]] bool valid() const { return valid_; }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  [[nodiscard]] unsigned u16(std::size_t at) const {
    if (at + 2 > bytes_.size()) return 0;
    const unsigned a = bytes_[at];
    const unsigned b = bytes_[at + 1];
    return little_ ? a | b << 8U : a << 8U | b;
  }
  [[nodiscard]] std::uint32_t u32(std::size_t at) const {
    const std::uint32_t a = u16(at);
    const std::uint32_t b = u16(at + 2);
    return little_ ? a | b << 16U : a << 16U | b;
  }

 private:
  ByteView bytes_;
  bool little_ = true;
  bool valid_ = false;
};

}  // namespace

int exif_orientation(ByteView exif) {
  constexpr std::array<std::uint8_t, 6> kMark = {'E', 'x', 'i', 'f', 0, 0};
  if (exif.size() < kMark.size() || !std::equal(kMark.begin(), kMark.end(), exif.begin())) return 1;
  const Tiff tiff(exif.subspan(kMark.size()));
  if (!tiff.valid()) return 1;
  const std::size_t directory = tiff.u32(4);
  const unsigned entries = tiff.u16(directory);
  for (unsigned i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + std::size_t{12} * i;
    if (entry + 12 > tiff.size()) break;
    if (tiff.u16(entry) != kOrientationTag || tiff.u16(entry + 2) != kShort) continue;
    const unsigned value = tiff.u16(entry + 8);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

Image oriented(Image image, int orientation) {
  if (orientation <= 1 || orientation > 8) return image;
  const bool exchange = orientation >= 5;
  Image out;
  out.width = exchange ? image.height : image.width;
  out.height = exchange ? image.width : image.height;
  out.pixels.resize(image.pixels.size());
  for (std::int64_t y = 0; y < out.height; ++y) {
    for (std::int64_t x = 0; x < out.width; ++x) {
      std::int64_t from_x = exchange ? y : x;
      std::int64_t from_y = exchange ? x : y;
      if (orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8) {
        from_x = image.width - 1 - from_x;
      }
      if (orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7) {
        from_y = image.height - 1 - from_y;
      }
      const std::uint8_t* from = image.pixels.data() + 3 * (from_y * image.width + from_x);
      std::copy_n(from, 3, out.pixels.data() + 3 * (y * out.width + x));
    }
  }
  return out;
}

}  // namespace lms::data
