#include "tools/lms/printing.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "tools/lms/text.h"

namespace lms::tool {
namespace {

constexpr std::size_t kLargest = 8;

std::string least_of(const Forecast& forecast) {
  return format_bytes(forecast.least.bytes) + ", for " + forecast.least.where;
}

std::string step_of(const Forecast& forecast) {
  const PlanTiming& timing = forecast.planned->predicted;
  return format_ms(timing.step_ms) + ", " + percent(forecast.overhead()) + " over " +
         format_ms(forecast.in_memory_ms) + " in memory";
}

std::string moved(Bytes bytes, double busy_ms, double step_ms) {
  return padded(format_bytes(bytes), 10) + "  lane busy " + percent(ratio(busy_ms, step_ms));
}

void add_plan(Lines& lines, const PlanReport& report) {
  const Forecast& at = report.at_limit;
  const PlanTiming& timing = at.planned->predicted;
  lines.add("step", step_of(at));
  lines.add("of that", "waiting for copies " + format_ms(timing.waited_ms) + ", slowed by copies " +
                           format_ms(timing.tax_ms));
  lines.add("copies out", moved(timing.bytes_out, timing.out_busy_ms, timing.step_ms));
  lines.add("copies in", moved(timing.bytes_in, timing.in_busy_ms, timing.step_ms));
  if (timing.bytes_recomputed > 0) {
    lines.add("computed again", padded(format_bytes(timing.bytes_recomputed), 10) + "  in " +
                                    format_ms(timing.recomputed_ms));
  }
  lines.add("host memory", format_bytes(at.below) + " for what lies there in planned steps");
  lines.add("peak", format_bytes(timing.peak) + ", " + percent(ratio(timing.peak, at.limit)) +
                        " of the limit");
  lines.add("arena", format_bytes(at.placement.bytes) +
                         " of addresses; no placement needs less than " +
                         format_bytes(at.placement.lower_bound));
}

void add_bound(Lines& lines, const PlanReport& report) {
  if (report.bound.bound) {
    lines.add("bound", format_ms(report.bound.bound->step_ms) + ", " +
                           percent(report.bound.bound->overhead) +
                           ": no plan that only swaps can be faster");
  } else {
    lines.add("bound", "not available: " + report.bound.why_not);
  }
}

struct Kind {
  double ms = 0;
  std::size_t count = 0;
};

/// Name and sum of the kinds of operators that take the most time.
std::vector<std::pair<std::string, Kind>> slowest_kinds(const Trace& trace) {
  std::map<std::string, Kind> kinds;
  for (const TraceOperator& op : trace.operators) {
    Kind& kind = kinds[op.name];
    kind.ms += op.ms;
    ++kind.count;
  }
  std::vector<std::pair<std::string, Kind>> order(kinds.begin(), kinds.end());
  std::ranges::stable_sort(order, {}, [](const auto& entry) { return -entry.second.ms; });
  if (order.size() > kLargest) order.resize(kLargest);
  return order;
}

/// What an operator needs on the device at one time: what it uses, makes, and works with.
Bytes needs(const Trace& trace, const TraceOperator& op) {
  Bytes bytes = op.workspace;
  for (const TraceBlockId id : op.reads) bytes += trace.blocks[id].bytes;
  for (const TraceBlockId id : op.allocs) bytes += trace.blocks[id].bytes;
  for (const TraceBlockId id : op.writes) {
    if (std::ranges::find(op.reads, id) == op.reads.end()) bytes += trace.blocks[id].bytes;
  }
  return bytes;
}

std::string blocks_of(std::size_t count, Bytes bytes) {
  return padded(std::to_string(count), 6) + format_bytes(bytes);
}

}  // namespace

std::string plan_text(const PlanReport& report) {
  const Forecast& at = report.at_limit;
  Lines lines;
  lines.add(report.trace_name + ": " + std::to_string(report.operators) + " operators, " +
            std::to_string(report.blocks) + " blocks");
  lines.add("in memory",
            format_bytes(at.in_memory_peak) + ", " + format_ms(at.in_memory_ms) + " a step");
  lines.add("link", link_text(report.link));
  lines.add("");
  const std::string limit = format_bytes(at.limit) + " (" +
                            percent(ratio(at.limit, at.in_memory_peak)) + " of the peak in memory)";
  lines.add((at.fits() ? "It fits into " : "It does not fit into ") + limit + ".");
  lines.add("smallest limit", least_of(at));
  if (at.fits()) {
    add_plan(lines, report);
  } else {
    lines.add("why not", at.why_not);
  }
  add_bound(lines, report);

  lines.add("");
  lines.add("What if");
  const Forecast& twice = report.at_twice_the_limit;
  lines.add("twice the limit",
            format_bytes(twice.limit) + ": " + (twice.fits() ? step_of(twice) : "does not fit"));
  const Forecast& half = report.at_half_the_batch;
  std::string text = "does not fit, it needs " + least_of(half);
  if (half.fits()) {
    text =
        step_of(half) + "; " + format_ms(2 * half.planned->predicted.step_ms) + " for as much data";
  }
  lines.add("half the batch", text);
  lines.add("", "(an approximation: all that the step makes, and all times, are halved)");
  return std::move(lines).text();
}

std::string trace_text(const Trace& trace, const std::string& name) {
  const std::vector<Bytes> live = trace.live_bytes();
  const auto highest = std::ranges::max_element(live);
  const LeastLimit least = least_limit(trace);
  std::size_t before = 0;
  std::size_t unmovable = 0;
  Bytes before_bytes = 0;
  Bytes born_bytes = 0;
  Bytes unmovable_bytes = 0;
  for (const TraceBlock& block : trace.blocks) {
    (block.born_in_step ? born_bytes : before_bytes) += block.bytes;
    before += block.born_in_step ? 0 : 1;
    unmovable += block.movable ? 0 : 1;
    unmovable_bytes += block.movable ? 0 : block.bytes;
  }

  Lines lines;
  lines.add(name);
  const double whole_ms = ms_in_memory(trace);
  lines.add("operators", std::to_string(trace.operators.size()) + ", " + format_ms(whole_ms));
  lines.add("blocks before", blocks_of(before, before_bytes));
  lines.add("blocks born", blocks_of(trace.blocks.size() - before, born_bytes));
  if (unmovable > 0) lines.add("of them unmovable", blocks_of(unmovable, unmovable_bytes));
  if (highest != live.end()) {
    const auto at = static_cast<std::size_t>(highest - live.begin());
    lines.add("peak in memory", format_bytes(*highest) + ", in operator " + std::to_string(at) +
                                    " (" + trace.operators[at].name + ")");
    lines.add("smallest limit", format_bytes(least.bytes) + ", for " + least.where);
  }

  lines.add("");
  lines.add("Most time");
  for (const auto& [kind, sum] : slowest_kinds(trace)) {
    lines.add("  " + padded(format_ms(sum.ms), 11) + padded(percent(ratio(sum.ms, whole_ms)), 9) +
              padded(std::to_string(sum.count) + " x", 8) + kind);
  }
  lines.add("");
  lines.add("Most memory at one time");
  std::vector<std::size_t> order(trace.operators.size());
  for (std::size_t at = 0; at < order.size(); ++at) order[at] = at;
  std::ranges::stable_sort(order, {},
                           [&](std::size_t at) { return -needs(trace, trace.operators[at]); });
  if (order.size() > kLargest) order.resize(kLargest);
  for (const std::size_t at : order) {
    const TraceOperator& op = trace.operators[at];
    const std::string workspace =
        op.workspace > 0 ? "  (workspace " + format_bytes(op.workspace) + ")" : "";
    lines.add("  " + padded(format_bytes(needs(trace, op)), 11) +
              padded("operator " + std::to_string(at), 17) + op.name + workspace);
  }
  return std::move(lines).text();
}

}  // namespace lms::tool
