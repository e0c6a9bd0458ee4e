#include "lab/report/drawing.h"

#include <array>

#include "lab/report/text.h"

namespace lms::report {
namespace {

constexpr double kDescent = 0.24;  ///< of a font's size, below its line
constexpr double kAscent = 0.8;

std::string attribute(std::string_view name, double value) {
  return " " + std::string(name) + "=\"" + coordinate(value) + "\"";
}

std::string class_of(std::string_view classes) { return " class=\"" + std::string(classes) + "\""; }

std::string closed(std::string_view element, std::string_view tip) {
  if (tip.empty()) return "/>";
  return "><title>" + escape(tip) + "</title></" + std::string(element) + ">";
}

std::string number(double value) { return coordinate(value); }

/// Words of a description, cut into lines that are not wider than `width`.
std::vector<std::string> lines_of(std::string_view words, double size, double width) {
  std::vector<std::string> lines;
  std::string line;
  for (std::size_t at = 0; at < words.size();) {
    const std::size_t end = std::min(words.find(' ', at), words.size());
    const std::string word(words.substr(at, end - at));
    std::string longer = line;
    if (!longer.empty()) longer += ' ';
    longer += word;
    if (!line.empty() && text_width(longer, size) > width) {
      lines.push_back(line);
      line = word;
    } else {
      line = longer;
    }
    at = end + 1;
  }
  if (!line.empty()) lines.push_back(line);
  return lines;
}

}  // namespace

void Drawing::line(double x1, double y1, double x2, double y2, std::string_view classes) {
  body_ += "<line" + attribute("x1", x1) + attribute("y1", y1) + attribute("x2", x2) +
           attribute("y2", y2) + class_of(classes) + "/>";
}

void Drawing::rect(double x, double y, double width, double height, std::string_view classes,
                   std::string_view tip, double radius) {
  body_ += "<rect" + attribute("x", x) + attribute("y", y) + attribute("width", width) +
           attribute("height", height);
  if (radius > 0) body_ += attribute("rx", radius);
  body_ += class_of(classes) + closed("rect", tip);
}

void Drawing::path(std::string_view data, std::string_view classes, std::string_view tip) {
  body_ += "<path d=\"" + std::string(data) + "\"" + class_of(classes) + closed("path", tip);
}

void Drawing::marker(Shape shape, double x, double y, double radius, std::string_view classes) {
  const double r = radius;
  const auto point = [&](double dx, double dy) { return number(x + dx) + " " + number(y + dy); };
  switch (shape) {
    case Shape::kCircle:
      body_ += "<circle" + attribute("cx", x) + attribute("cy", y) + attribute("r", r) +
               class_of(classes) + "/>";
      return;
    case Shape::kSquare:
      rect(x - 0.88 * r, y - 0.88 * r, 1.76 * r, 1.76 * r, classes);
      return;
    case Shape::kDiamond:
      path("M" + point(0, -1.25 * r) + "L" + point(1.25 * r, 0) + "L" + point(0, 1.25 * r) + "L" +
               point(-1.25 * r, 0) + "Z",
           classes);
      return;
    case Shape::kUp:
    case Shape::kDown: {
      const double up = shape == Shape::kUp ? 1 : -1;
      path("M" + point(0, -1.2 * up * r) + "L" + point(1.15 * r, 0.9 * up * r) + "L" +
               point(-1.15 * r, 0.9 * up * r) + "Z",
           classes);
      return;
    }
  }
}

void Drawing::target(double x, double y, double radius, std::string_view tip) {
  body_ += "<circle" + attribute("cx", x) + attribute("cy", y) + attribute("r", radius) +
           class_of("hit") + closed("circle", tip);
}

void Drawing::text(double x, double y, std::string_view text, std::string_view classes, double size,
                   Anchor anchor) {
  constexpr std::array<std::string_view, 3> kAnchors = {"start", "middle", "end"};
  body_ += "<text" + attribute("x", x) + attribute("y", y) + attribute("font-size", size);
  if (anchor != Anchor::kStart) {
    body_ += " text-anchor=\"" + std::string(kAnchors[static_cast<std::size_t>(anchor)]) + "\"";
  }
  body_ += class_of(classes) + ">" + escape(text) + "</text>";
  const double width = text_width(text, size);
  const double left = x - (anchor == Anchor::kStart    ? 0
                           : anchor == Anchor::kMiddle ? width / 2
                                                       : width);
  texts_.push_back(
      {left, left + width, y - kAscent * size, y + kDescent * size, std::string(text)});
}

std::string embedded(const Drawing& drawing, std::string_view id, std::string_view rank,
                     std::string_view title, std::string_view description) {
  const std::string name = escape(id);
  const std::string size = number(drawing.width()) + " " + number(drawing.height());
  return "<svg class=\"" + std::string(rank) + "\" viewBox=\"0 0 " + size +
         R"(" role="img" aria-labelledby=")" + name + "-t " + name + "-d\"><title id=\"" + name +
         "-t\">" + escape(title) + "</title><desc id=\"" + name + "-d\">" + escape(description) +
         "</desc>" + drawing.body() + "</svg>\n";
}

std::string standalone(const Drawing& drawing, std::string_view title,
                       std::string_view description) {
  constexpr double kMargin = 20;
  constexpr double kTitle = 16;
  const std::vector<std::string> lines = lines_of(title, kTitle, drawing.width());
  const double top = kMargin + 22 * static_cast<double>(lines.size()) + 8;
  const double width = drawing.width() + 2 * kMargin;
  const double height = drawing.height() + top + kMargin;
  Drawing card(width);
  card.rect(0.5, 0.5, width - 1, height - 1, "f-card s-faint", {}, 10);
  double y = kMargin + 13;
  for (const std::string& line : lines) {
    card.text(kMargin, y, line, "strong", kTitle);
    y += 22;
  }
  return R"(<svg xmlns="http://www.w3.org/2000/svg" width=")" + number(width) + "\" height=\"" +
         number(height) + "\" viewBox=\"0 0 " + number(width) + " " + number(height) +
         R"(" role="img" aria-labelledby="t d"><title id="t">)" + escape(title) +
         "</title><desc id=\"d\">" + escape(description) + "</desc><style>" + alone_rules() +
         "</style>" + card.body() + "<g transform=\"translate(" + number(kMargin) + " " +
         number(top) + ")\">" + drawing.body() + "</g></svg>\n";
}

}  // namespace lms::report
