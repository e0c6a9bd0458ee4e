// Escaping, numbers for people, and the widths of texts.

#include "lab/report/text.h"

#include <gtest/gtest.h>

#include <limits>

namespace lms::report {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Escape, MarkupAndQuotes) { EXPECT_EQ(escape("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;"); }

TEST(Escape, ControlCharactersAndMarksOfDirectionBecomeSpaces) {
  EXPECT_EQ(escape(std::string_view("a\0b\x1b[1m\n", 8)), "a b [1m ");
  EXPECT_EQ(escape("a\u202eb\u2066c\x7f"), "a b c ");
}

TEST(Escape, WhatIsNoUtf8IsReplaced) {
  EXPECT_EQ(escape("a\xff"
                   "b"),
            "a\ufffdb");
  EXPECT_EQ(escape("\xc0\xaf"), "\ufffd\ufffd");            // an overlong slash
  EXPECT_EQ(escape("\xed\xa0\x80"), "\ufffd\ufffd\ufffd");  // half of a pair
  EXPECT_EQ(escape("\xe2\x82"), "\ufffd\ufffd");            // cut off
  EXPECT_EQ(escape("\xef\xbf\xbf"), "\ufffd\ufffd\ufffd");  // no XML has it
  EXPECT_EQ(escape("€ 𝄞 é"), "€ 𝄞 é");
}

TEST(Numbers, ThreeDigits) {
  EXPECT_EQ(format_number(0), "0");
  EXPECT_EQ(format_number(1.4), "1.4");
  EXPECT_EQ(format_number(9.996), "10");
  EXPECT_EQ(format_number(99.95), "100");
  EXPECT_EQ(format_number(0.0421), "0.0421");
  EXPECT_EQ(format_number(-5.25), "−5.25");
  EXPECT_EQ(format_number(9120), "9120");
  EXPECT_EQ(format_number(18240), "18\u202f240");
  EXPECT_EQ(format_number(1234567), "1\u202f234\u202f567");
  EXPECT_EQ(format_number(kNan), "–");
  EXPECT_EQ(format_number(std::numeric_limits<double>::infinity()), "–");
}

TEST(Numbers, WithUnits) {
  EXPECT_EQ(format_factor(8.35), "8.35×");
  EXPECT_EQ(format_factor(8.499), "8.5×");
  EXPECT_EQ(format_factor(10.24), "10.2×");
  EXPECT_EQ(format_share(0.95), "95\u00a0%");
  EXPECT_EQ(format_share(0.0004), "<0.1\u00a0%");
  EXPECT_EQ(format_change(0.128), "+12.8\u00a0%");
  EXPECT_EQ(format_change(1.0642), "+106\u00a0%");
  EXPECT_EQ(format_share(0.9996), "100\u00a0%");
  EXPECT_EQ(format_share(0.728), "72.8\u00a0%");
  EXPECT_EQ(format_change(-0.053), "−5.3\u00a0%");
  EXPECT_EQ(format_change(0.006), "+0.6\u00a0%");
  EXPECT_EQ(format_change(0.0001), "±0\u00a0%");
  EXPECT_EQ(format_change(-0.0001), "±0\u00a0%");
  EXPECT_EQ(format_change(0), "0\u00a0%");
  EXPECT_EQ(format_change(9.98), "+998\u00a0%");
  EXPECT_EQ(format_traffic(826e9), "826\u00a0GB");
  EXPECT_EQ(format_traffic(1.4e12), "1.4\u00a0TB");
  EXPECT_EQ(format_traffic(999.9e6), "1\u00a0GB");
  EXPECT_EQ(format_memory(17179869184.0), "16\u00a0GiB");
  EXPECT_EQ(format_link(71.4e9), "71.4\u00a0GB/s");
  EXPECT_EQ(format_seconds(0.1556), "156\u00a0ms");
  EXPECT_EQ(format_seconds(1.2e-5), "12\u00a0µs");
  EXPECT_EQ(format_seconds(kNan), "–");
}

TEST(Numbers, Coordinates) {
  EXPECT_EQ(coordinate(12), "12");
  EXPECT_EQ(coordinate(12.345), "12.35");
  EXPECT_EQ(coordinate(-0.001), "0");
  EXPECT_EQ(coordinate(kNan), "0");
}

TEST(Width, GrowsWithTextAndSize) {
  EXPECT_EQ(text_width("", 12), 0);
  EXPECT_LT(text_width("lil", 12), text_width("WWW", 12));
  EXPECT_DOUBLE_EQ(text_width("abc", 24), 2 * text_width("abc", 12));
}

TEST(Width, ShortenedTextsFitAndStayUtf8) {
  const std::string text = "größte Auflösung über 9000² × 3";
  for (double width = 14; width < 300; width += 3) {
    const std::string cut = shorten(text, 12, width);
    EXPECT_LE(text_width(cut, 12), width) << cut;
    EXPECT_EQ(escape(cut).find("\ufffd"), std::string::npos) << cut;
  }
  EXPECT_EQ(shorten(text, 12, 1000), text);
}

}  // namespace
}  // namespace lms::report
