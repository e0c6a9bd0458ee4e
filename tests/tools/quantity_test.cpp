#include "base/quantity.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace lms::tool {
namespace {

TEST(Quantity, BytesInAllTheirUnits) {
  EXPECT_EQ(parse_bytes("123456"), 123456);
  EXPECT_EQ(parse_bytes("17B"), 17);
  EXPECT_EQ(parse_bytes("1KiB"), 1024);
  EXPECT_EQ(parse_bytes("1.5GiB"), 1610612736);
  EXPECT_EQ(parse_bytes("12 GiB"), 12 * kGiB);
  EXPECT_EQ(parse_bytes("2TiB"), 2048 * kGiB);
  EXPECT_EQ(parse_bytes("12G"), 12 * kGiB) << "as Docker and Slurm have it";
  EXPECT_EQ(parse_bytes("1.5 K"), 1536);
  EXPECT_EQ(parse_bytes("800MB"), 800'000'000);
  EXPECT_EQ(parse_bytes("1e9"), 1'000'000'000);
}

TEST(Quantity, PartsOfAWhole) {
  EXPECT_EQ(parse_limit("50%", 1001), 500) << "rounded down";
  EXPECT_EQ(parse_limit("125 %", 1000), 1250);
  EXPECT_EQ(parse_limit("3KiB", 1000), 3072);
}

TEST(Quantity, OtherThingsAreErrors) {
  for (const char* text : {"", "GiB", "-1GiB", "0", "0.5B", "5 gb", "nan", "inf", "1e30", "2e18",
                           "50%", "12GiBs", "0x10"}) {
    try {
      const Bytes bytes = parse_bytes(text);
      ADD_FAILURE() << '\'' << text << "' is " << bytes;
    } catch (const BadSetting& error) {
      EXPECT_NE(std::string(error.what()).find("12GiB"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace lms::tool
