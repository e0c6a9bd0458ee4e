#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <utility>

#include "figures/checks.h"
#include "figures/svg.h"
#include "figures/timeline.h"

namespace lms {
namespace {

constexpr double kWidth = 1200;
constexpr double kLeft = 96;  ///< of the columns of all rows
constexpr double kRight = 1180;
constexpr double kComputeRow = 34;
constexpr double kLaneRow = 20;
constexpr double kMemoryPanel = 190;
constexpr double kNarrow = 0.4;     ///< pixels: what is closer than that is drawn as one
constexpr double kCharacter = 6.4;  ///< pixels: width of one
constexpr std::size_t kNamed = 5;   ///< operators with a colour of their own

constexpr std::array<const char*, kNamed> kColours = {"#2f6db3", "#3fa7a0", "#86b84f", "#d9b42a",
                                                      "#c9747b"};
constexpr const char* kOtherColour = "#b4b8bd";
constexpr const char* kOutColour = "#e0803a";
constexpr const char* kInColour = "#7a5fb5";
constexpr const char* kMuted = R"(fill="#5c6670")";
constexpr const char* kBudgetColour = "#c0392b";

std::string format(const char* pattern, double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), pattern, value);
  return text.data();
}

std::string format_ms(double ms) {
  return format(ms < 10 ? "%.2f ms" : ms < 1000 ? "%.1f ms" : "%.0f ms", ms);
}

