#include "lab/datasets/image.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "lab/datasets/exif.h"
#include "lab/datasets/jpeg.h"
#include "lab/datasets/png.h"
#include "tests/datasets/fixtures.h"

namespace lms::data {
namespace {

using fixtures::ByteVector;
using fixtures::error_of;
using fixtures::holds;
using fixtures::TempFolder;
using ::testing::Test;

Array<std::uint16_t> indices(std::int64_t height, std::int64_t width, unsigned most) {
  Array<std::uint16_t> values{{height, width}, {}};
  for (std::int64_t i = 0; i < height * width; ++i) {
    values.values.push_back(static_cast<std::uint16_t>((i * 5 + i / 3) % (most + 1)));
  }
  return values;
}

TEST(Png, IndicesAreReadAsStoredAtEveryBitDepth) {
  for (const int type : {0, 3}) {
    for (const int depth : {1, 2, 4, 8, 16}) {
      if (type == 3 && depth == 16) continue;
      const unsigned most = std::min(255U, (1U << static_cast<unsigned>(depth)) - 1);
      const Array<std::uint16_t> stored = indices(5, 13, most);
      const ByteVector file = fixtures::indexed_png(stored, type, depth);
      const Array<std::uint8_t> read = decode_label_png(file, "x.png", {});
      EXPECT_EQ(read.shape, stored.shape);
      EXPECT_TRUE(std::equal(read.values.begin(), read.values.end(), stored.values.begin(),
                             stored.values.end()))
          << "colour type " << type << ", " << depth << " bits";
    }
  }
}

TEST(Png, LabelsThatCannotBeLabelsAreErrors) {
  const ByteVector color = fixtures::color_png(4, 3, 2, 8);
  EXPECT_TRUE(holds(error_of([&] { (void)decode_label_png(color, "c.png", {}); }),
                    "c.png: PNG header, colour type 2"));
  Array<std::uint16_t> deep = indices(2, 3, 200);
  deep.values[4] = 300;
  const ByteVector file = fixtures::indexed_png(deep, 0, 16);
  EXPECT_TRUE(holds(error_of([&] { (void)decode_label_png(file, "d.png", {}); }),
                    "d.png: pixel (1, 1): label id 300 is out of range"));
}

TEST(Png, ImagesBecomeRgb) {
  const Image rgb = decode_png(fixtures::color_png(4, 3, 2, 8), "x", {});
  EXPECT_EQ(rgb.width, 4);
  EXPECT_EQ(rgb.height, 3);
  ASSERT_EQ(rgb.pixels.size(), 36U);
  for (std::size_t i = 0; i < 36; ++i) EXPECT_EQ(rgb.pixels[i], static_cast<std::uint8_t>(7 * i));

  const Image with_alpha = decode_png(fixtures::color_png(4, 3, 6, 8), "x", {});
  EXPECT_EQ(with_alpha.pixels[3], 28);  // the fifth byte of the file's: the fourth was alpha

  const Image deep = decode_png(fixtures::color_png(4, 3, 2, 16), "x", {});
  ASSERT_EQ(deep.pixels.size(), 36U);
  EXPECT_EQ(deep.pixels[1], 21);  // the high byte of the second sample: little-endian here

  const Image grey = decode_png(fixtures::indexed_png(indices(3, 4, 255), 0, 8), "x", {});
  EXPECT_EQ(grey.pixels[3], 5);
  EXPECT_EQ(grey.pixels[5], 5);
  const Image palette = decode_png(fixtures::indexed_png(indices(3, 4, 255), 3, 8), "x", {});
  EXPECT_EQ(palette.pixels[3], 255 - 5 / 2);
  EXPECT_EQ(palette.pixels[5], 7);
}

TEST(Png, EveryTruncationIsAnErrorOrAWholeImage) {
  const ByteVector whole = fixtures::indexed_png(indices(20, 30, 255), 3, 8);
  const Array<std::uint8_t> labels = decode_label_png(whole, "x", {});
  std::size_t refused = 0;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const ByteVector part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    try {
      EXPECT_EQ(decode_label_png(part, "x", {}).values, labels.values) << size;
    } catch (const DataError&) {
      ++refused;
    }
  }
  EXPECT_GE(refused, whole.size() - 16);  // the last chunk alone says nothing of the image
}

TEST(Png, WhatIsWrittenIsReadAgain) {
  const TempFolder folder;
  Array<std::uint8_t> labels{{9, 11}, {}};
  for (int i = 0; i < 99; ++i) labels.values.push_back(static_cast<std::uint8_t>(i * 3));
  write_label_png(folder.file("labels.png"), labels, {{1, 2, 3}, {4, 5, 6}});
  const Array<std::uint8_t> read = read_labels(folder.file("labels.png"));
  EXPECT_EQ(read.shape, labels.shape);
  EXPECT_EQ(read.values, labels.values);
  const Image colors = read_image(folder.file("labels.png"));
  EXPECT_EQ(colors.pixels[0], 1);  // id 0
  EXPECT_EQ(colors.pixels[3], 3);  // id 3: beyond the palette, grey

  const Image image = fixtures::gradient(17, 5);
  write_rgb_png(folder.file("image.png"), image);
  EXPECT_EQ(read_image(folder.file("image.png")).pixels, image.pixels);
  EXPECT_EQ(from_planes(to_planes(image)).pixels, image.pixels);

  EXPECT_TRUE(holds(error_of([&] { write_rgb_png(folder.path() + "/none/x.png", image); }),
                    "none/x.png: could not be written"));
}

TEST(Png, HugeClaimsAreRefusedBeforeMemoryIsTaken) {
  ByteVector file = fixtures::indexed_png(indices(2, 2, 1), 0, 8);
  // Width and height in the header, whose checksum is then wrong; so through the limits alone.
  EXPECT_TRUE(holds(error_of([&] {
                      (void)decode_png(fixtures::color_png(40, 30, 2, 8), "big.png",
                                       {.side = 100, .pixels = 1000});
                    }),
                    "big.png: PNG header: 40 x 30 pixels; at most 1000"));
  file[16] = 0x7F;
  EXPECT_NE(error_of([&] { (void)decode_png(file, "x", {}); }), "");
}

/// Mean difference of two images' bytes.
double distance(const Image& a, const Image& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.pixels.size(); ++i) {
    sum += std::abs(static_cast<double>(a.pixels[i]) - b.pixels[i]);
  }
  return sum / static_cast<double>(a.pixels.size());
}

