#include "lab/datasets/polygon.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <iterator>

#include "tests/datasets/fixtures.h"

namespace lms::data {
namespace {

struct Golden {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t area = 0;
  std::uint32_t sum = 0;
  std::vector<std::vector<double>> polygons;
};

constexpr double kNumbers[] = {
#include "tests/datasets/polygon_goldens.inc"
};

std::vector<Golden> goldens() {
  std::vector<Golden> all;
  const double* at = std::begin(kNumbers);
  const auto take = [&] { return static_cast<std::int64_t>(*at++); };
  while (at != std::end(kNumbers)) {
    Golden golden;
    golden.height = take();
    golden.width = take();
    golden.area = take();
    golden.sum = static_cast<std::uint32_t>(take());
    golden.polygons.resize(static_cast<std::size_t>(take()));
    for (std::vector<double>& polygon : golden.polygons) {
      const std::int64_t count = take();
      polygon.assign(at, at + count);
      at += count;
    }
    all.push_back(std::move(golden));
  }
  return all;
}

Mask drawn(const Golden& golden) {
  std::vector<Mask> parts;
  for (const std::vector<double>& points : golden.polygons) {
    parts.push_back(polygon_mask(points, golden.height, golden.width));
  }
  return united(parts);
}

TEST(Polygon, MasksAreThoseOfPycocotools) {
  const std::vector<Golden> all = goldens();
  ASSERT_GE(all.size(), 40U);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Golden& golden = all[i];
    const Mask mask = drawn(golden);
    const std::vector<std::uint8_t> pixels = mask.pixels();
    EXPECT_EQ(mask.area(), golden.area) << "case " << i;
    EXPECT_EQ(crc32_z(0, pixels.data(), pixels.size()), golden.sum) << "case " << i;
  }
}

TEST(Polygon, DrawingSetsOnlyTheInside) {
  const std::vector<double> square = {1, 1, 3, 1, 3, 3, 1, 3};
  const Mask mask = polygon_mask(square, 4, 5);
  std::vector<std::uint8_t> image(20, 7);
  mask.draw(image.data(), 9);
  const std::vector<std::uint8_t> expected = {7, 7, 7, 7, 7,  //
                                              7, 9, 9, 7, 7,  //
                                              7, 9, 9, 7, 7,  //
                                              7, 7, 7, 7, 7};
  EXPECT_EQ(image, expected);
  EXPECT_EQ(mask.area(), 4);
}

TEST(Runs, CountsGoDownTheColumns) {
  const std::vector<std::int64_t> runs = {2, 3, 1};
  EXPECT_EQ(runs_mask(runs, 2, 3, "r").pixels(), (std::vector<std::uint8_t>{0, 1, 1, 0, 1, 0}));
  const std::vector<std::int64_t> ones = {0, 6};
  EXPECT_EQ(runs_mask(ones, 2, 3, "r").area(), 6);
}

TEST(Runs, PackedOnesAreThoseOfPycocotools) {
  // mask.encode() of 7 x 9 pixels with rows 2-4 of columns 3-5, (6, 8) and (0, 7) set.
  const Mask mask = packed_runs_mask("g0340005N30", 7, 9, "r");
  std::vector<std::uint8_t> expected(63);
  for (std::size_t y = 2; y < 5; ++y) {
    for (std::size_t x = 3; x < 6; ++x) expected[y * 9 + x] = 1;
  }
  expected[6 * 9 + 8] = 1;
  expected[7] = 1;
  EXPECT_EQ(mask.pixels(), expected);
}

TEST(Runs, ImpossibleOnesAreErrors) {
  const auto error = [](const std::vector<std::int64_t>& runs) {
    return fixtures::error_of([&] { (void)runs_mask(runs, 2, 3, "where"); });
  };
  EXPECT_NE(error({2, 5}).find("where: run 1: a length of 5"), std::string::npos);
  EXPECT_NE(error({-1, 7}).find("run 0: a length of -1"), std::string::npos);
  EXPECT_NE(error({2, 3}).find("add up to 5"), std::string::npos);
  EXPECT_NE(error({INT64_MAX, INT64_MAX}).find("run 0"), std::string::npos);
  for (const char* packed : {"~", "oooooooooooooooooo", "o", "1", "\x01", "N"}) {
    EXPECT_NE(fixtures::error_of([&] { (void)packed_runs_mask(packed, 2, 3, "where"); }), "")
        << packed;
  }
}

}  // namespace
}  // namespace lms::data