std::string fill(const char* colour) { return std::string(R"(fill=")") + colour + '"'; }

/// Without what all operators of a framework have in common.
std::string short_name(const std::string& name) {
  std::string text = name;
  if (const auto colons = text.rfind("::"); colons != std::string::npos) text.erase(0, colons + 2);
  if (const auto dot = text.find('.'); dot != std::string::npos && dot > 0) text.erase(dot);
  return text;
}

/// 1, 2 or 5 times a power of ten: about `wanted` of them in `range`.
double nice_step(double range, int wanted) {
  const double rough = range / wanted;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

struct Span {
  double begin_ms = 0;
  double end_ms = 0;
};

/// The rows of one timeline and the numbers beside them.
struct Rows {
  const char* name = "";
  double step_ms = 0;
  std::vector<Span> operators;
  std::vector<Span> waits;
  const std::vector<CopyTiming>* copies = nullptr;
  std::vector<Bytes> device;  ///< by operator; empty: not known
};

Rows rows_of(const PlanTiming& predicted) {
  Rows rows{.name = "predicted", .step_ms = predicted.step_ms, .copies = &predicted.copies};
  for (const OperatorTiming& op : predicted.operators) {
    rows.operators.push_back({op.begin_ms, op.end_ms});
    if (op.waited_ms > 0) rows.waits.push_back({op.begin_ms - op.waited_ms, op.begin_ms});
    rows.device.push_back(op.device);
  }
  return rows;
}

Rows rows_of(const MeasuredTimeline& measured) {
  Rows rows{.name = "measured", .copies = &measured.copies};
  bool with_device = true;
  for (const MeasuredOperator& op : measured.operators) {
    rows.operators.push_back({op.begin_ms, op.end_ms});
    if (op.waited_ms > 0) rows.waits.push_back({op.begin_ms - op.waited_ms, op.begin_ms});
    rows.step_ms = std::max(rows.step_ms, op.end_ms);
    rows.device.push_back(op.device);
    with_device = with_device && op.device >= 0;
  }
  if (!with_device) rows.device.clear();
  return rows;
}

class Picture {
 public:
  Picture(const Trace& trace, const Plan& plan, Bytes budget, std::vector<Rows> rows)
      : trace_(trace),
        plan_(plan),
        budget_(budget),
        rows_(std::move(rows)),
        svg_(kWidth, height_of(rows_.size())) {
    for (const Rows& one : rows_) longest_ms_ = std::max(longest_ms_, one.step_ms);
    if (longest_ms_ <= 0) longest_ms_ = 1;
    choose_colours();
  }

  std::string draw(std::string_view title, const PlanTiming& predicted) {
    svg_.raw(R"svg(<defs><pattern id="wait" width="6" height="6" patternUnits="userSpaceOnUse"
patternTransform="rotate(45)"><rect width="6" height="6" fill="#f6f1f0"/>
<rect width="2" height="6" fill="#e3cfcb"/></pattern></defs>
)svg");
    svg_.text(20, 28, R"(font-size="16" font-weight="bold" fill="#1d232a")",
              title.empty() ? "A planned step" : title);
    svg_.text(20, 47, kMuted, summary(predicted));
    legend(62);
    y_ = 84;
    for (const Rows& one : rows_) timeline(one);
    memory();
    return std::move(svg_).finish();
  }

 private:
  static double height_of(std::size_t timelines) {
    return 84 + static_cast<double>(timelines) * kTimeline + 14 + kMemoryPanel + 44;
  }

  [[nodiscard]] double x_of(double ms) const { return kLeft + (kRight - kLeft) * ms / longest_ms_; }
  [[nodiscard]] const std::string& name_of(std::size_t op) const {
    return trace_.operators[op].name;
  }

  /// The operators with the most time get a colour each.
  void choose_colours() {
    std::map<std::string, double> times;
    for (const TraceOperator& op : trace_.operators) times[short_name(op.name)] += op.ms;
    std::vector<std::pair<double, std::string>> order;
    order.reserve(times.size());
    for (const auto& [name, ms] : times) order.emplace_back(-ms, name);
    std::ranges::sort(order);
    if (order.size() > kNamed) order.resize(kNamed);
    for (const auto& [ms, name] : order) {
      colours_.emplace(name, kColours.at(named_.size()));
      named_.push_back(name);
    }
    with_others_ = times.size() > named_.size();
    for (const TraceOperator& op : trace_.operators) {
      const auto found = colours_.find(short_name(op.name));
      colour_of_.push_back(found == colours_.end() ? kOtherColour : found->second);
    }
  }

  static std::string summary(const PlanTiming& timing) {
    const double step = std::max(timing.step_ms, 1e-12);
    std::string text = "Predicted: step " + format_ms(timing.step_ms) + " = computation " +
                       format_ms(timing.compute_ms) + " + copy tax " + format_ms(timing.tax_ms) +
                       " + waiting " + format_ms(timing.waited_ms) + ".  Out " +
                       format_bytes(timing.bytes_out) + " (lane busy " +
                       format("%.0f %%", 100 * timing.out_busy_ms / step) + "), in " +
                       format_bytes(timing.bytes_in) + " (" +
                       format("%.0f %%", 100 * timing.in_busy_ms / step) + ")";
    if (timing.bytes_recomputed > 0) {
      text += ", recomputed " + format_bytes(timing.bytes_recomputed);
    }
    return text + ".  Peak " + format_bytes(timing.peak) + ".";
  }

  void legend(double y) {
    double x = kLeft;
    const auto entry = [&](const std::string& attributes, const std::string& label) {
      svg_.rect({x, y, 11, 11}, attributes);
      svg_.text(x + 16, y + 9.5, R"(fill="#2b333b")", label);
      x += 16 + kCharacter * static_cast<double>(label.size()) + 18;
    };
    for (const std::string& name : named_) {
      std::string label = name;
      if (label.size() > 28) label = label.substr(0, 25) + "...";
      entry(fill(colours_.at(name)), label);
    }
    if (with_others_) entry(fill(kOtherColour), "other operators");
    entry(R"svg(fill="url(#wait)" stroke="#d8c3bf" stroke-width="0.5")svg", "waiting for copies");
  }

  void row_label(double y, double height, const char* label) {
    svg_.text(kLeft - 8, y + height / 2 + 4, R"(text-anchor="end" fill="#2b333b")", label);
    svg_.rect({kLeft, y, kRight - kLeft, height}, R"(fill="#f3f5f7")");
  }

  void timeline(const Rows& rows) {
    svg_.text(20, y_ + 12, R"(font-weight="bold" fill="#1d232a")", rows.name);
    svg_.text(x_of(rows.step_ms), y_ + 12, R"(text-anchor="end" fill="#1d232a")",
              "step " + format_ms(rows.step_ms));
    double y = y_ + 18;
    row_label(y, kComputeRow, "compute");
    compute(rows, y);
    y += kComputeRow + 3;
    row_label(y, kLaneRow, "copies out");
    lane(rows, true, y);
    y += kLaneRow + 3;
    row_label(y, kLaneRow, "copies in");
    lane(rows, false, y);
    const double end = x_of(rows.step_ms);
    svg_.line(end, y_ + 16, end, y + kLaneRow + 2, R"(stroke="#1d232a" stroke-width="0.8")");
    y_ += kTimeline;
  }

  void compute(const Rows& rows, double y) {
    for (const Span& wait : rows.waits) {
      const double width = x_of(wait.end_ms) - x_of(wait.begin_ms);
      if (width < kNarrow) continue;
      svg_.rect({x_of(wait.begin_ms), y, width, kComputeRow}, R"svg(fill="url(#wait)")svg",
                "waiting for copies: " + format_ms(wait.end_ms - wait.begin_ms));
    }
    for (std::size_t at = 0; at < rows.operators.size();) {
      const double begin = x_of(rows.operators[at].begin_ms);
      double end = x_of(rows.operators[at].end_ms);
      std::size_t next = at + 1;
      // Neighbours of one colour are one box while they are too narrow to be seen apart.
      while (next < rows.operators.size() && colour_of_[next] == colour_of_[at] &&
             x_of(rows.operators[next].begin_ms) - end < kNarrow && end - begin < 2) {
        end = x_of(rows.operators[next].end_ms);
        ++next;
      }
      operator_box(at, next, {begin, y, std::max(end - begin, kNarrow), kComputeRow},
                   rows.operators[next - 1].end_ms - rows.operators[at].begin_ms);
      at = next;
    }
  }

  void operator_box(std::size_t first, std::size_t last, const SvgBox& box, double ms) {
    std::string attributes = fill(colour_of_[first]);
    if (box.width > 4) attributes += R"( stroke="#ffffff" stroke-width="0.6")";
    std::string tooltip;
    if (box.width > 1) {
      tooltip = std::to_string(first) + " " + name_of(first);
      if (last - first > 1) tooltip += " to " + std::to_string(last - 1) + " " + name_of(last - 1);
      tooltip += ": " + format_ms(ms);
    }
    svg_.rect(box, attributes, tooltip);
    const std::string name = short_name(name_of(first));
    if (last - first == 1 && box.width > kCharacter * static_cast<double>(name.size()) + 6) {
      svg_.text(box.x + box.width / 2, box.y + box.height / 2 + 4,
                R"(text-anchor="middle" fill="#ffffff")", name);
    }
  }

  void lane(const Rows& rows, bool out, double y) {
    struct Piece {
      Span span;
      const CopyTiming* copy;
    };
    std::vector<Piece> pieces;
    for (const CopyTiming& copy : *rows.copies) {
      if (copy.out != out) continue;
      double begin = copy.begin_ms;
      double end = copy.end_ms;
      if (rows.step_ms > 0) {
        // What lasts over the end is there at the beginning as well: steps repeat.
        const double steps = std::floor(begin / rows.step_ms) * rows.step_ms;
        begin -= steps;
        end -= steps;
        for (; end > rows.step_ms; begin = 0, end -= rows.step_ms) {
          pieces.push_back({{begin, rows.step_ms}, &copy});
        }
      }
      pieces.push_back({{begin, end}, &copy});
    }
    std::ranges::sort(pieces, {}, [](const Piece& piece) { return piece.span.begin_ms; });
    const std::string colour = fill(out ? kOutColour : kInColour);
    for (std::size_t at = 0; at < pieces.size();) {
      const double begin = x_of(pieces[at].span.begin_ms);
      double end = x_of(pieces[at].span.end_ms);
      std::size_t next = at + 1;
      while (next < pieces.size() && x_of(pieces[next].span.begin_ms) - end < kNarrow &&
             end - begin < 2) {
        end = std::max(end, x_of(pieces[next].span.end_ms));
        ++next;
      }
      copy_box(*pieces[at].copy, next - at, {begin, y, std::max(end - begin, kNarrow), kLaneRow},
               colour);
      at = next;
    }
  }

  void copy_box(const CopyTiming& copy, std::size_t copies, const SvgBox& box,
                const std::string& colour) {
    const std::string bytes = format_bytes(trace_.blocks[copy.block].bytes);
    std::string tooltip;
    if (box.width > 1) {
      tooltip = copies > 1 ? std::to_string(copies) + " copies"
                           : "block " + std::to_string(copy.block) + ", " + bytes + ": " +
                                 format_ms(copy.end_ms - copy.begin_ms);
    }
    const char* edge = box.width > 4 ? R"( stroke="#ffffff" stroke-width="0.6")" : "";
    svg_.rect(box, colour + edge, tooltip);
    if (copies == 1 && box.width > kCharacter * static_cast<double>(bytes.size()) + 6) {
      svg_.text(box.x + box.width / 2, box.y + box.height / 2 + 4,
                R"(text-anchor="middle" fill="#ffffff")", bytes);
    }
  }

  /// The most that `values` has in every pixel, each operator's holding until the next begins.
  [[nodiscard]] std::vector<double> columns(const Rows& rows, const std::vector<Bytes>& values,
                                            Bytes before) const {
    const auto count = static_cast<std::size_t>(std::ceil(x_of(rows.step_ms) - kLeft));
    std::vector<double> most(std::max<std::size_t>(count, 1), 0);
    const auto raise = [&](double begin_ms, double end_ms, Bytes bytes) {
      const auto from = static_cast<std::size_t>(std::max(0.0, x_of(begin_ms) - kLeft));
      const auto to = static_cast<std::size_t>(std::ceil(x_of(end_ms) - kLeft));
      for (std::size_t x = from; x < std::min(std::max(to, from + 1), most.size()); ++x) {
        most[x] = std::max(most[x], static_cast<double>(bytes));
      }
    };
    double begin_ms = 0;
    Bytes bytes = before;
    for (std::size_t at = 0; at < values.size(); ++at) {
      raise(begin_ms, rows.operators[at].begin_ms, bytes);
      begin_ms = rows.operators[at].begin_ms;
      bytes = values[at];
    }
    raise(begin_ms, rows.step_ms, bytes);
    return most;
  }

  /// A line in steps over the columns.
  [[nodiscard]] static std::string outline(const std::vector<double>& columns, double bottom,
                                           double per_byte) {
    std::string data;
    double last = -1;
    for (std::size_t x = 0; x < columns.size(); ++x) {
      const double y = bottom - columns[x] * per_byte;
      if (x > 0 && y == last) continue;
      data += x == 0 ? 'M' : 'H';
      data += svg_number(kLeft + static_cast<double>(x));
      data += x == 0 ? ' ' : 'V';
      data += svg_number(y);
      last = y;
    }
    data += 'H';
    return data + svg_number(kLeft + static_cast<double>(columns.size()));
  }

  void memory() {
    const Rows& predicted = rows_.front();
    const std::vector<Bytes> live = trace_.live_bytes();
    Bytes most = budget_;
    for (const Bytes bytes : live) most = std::max(most, bytes);
    const double top = y_ + 14;
    const double bottom = top + kMemoryPanel;
    const double per_byte = (kMemoryPanel - 14) / std::max(1.0, static_cast<double>(most));
    svg_.text(20, top - 2, R"(font-weight="bold" fill="#1d232a")", "memory on the device");
    svg_.rect({kLeft, top, kRight - kLeft, kMemoryPanel}, R"(fill="#f8fafb")");
    memory_ticks(most, bottom, per_byte);
    const Bytes all_at_start = device_at_start(trace_, {});
    svg_.path(outline(columns(predicted, live, all_at_start), bottom, per_byte),
              R"(fill="none" stroke="#98a1aa" stroke-width="1.2" stroke-dasharray="2 2")");
    for (const Rows& rows : rows_) {
      if (rows.device.empty()) continue;
      const bool first = &rows == &predicted;
      const Bytes before = first ? device_at_start(trace_, plan_) : rows.device.front();
      const std::vector<double> heights = columns(rows, rows.device, before);
      const std::string data = outline(heights, bottom, per_byte);
      if (first) {
        svg_.path(data + 'V' + svg_number(bottom) + 'H' + svg_number(kLeft) + 'Z',
                  R"(fill="#c7dbef")");
      }
      svg_.path(data, std::string(R"(fill="none" stroke-width="1.3" stroke=")") +
                          (first ? R"(#2f6db3")" : R"(#1d232a" stroke-dasharray="4 2")"));
    }
    budget_line(bottom - static_cast<double>(budget_) * per_byte);
    memory_legend(top - 2);
    time_axis(bottom);
  }

  void memory_ticks(Bytes most, double bottom, double per_byte) {
    double unit = 1;
    const char* name = "B";
    for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
      if (static_cast<double>(most) < 1024 * unit) break;
      unit *= 1024;
      name = next;
    }
    const double step = nice_step(std::max(1.0, static_cast<double>(most)) / unit, 6);
    for (int i = 0; i * step * unit <= static_cast<double>(most); ++i) {
      const double y = bottom - i * step * unit * per_byte;
      svg_.line(kLeft, y, kRight, y, R"(stroke="#e3e7ea" stroke-width="0.8")");
      svg_.text(kLeft - 8, y + 4, std::string(R"(text-anchor="end" )") + kMuted,
                format("%g ", i * step) + name);
    }
  }

  void budget_line(double y) {
    svg_.line(
        kLeft, y, kRight, y,
        std::string(R"(stroke-width="1.4" stroke-dasharray="7 3" stroke=")") + kBudgetColour + '"');
  }

  void memory_legend(double y) {
    double x = kRight;
    const auto entry = [&](const std::string& label, const std::string& stroke) {
      x -= kCharacter * static_cast<double>(label.size());
      svg_.text(x, y, R"(fill="#2b333b")", label);
      x -= 30;
      svg_.line(x, y - 4, x + 24, y - 4, stroke);
      x -= 16;
    };
    entry("if nothing leaves", R"(stroke="#98a1aa" stroke-width="1.4" stroke-dasharray="2 2")");
    entry("limit " + format_bytes(budget_), std::string(R"(stroke-width="1.4" stroke=")") +
                                                kBudgetColour + R"(" stroke-dasharray="7 3")");
    for (const Rows& rows : rows_) {
      if (rows.device.empty()) continue;
      const bool first = &rows == &rows_.front();
      entry(std::string(rows.name),
            first ? R"(stroke="#2f6db3" stroke-width="2")"
                  : R"(stroke="#1d232a" stroke-width="1.4" stroke-dasharray="4 2")");
    }
  }

  void time_axis(double y) {
    svg_.line(kLeft, y, kRight, y, R"(stroke="#7c8690" stroke-width="1")");
    const double step = nice_step(longest_ms_, 10);
    for (int i = 0; i * step <= longest_ms_ * (1 + 1e-9); ++i) {
      const double x = x_of(i * step);
      svg_.line(x, y, x, y + 4, R"(stroke="#7c8690" stroke-width="1")");
      svg_.text(x, y + 17, std::string(R"(text-anchor="middle" )") + kMuted,
                format("%g", i * step));
    }
    svg_.text((kLeft + kRight) / 2, y + 34, std::string(R"(text-anchor="middle" )") + kMuted,
              "milliseconds since the beginning of the step");
  }

  static constexpr double kTimeline = 18 + kComputeRow + 3 + kLaneRow + 3 + kLaneRow + 20;

  const Trace& trace_;
  const Plan& plan_;
  const Bytes budget_;
  const std::vector<Rows> rows_;  ///< predicted, then measured
  SvgWriter svg_;
  double longest_ms_ = 0;
  double y_ = 0;
  bool with_others_ = false;
  std::vector<std::string> named_;  ///< operators, by time
  std::map<std::string, const char*> colours_;
  std::vector<const char*> colour_of_;  ///< by operator
};

}  // namespace

std::string timeline_svg(const Trace& trace, const Plan& plan, const PlanTiming& predicted,
                         Bytes budget, std::string_view title, const MeasuredTimeline* measured) {
  check_timelines("timeline_svg", trace, predicted, measured);
  std::vector<Rows> rows;
  rows.push_back(rows_of(predicted));
  if (measured != nullptr) rows.push_back(rows_of(*measured));
  return Picture(trace, plan, budget, std::move(rows)).draw(title, predicted);
}

}  // namespace lms