TEST(Jpeg, ColourGreyAndProgressiveBecomeRgb) {
  const Image image = fixtures::gradient(40, 24);
  for (const bool progressive : {false, true}) {
    const Image read =
        decode_jpeg(fixtures::jpeg_bytes(image, {.progressive = progressive}), "x", {});
    ASSERT_EQ(read.pixels.size(), image.pixels.size());
    EXPECT_LT(distance(read, image), 3);
  }
  const Image grey = decode_jpeg(fixtures::jpeg_bytes(image, {.grey = true}), "x", {});
  ASSERT_EQ(grey.pixels.size(), image.pixels.size());
  for (std::size_t i = 0; i < grey.pixels.size(); i += 3) {
    ASSERT_EQ(grey.pixels[i], grey.pixels[i + 1]);
    ASSERT_EQ(grey.pixels[i], grey.pixels[i + 2]);
  }
}

TEST(Jpeg, CmykIsRefused) {
  const ByteVector file = fixtures::jpeg_bytes(fixtures::gradient(16, 16), {.cmyk = true});
  EXPECT_EQ(error_of([&] { (void)decode_jpeg(file, "c.jpg", {}); }),
            "c.jpg: JPEG in CMYK: convert it to RGB");
}

TEST(Jpeg, EveryTruncationIsAnError) {
  for (const bool progressive : {false, true}) {
    const ByteVector whole =
        fixtures::jpeg_bytes(fixtures::gradient(48, 32), {.progressive = progressive});
    for (std::size_t size = 0; size + 2 < whole.size(); size += 7) {
      const ByteVector part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
      EXPECT_NE(error_of([&] { (void)decode_jpeg(part, "x", {}); }), "") << size;
    }
  }
}

TEST(Jpeg, HugeClaimsAreRefused) {
  ByteVector file = fixtures::jpeg_bytes(fixtures::gradient(16, 16), {});
  const std::vector<std::uint8_t> frame = {0xFF, 0xC0};
  auto at = std::search(file.begin(), file.end(), frame.begin(), frame.end());
  ASSERT_NE(at, file.end());
  std::fill_n(at + 5, 4, std::uint8_t{0xFE});  // height and width
  EXPECT_TRUE(holds(error_of([&] { (void)decode_jpeg(file, "h.jpg", {}); }),
                    "h.jpg: JPEG header: 65278 x 65278 pixels"));
  at[5] = at[7] = 0x27;  // 10,000 a side pass the limit, but not in so short a file
  at[6] = at[8] = 0x10;
  EXPECT_TRUE(holds(error_of([&] { (void)decode_jpeg(file, "h.jpg", {}); }),
                    "h.jpg: truncated or broken JPEG: too short"));
}

