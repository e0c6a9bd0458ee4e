#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/report/palette.h"

namespace lms::report {

/// Where a text was drawn, roughly: for tests of the layout.
struct TextBox {
  double left = 0;
  double right = 0;
  double top = 0;
  double bottom = 0;
  std::string text;
};

enum class Anchor { kStart, kMiddle, kEnd };

/// A chart being drawn, in pixels from the upper left corner. Classes are those of the palette;
/// texts and tips are escaped. A tip is what is read out when the element is pointed at.
class Drawing {
 public:
  explicit Drawing(double width) : width_(width) {}

  void line(double x1, double y1, double x2, double y2, std::string_view classes);
  void rect(double x, double y, double width, double height, std::string_view classes,
            std::string_view tip = {}, double radius = 0);
  /// `data` in the path's own language, put in as it is.
  void path(std::string_view data, std::string_view classes, std::string_view tip = {});
  void marker(Shape shape, double x, double y, double radius, std::string_view classes);
  /// Nothing to see, but easy to point at.
  void target(double x, double y, double radius, std::string_view tip);
  void text(double x, double y, std::string_view text, std::string_view classes, double size,
            Anchor anchor = Anchor::kStart);

  void set_height(double height) { height_ = height; }
  [[nodiscard]] double width() const { return width_; }
  [[nodiscard]] double height() const { return height_; }
  [[nodiscard]] const std::string& body() const { return body_; }
  [[nodiscard]] const std::vector<TextBox>& texts() const { return texts_; }

 private:
  double width_;
  double height_ = 0;
  std::string body_;
  std::vector<TextBox> texts_;
};

/// The drawing as an element of a page: `id` is unlike every other on the page, `rank` is a class
/// of it, title and description are for who cannot see it.
std::string embedded(const Drawing& drawing, std::string_view id, std::string_view rank,
                     std::string_view title, std::string_view description);

/// The drawing as a document of its own, on a card with its title: right on any ground.
std::string standalone(const Drawing& drawing, std::string_view title,
                       std::string_view description);

}  // namespace lms::report
