#pragma once

#include <string>
#include <string_view>

namespace lms {

/// Where something is in a picture, in pixels from the upper left corner.
struct SvgBox {
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
};

/// Writes an SVG document element by element. Attributes are text that is put into the element as
/// it is; contents and tooltips are escaped.
class SvgWriter {
 public:
  SvgWriter(double width, double height);

  void rect(const SvgBox& box, std::string_view attributes, std::string_view tooltip = {});
  void line(double x1, double y1, double x2, double y2, std::string_view attributes);
  void text(double x, double y, std::string_view attributes, std::string_view content);
  /// `data` is the path's own language.
  void path(std::string_view data, std::string_view attributes);
  /// Definitions, and other things that are put in as they are.
  void raw(std::string_view text) { text_ += text; }

  [[nodiscard]] std::string finish() &&;

 private:
  std::string text_;
};

/// With as many decimals as a picture needs.
std::string svg_number(double value);

}  // namespace lms