TEST(Exif, EveryOrientationIsCarriedOut) {
  // Four colours in the corners: where the upright image's top left one is, and the next to its
  // right, for orientations 1 to 8, as the standard defines them by the stored rows and columns.
  const std::int64_t width = 32;
  const std::int64_t height = 16;
  Image stored{width, height, std::vector<std::uint8_t>(3 * 32 * 16)};
  const auto corner = [](std::int64_t x, std::int64_t y, std::int64_t w, std::int64_t h) {
    return (y < h / 2 ? 0 : 2) + (x < w / 2 ? 0 : 1);  // 0 1 over 2 3
  };
  const std::array<std::array<std::uint8_t, 3>, 4> colors = {
      {{250, 10, 10}, {10, 250, 10}, {10, 10, 250}, {250, 250, 250}}};
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      std::copy_n(colors[static_cast<std::size_t>(corner(x, y, width, height))].begin(), 3,
                  stored.pixels.begin() + 3 * (y * width + x));
    }
  }
  // What the upright image shows: stored corners, in the order 0 1 over 2 3.
  const std::array<std::array<int, 4>, 9> expected = {{{0, 1, 2, 3},
                                                       {0, 1, 2, 3},
                                                       {1, 0, 3, 2},
                                                       {3, 2, 1, 0},
                                                       {2, 3, 0, 1},
                                                       {0, 2, 1, 3},
                                                       {2, 0, 3, 1},
                                                       {3, 1, 2, 0},
                                                       {1, 3, 0, 2}}};
  for (int orientation = 0; orientation <= 8; ++orientation) {
    for (const bool big_endian : {false, true}) {
      const Image read = decode_jpeg(
          fixtures::jpeg_bytes(stored, {.orientation = orientation, .big_endian = big_endian}), "x",
          {});
      const bool exchanged = orientation >= 5;
      ASSERT_EQ(read.width, exchanged ? height : width) << orientation;
      ASSERT_EQ(read.height, exchanged ? width : height) << orientation;
      for (int place = 0; place < 4; ++place) {
        const std::int64_t x = place % 2 == 0 ? 3 : read.width - 4;
        const std::int64_t y = place < 2 ? 3 : read.height - 4;
        const std::uint8_t* pixel = read.pixels.data() + 3 * (y * read.width + x);
        const auto& color = colors[static_cast<std::size_t>(
            expected[static_cast<std::size_t>(orientation)][static_cast<std::size_t>(place)])];
        for (std::size_t channel = 0; channel < 3; ++channel) {
          EXPECT_NEAR(pixel[channel], color[channel], 12)
              << "orientation " << orientation << ", place " << place;
        }
      }
    }
  }
}

TEST(Exif, BrokenDataMeanUpright) {
  EXPECT_EQ(exif_orientation({}), 1);
  const ByteVector endless = {'E', 'x', 'i', 'f', 0, 0,    'I',  'I', 42,
                              0,   8,   0,   0,   0, 0xFF, 0xFF, 1,   2};
  EXPECT_EQ(exif_orientation(endless), 1);
  const ByteVector far_away = {'E', 'x', 'i',  'f',  0,    0,    'M', 'M',
                               0,   42,  0xFF, 0xFF, 0xFF, 0xFF, 1,   2};
  EXPECT_EQ(exif_orientation(far_away), 1);
}

TEST(Image, FilesThatAreNoneAreErrors) {
  const TempFolder folder;
  fixtures::write_text(folder.file("text.png"), "not a picture");
  EXPECT_TRUE(holds(error_of([&] { (void)read_image(folder.file("text.png")); }),
                    "text.png: is neither a PNG nor a JPEG"));
  EXPECT_TRUE(
      holds(error_of([&] { (void)read_labels(folder.file("text.png")); }), "text.png: is no PNG"));
  EXPECT_TRUE(
      holds(error_of([&] { (void)read_image(folder.file("none.png")); }), "cannot be opened"));
  EXPECT_NE(error_of([&] { (void)read_image(folder.path()); }), "");
}

}  // namespace
}  // namespace lms::data
