#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lms::report {

/// What a colour stands for, and the colour itself on light and on dark ground. A chart names it by
/// its token: classes f-TOKEN fill with it, s-TOKEN draw lines with it.
struct Colour {
  std::string_view token;
  std::string_view light;
  std::string_view dark;
};

/// All colours. Those of methods and lanes can be told apart by people who are colour-blind, and
/// shapes or words tell them apart as well.
const std::vector<Colour>& palette();

/// Contrast of two colours "#rrggbb" after WCAG 2: 1 to 21.
double contrast(std::string_view one, std::string_view other);

enum class Shape { kCircle, kSquare, kDiamond, kUp, kDown };

/// How a method looks and is called, the same in every chart.
struct Look {
  std::string token;
  Shape shape = Shape::kCircle;
  std::string name;  ///< for people: "in memory" for "plain"
  int order = 0;     ///< methods are listed in this order
};
Look look_of(std::string_view method);

/// Declarations of all colours as custom properties.
std::string declare(bool dark);

/// Rules of the charts' classes, in custom properties.
std::string chart_rules();

/// The same with the colours themselves, light, and dark where that is preferred: for pictures that
/// stand alone, whose viewers may know no custom properties.
std::string alone_rules();

}  // namespace lms::report
