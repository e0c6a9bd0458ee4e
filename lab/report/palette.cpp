#include "lab/report/palette.h"

#include <cmath>
#include <cstdlib>

namespace lms::report {
namespace {

/// Classes that are more than a fill or a line.
constexpr std::string_view kRules = R"(
.ticks{fill:var(--soft)}
.words{fill:var(--ink)}
.strong{fill:var(--ink);font-weight:600}
.grid{stroke:var(--faint);stroke-width:1}
.axis{stroke:var(--axis);stroke-width:1}
.curve{fill:none;stroke-width:2.25;stroke-linejoin:round;stroke-linecap:round}
.dashed{stroke-dasharray:5 4}
.border{stroke-width:1.5;stroke-dasharray:3 3}
.ring{stroke:var(--card);stroke-width:1.5}
.hollow{fill:var(--card);stroke-width:1.75}
.faded{fill-opacity:.16}
.mark{stroke-width:2}
.halo{stroke-width:5}
.idle{fill-opacity:.45}
.over{paint-order:stroke;stroke:var(--card);stroke-width:5;stroke-linejoin:round}
.hit{fill:transparent}
.track{fill:var(--track)}
)";

int hex(char digit) { return digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10; }

double luminance(std::string_view colour) {
  const auto channel = [&](std::size_t at) {
    const double value = (16 * hex(colour[at]) + hex(colour[at + 1])) / 255.0;
    return value <= 0.03928 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4);
  };
  return 0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5);
}

std::string resolved(std::string rules, bool dark) {
  for (const Colour& colour : palette()) {
    const std::string name = "var(--" + std::string(colour.token) + ")";
    for (std::size_t at = rules.find(name); at != std::string::npos; at = rules.find(name, at)) {
      rules.replace(at, name.size(), dark ? colour.dark : colour.light);
    }
  }
  return rules;
}

}  // namespace

const std::vector<Colour>& palette() {
  static const std::vector<Colour> colours = {
      {"page", "#f4f5f7", "#0e1116"},       {"card", "#ffffff", "#171b22"},
      {"track", "#eceef2", "#232934"},      {"ink", "#1b2028", "#e8ebf0"},
      {"soft", "#565e6c", "#a3acba"},       {"faint", "#e3e6eb", "#2a313c"},
      {"axis", "#9aa2af", "#5c6675"},       {"good", "#0b6b4f", "#4fd1a5"},
      {"bad", "#b3261e", "#ff8f87"},        {"link", "#0a5bb5", "#7db7ff"},
      {"plain", "#6b7280", "#a9b1bd"},      {"lms", "#0072b2", "#56b4e9"},
      {"swap", "#00806a", "#2fc7a4"},       {"cpu", "#d55e00", "#ff9550"},
      {"checkpoint", "#b0508a", "#e59cc6"}, {"other", "#7a6a4f", "#c8b58f"},
      {"published", "#8f6a00", "#f0c64b"},  {"out", "#a86200", "#f0a94b"},
      {"in", "#5b55c4", "#a9a4ff"},         {"kernel", "#4b5563", "#9aa5b5"},
      {"gap", "#c2352b", "#ff7b72"},        {"bound", "#1b2028", "#e8ebf0"},
      {"predicted", "#c2352b", "#ff8f87"},
  };
  return colours;
}

double contrast(std::string_view one, std::string_view other) {
  const double a = luminance(one);
  const double b = luminance(other);
  return (std::fmax(a, b) + 0.05) / (std::fmin(a, b) + 0.05);
}

Look look_of(std::string_view method) {
  if (method == "plain") return {"plain", Shape::kDiamond, "in memory", 0};
  if (method == "lms") return {"lms", Shape::kCircle, "LMS", 1};
  if (method == "lms-swap") return {"swap", Shape::kSquare, "LMS, copies alone", 2};
  if (method == "save_on_cpu") return {"cpu", Shape::kUp, "save_on_cpu", 3};
  if (method == "checkpoint") return {"checkpoint", Shape::kDown, "checkpointing", 4};
  return {"other", Shape::kSquare, std::string(method), 5};
}

std::string declare(bool dark) {
  std::string text;
  for (const Colour& colour : palette()) {
    text += "--" + std::string(colour.token) + ":" +
            std::string(dark ? colour.dark : colour.light) + ";";
  }
  return text;
}

std::string chart_rules() {
  std::string rules(kRules);
  for (const Colour& colour : palette()) {
    const std::string token(colour.token);
    rules += ".f-" + token + "{fill:var(--" + token + ")}.s-" + token + "{stroke:var(--" + token +
             ")}\n";
  }
  return rules;
}

std::string alone_rules() {
  const std::string rules = chart_rules();
  return "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\n" +
         resolved(rules, false) + "@media (prefers-color-scheme:dark){\n" + resolved(rules, true) +
         "}\n";
}

}  // namespace lms::report
