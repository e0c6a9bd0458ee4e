// The table of `lms plan` without a limit.

#include <utility>

#include "tools/lms/printing.h"
#include "tools/lms/text.h"

namespace lms::tool {
namespace {

constexpr std::size_t kBytes = 11;  ///< widths of columns
constexpr std::size_t kPart = 8;
constexpr std::size_t kTime = 12;
constexpr std::size_t kOverhead = 10;

std::string row(const std::string& limit, const std::string& part, const std::string& overhead,
                const std::string& step, const std::string& out, const std::string& in,
                const std::string& again, const std::string& host) {
  return "  " + right(limit, kBytes - 2) + right(part, kPart) + right(overhead, kOverhead) +
         right(step, kTime) + right(out, kBytes) + right(in, kBytes) + right(again, kTime) +
         right(host, kBytes + 2);
}

std::string row(const Forecast& forecast) {
  const std::string limit = format_bytes(forecast.limit);
  const std::string part = format("%.0f %%", 100 * ratio(forecast.limit, forecast.in_memory_peak));
  if (!forecast.fits()) return "  " + right(limit, kBytes - 2) + right(part, kPart) + "  no plan";
  const PlanTiming& timing = forecast.planned->predicted;
  return row(limit, part, percent(forecast.overhead()), format_ms(timing.step_ms),
             format_bytes(timing.bytes_out), format_bytes(timing.bytes_in),
             format_ms(timing.recomputed_ms), format_bytes(forecast.below));
}

}  // namespace

std::string limits_text(const LimitsReport& report) {
  Lines lines;
  lines.add(report.trace_name + ": " + std::to_string(report.operators) + " operators, " +
            std::to_string(report.blocks) + " blocks");
  lines.add("in memory", format_bytes(report.in_memory_peak) + ", " +
                             format_ms(report.in_memory_ms) + " a step");
  lines.add("link", link_text(report.link));
  lines.add("");
  lines.add(row("limit", "of peak", "overhead", "step", "out", "in", "computed", "host memory"));
  for (const Forecast& forecast : report.rows) lines.add(row(forecast));
  lines.add("");
  const std::string needs =
      report.least.where + " needs " + format_bytes(report.least.bytes) + " at one time";
  if (report.smallest) {
    // As it can be given to --limit: rounded, it might be one that is too small.
    const std::string exact = " (" + std::to_string(*report.smallest / kMiB) + "MiB)";
    lines.add("smallest limit", format_bytes(*report.smallest) + exact + ": " + needs);
  } else {
    lines.add("smallest limit", "none was found: " + needs);
  }
  lines.add("before the plan",
            "up to " + format_bytes(report.in_memory_peak) + " may lie in host memory");
  return std::move(lines).text();
}

}  // namespace lms::tool
