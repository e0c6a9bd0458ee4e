#include "figures/svg.h"

#include <array>
#include <charconv>
#include <utility>

namespace lms {
namespace {

std::string attribute(const char* name, double value) {
  return std::string(" ") + name + "=\"" + svg_number(value) + '"';
}

std::string escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        // XML knows no other control characters.
        if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') escaped += c;
    }
  }
  return escaped;
}

}  // namespace

std::string svg_number(double value) {
  // Not snprintf: programs may have set a locale with decimal commas.
  std::array<char, 64> text{};
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, 2).ptr;
  std::string number(text.data(), end);
  number.erase(number.find_last_not_of('0') + 1);
  if (number.ends_with('.')) number.pop_back();
  return number == "-0" ? "0" : number;
}

SvgWriter::SvgWriter(double width, double height) {
  const std::string size = attribute("width", width) + attribute("height", height);
  text_ = "<svg xmlns=\"http://www.w3.org/2000/svg\"" + size + " viewBox=\"0 0 " +
          svg_number(width) + ' ' + svg_number(height) +
          "\" font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" font-size=\"11\">\n";
  rect({0, 0, width, height}, "fill=\"#ffffff\"");
}

void SvgWriter::rect(const SvgBox& box, std::string_view attributes, std::string_view tooltip) {
  text_ += "<rect" + attribute("x", box.x) + attribute("y", box.y) + attribute("width", box.width) +
           attribute("height", box.height) + ' ';
  text_ += attributes;
  text_ += tooltip.empty() ? "/>\n" : "><title>" + escape(tooltip) + "</title></rect>\n";
}

void SvgWriter::line(double x1, double y1, double x2, double y2, std::string_view attributes) {
  text_ += "<line" + attribute("x1", x1) + attribute("y1", y1) + attribute("x2", x2) +
           attribute("y2", y2) + ' ';
  text_ += attributes;
  text_ += "/>\n";
}

void SvgWriter::text(double x, double y, std::string_view attributes, std::string_view content) {
  text_ += "<text" + attribute("x", x) + attribute("y", y) + ' ';
  text_ += attributes;
  text_ += '>' + escape(content) + "</text>\n";
}

void SvgWriter::path(std::string_view data, std::string_view attributes) {
  text_ += "<path d=\"";
  text_ += data;
  text_ += "\" ";
  text_ += attributes;
  text_ += "/>\n";
}

std::string SvgWriter::finish() && {
  text_ += "</svg>\n";
  return std::move(text_);
}

}  // namespace lms
