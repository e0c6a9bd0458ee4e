#include "tools/lms/tool.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>

#include "base/error.h"
#include "base/quantity.h"
#include "bound/forecast.h"
#include "figures/timeline.h"
#include "lab/report/command.h"
#include "tools/lms/other.h"
#include "tools/lms/printing.h"
#include "tools/lms/top.h"
#include "trace/gz_file.h"
#include "trace/trace_io.h"

namespace lms::tool {
namespace {

constexpr double kBytesPerMs = 1e6;  ///< in a GB/s

struct PlanArguments {
  std::string trace;
  std::string limit;
  double out_rate = 0;  ///< GB/s; 0: not given
  double in_rate = 0;
  double both_rate = 0;
  double seconds = 2;
  std::string json;
  std::string timeline;
  std::string picture;
};

LinkModel link_of(const PlanArguments& arguments) {
  LinkModel link;
  const double shared = link.both_bytes_per_ms / link.out_bytes_per_ms;
  const bool given = arguments.out_rate > 0 || arguments.in_rate > 0;
  if (arguments.out_rate > 0) link.out_bytes_per_ms = arguments.out_rate * kBytesPerMs;
  if (arguments.in_rate > 0) link.in_bytes_per_ms = arguments.in_rate * kBytesPerMs;
  if (given) {
    link.both_bytes_per_ms = shared * std::min(link.out_bytes_per_ms, link.in_bytes_per_ms);
  }
  if (arguments.both_rate > 0) link.both_bytes_per_ms = arguments.both_rate * kBytesPerMs;
  return link;
}

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

void draw(const Trace& trace, const PlanReport& report, const PlanArguments& arguments) {
  const Forecast& at = report.at_limit;
  const Plan& plan = at.planned->plan;
  const PlanTiming timing = time_plan(trace, plan, report.link, true);
  if (!arguments.timeline.empty()) {
    write_gz_file(arguments.timeline, chrome_trace(trace, plan, timing, at.limit));
  }
  if (!arguments.picture.empty()) {
    const std::string title = report.trace_name + " under " + format_bytes(at.limit);
    write_gz_file(arguments.picture, timeline_svg(trace, plan, timing, at.limit, title));
  }
}

/// What is found out of limits where none was given.
int plan_limits(const PlanArguments& arguments, std::FILE* out, std::FILE* err) {
  if (!arguments.timeline.empty() || !arguments.picture.empty()) {
    std::fputs("lms: --timeline and --picture draw the step under one limit: name it (--limit)\n",
               err);
    return kFailed;
  }
  const Trace trace = load_trace(arguments.trace);
  LimitsReport report{.trace_name = file_name(arguments.trace),
                      .operators = trace.operators.size(),
                      .blocks = trace.blocks.size(),
                      .link = link_of(arguments),
                      .in_memory_peak = peak_in_memory(trace),
                      .in_memory_ms = ms_in_memory(trace),
                      .least = least_limit(trace),
                      .smallest = {},
                      .rows = {}};
  const std::optional<Forecast> smallest = smallest_fit(trace, report.link);
  if (smallest) report.smallest = smallest->limit;
  const Bytes last = report.smallest.value_or(report.least.bytes);
  report.rows = forecasts(trace, limits_to_ask(report.in_memory_peak, last), report.link,
                          arguments.seconds, smallest);
  std::fputs(limits_text(report).c_str(), out);
  if (!arguments.json.empty()) write_gz_file(arguments.json, limits_json(report));
  return report.smallest ? kFits : kDoesNotFit;
}

int plan(const PlanArguments& arguments, std::FILE* out, std::FILE* err) {
  if (arguments.limit.empty()) return plan_limits(arguments, out, err);
  const Trace trace = load_trace(arguments.trace);
  const Bytes limit = parse_limit(arguments.limit, peak_in_memory(trace));
  const LinkModel link = link_of(arguments);
  const PlanReport report{
      .trace_name = file_name(arguments.trace),
      .operators = trace.operators.size(),
      .blocks = trace.blocks.size(),
      .link = link,
      .at_limit = forecast(trace, limit, link, arguments.seconds),
      .at_twice_the_limit = forecast(trace, 2 * limit, link, arguments.seconds),
      .at_half_the_batch = forecast(half_batch(trace), limit, link, arguments.seconds),
      .bound = ask_bound(trace, limit, link)};
  std::fputs(plan_text(report).c_str(), out);
  if (!arguments.json.empty()) write_gz_file(arguments.json, plan_json(report));
  if (report.at_limit.fits()) {
    draw(trace, report, arguments);
    return kFits;
  }
  if (!arguments.timeline.empty() || !arguments.picture.empty()) {
    std::fputs("lms: there is no plan to draw\n", err);
  }
  return kDoesNotFit;
}

CLI::App* add_plan(CLI::App& app, PlanArguments& arguments) {
  CLI::App* plan_command = app.add_subcommand(
      "plan",
      "Does a step fit under a limit, at what speed, and what would twice the limit or "
      "half the batch give? Without a limit: a table of limits and what they cost. Exit status: 0 "
      "it fits, 1 it does not, 2 an error.");
  plan_command->add_option("trace", arguments.trace, "a file of torch_lms.save_trace()")
      ->required();
  plan_command->add_option("--limit", arguments.limit,
                           "bytes to stay below: 12GiB, 800MB, or 50% of the peak in memory");
  plan_command->add_option("--out-rate", arguments.out_rate, "GB/s, device to host (55.5)")
      ->check(CLI::PositiveNumber);
  plan_command->add_option("--in-rate", arguments.in_rate, "GB/s, host to device (55.5)")
      ->check(CLI::PositiveNumber);
  plan_command
      ->add_option("--both-rate", arguments.both_rate,
                   "GB/s each way while both directions are busy (0.917 of the slower one)")
      ->check(CLI::PositiveNumber);
  plan_command->add_option("--seconds", arguments.seconds, "most time to search for each plan")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  plan_command->add_option("--json", arguments.json, "also write the answer as JSON");
  plan_command->add_option("--timeline", arguments.timeline,
                           "write the planned step as a Chrome trace, for ui.perfetto.dev");
  plan_command->add_option("--picture", arguments.picture, "write the planned step as an SVG");
  return plan_command;
}

CLI::App* add_report(CLI::App& app, report::Request& request) {
  CLI::App* report_command = app.add_subcommand(
      "report", "Makes one HTML file, with charts, of the JSON of any runs of lms bench.");
  report_command->add_option("runs", request.runs, "files and folders of JSON")->required();
  report_command->add_option("-o,--output", request.page, "the HTML file")->capture_default_str();
  report_command->add_option("--title", request.title, "its title")->capture_default_str();
  report_command->add_option("--svg", request.svg, "folder for every chart as an SVG");
  report_command->add_option("--png", request.png, "the same as PNGs, drawn by Chromium");
  return report_command;
}

CLI::App* add_top(CLI::App& app, TopRequest& request) {
  CLI::App* top_command = app.add_subcommand(
      "top",
      "What LMS does in running processes of this user, each second anew. They are seen if they "
      "were started with LMS_MONITOR=1, lms run --monitor on, or enable(monitor=True).");
  top_command->add_flag("--once", request.once, "print it once");
  top_command->add_flag("--json", request.json, "print it once, as JSON");
  return top_command;
}

}  // namespace

int run(int argc, const char* const* argv, std::FILE* out, std::FILE* err) {
  if (argc > 1 && is_other(argv[1])) return run_other(argv, err);
  try {
    CLI::App app(
        "Large Model Support: recorded training steps, and what memory limits make of them.",
        "lms");
    app.footer("All commands, of this program and of others:\n" + list_of_commands());
    app.set_version_flag("-V,--version", "lms " LMS_VERSION, "say which version this is");
    PlanArguments arguments;
    std::string trace_file;

    CLI::App* plan_command = add_plan(app, arguments);
    CLI::App* trace_command = app.add_subcommand("trace", "What is in a recorded step?");
    trace_command->add_option("trace", trace_file, "a file of torch_lms.save_trace()")->required();

    TopRequest top_request;
    CLI::App* top_command = add_top(app, top_request);
    report::Request request;
    CLI::App* report_command = add_report(app, request);
    const std::string_view command = argc > 1 ? argv[1] : "";
    if (!command.starts_with('-') && !is_command(command)) {
      std::fputs(no_such_command(command).c_str(), err);
      return kFailed;
    }
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      std::ostringstream help;
      std::ostringstream complaint;
      const int status = app.exit(error, help, complaint);
      std::fputs(help.str().c_str(), out);
      std::fputs(complaint.str().c_str(), err);
      return status == 0 ? kFits : kFailed;
    }
    if (plan_command->parsed()) return plan(arguments, out, err);
    if (top_command->parsed()) return top(top_request, out);
    if (report_command->parsed()) {
      return report::make_report(request, out, err) ? kFits : kFailed;
    }
    std::fputs(trace_text(load_trace(trace_file), file_name(trace_file)).c_str(), out);
    return kFits;
  } catch (const std::exception& error) {
    std::fprintf(err, "lms: %s\n", error.what());
    return kFailed;
  }
}

}  // namespace lms::tool
