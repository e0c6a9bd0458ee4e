#include <nlohmann/json.hpp>

#include "figures/checks.h"
#include "figures/timeline.h"

namespace lms {
namespace {

using Json = nlohmann::ordered_json;

enum Thread : int { kCompute = 1, kCopiesOut = 2, kCopiesIn = 3 };

constexpr double kMicrosecondsPerMs = 1e3;
constexpr double kGigabytesPerSecond = 1e-6;  ///< of bytes per millisecond

/// The events of one process: the predicted step or the measured one.
class Process {
 public:
  Process(Json& events, const Trace& trace, int pid, const char* name)
      : events_(events), trace_(trace), pid_(pid) {
    add_name("process_name", 0, name);
    add_name("thread_name", kCompute, "compute");
    add_name("thread_name", kCopiesOut, "copies out");
    add_name("thread_name", kCopiesIn, "copies in");
  }

  void add_operator(std::size_t at, double begin_ms, double end_ms, Bytes device) {
    const TraceOperator& op = trace_.operators[at];
    Json args = {{"operator", at},      {"recorded ms", op.ms}, {"reads", op.reads},
                 {"writes", op.writes}, {"results", op.allocs}, {"workspace", op.workspace}};
    if (device >= 0) args["device bytes"] = device;
    add_span(kCompute, op.name, "operator", begin_ms, end_ms, std::move(args));
  }

  void add_wait(double begin_ms, double end_ms) {
    add_span(kCompute, "waiting for copies", "wait", begin_ms, end_ms, Json::object());
  }

  void add_copies(const std::vector<CopyTiming>& copies) {
    for (const CopyTiming& copy : copies) {
      const Bytes bytes = trace_.blocks[copy.block].bytes;
      const double ms = copy.end_ms - copy.begin_ms;
      Json args = {{"block", copy.block}, {"bytes", bytes}};
      if (ms > 0) args["GB/s"] = static_cast<double>(bytes) / ms * kGigabytesPerSecond;
      add_span(copy.out ? kCopiesOut : kCopiesIn, "block " + std::to_string(copy.block), "copy",
               copy.begin_ms, copy.end_ms, std::move(args));
    }
  }

  void add_mark(std::string_view what, TraceBlockId block, double ms) {
    Json event = common("i", std::string(what) + " block " + std::to_string(block), ms);
    event["tid"] = kCompute;
    event["s"] = "t";
    event["args"] = {{"block", block}, {"bytes", trace_.blocks[block].bytes}};
    events_.push_back(std::move(event));
  }

  void add_counter(const char* name, double ms, Bytes bytes) {
    Json event = common("C", name, ms);
    event["args"] = {{"bytes", bytes}};
    events_.push_back(std::move(event));
  }

 private:
  Json common(const char* phase, std::string name, double ms) const {
    return {
        {"ph", phase}, {"name", std::move(name)}, {"pid", pid_}, {"ts", ms * kMicrosecondsPerMs}};
  }

  void add_name(const char* what, int thread, const char* name) {
    events_.push_back(
        {{"ph", "M"}, {"name", what}, {"pid", pid_}, {"tid", thread}, {"args", {{"name", name}}}});
  }

  void add_span(int thread, std::string name, const char* category, double begin_ms, double end_ms,
                Json args) {
    Json event = common("X", std::move(name), begin_ms);
    event["dur"] = (end_ms - begin_ms) * kMicrosecondsPerMs;
    event["tid"] = thread;
    event["cat"] = category;
    event["args"] = std::move(args);
    events_.push_back(std::move(event));
  }

  Json& events_;
  const Trace& trace_;
  int pid_;
};

void add_predicted(Process& process, const Trace& trace, const Plan& plan, const PlanTiming& timing,
                   Bytes budget) {
  process.add_counter("device memory", 0, device_at_start(trace, plan));
  process.add_counter("budget", 0, budget);
  for (std::size_t at = 0; at < timing.operators.size(); ++at) {
    const OperatorTiming& op = timing.operators[at];
    if (op.waited_ms > 0) process.add_wait(op.begin_ms - op.waited_ms, op.begin_ms);
    process.add_operator(at, op.begin_ms, op.end_ms, op.device);
    process.add_counter("device memory", op.begin_ms, op.device);
  }
  process.add_copies(timing.copies);
  for (const Directive& directive : plan.directives) {
    const bool last = directive.before >= timing.operators.size();
    const double ms = last ? timing.step_ms : timing.operators[directive.before].begin_ms;
    if (directive.action == Action::kDrop) process.add_mark("drop", directive.block, ms);
    if (directive.action == Action::kRematerialise) {
      process.add_mark("recompute", directive.block, ms);
    }
  }
  process.add_counter("device memory", timing.step_ms, device_at_start(trace, plan));
  process.add_counter("budget", timing.step_ms, budget);
}

void add_measured(Process& process, const MeasuredTimeline& measured, Bytes budget) {
  double end_ms = 0;
  process.add_counter("budget", 0, budget);
  for (std::size_t at = 0; at < measured.operators.size(); ++at) {
    const MeasuredOperator& op = measured.operators[at];
    if (op.waited_ms > 0) process.add_wait(op.begin_ms - op.waited_ms, op.begin_ms);
    process.add_operator(at, op.begin_ms, op.end_ms, op.device);
    if (op.device >= 0) process.add_counter("device memory", op.begin_ms, op.device);
    end_ms = op.end_ms;
  }
  process.add_copies(measured.copies);
  process.add_counter("budget", end_ms, budget);
}

}  // namespace

std::string chrome_trace(const Trace& trace, const Plan& plan, const PlanTiming& predicted,
                         Bytes budget, const MeasuredTimeline* measured) {
  check_timelines("chrome_trace", trace, predicted, measured);
  Json events = Json::array();
  Process process(events, trace, 1, "predicted");
  add_predicted(process, trace, plan, predicted, budget);
  if (measured != nullptr) {
    Process beside(events, trace, 2, "measured");
    add_measured(beside, *measured, budget);
  }
  Json document;
  document["displayTimeUnit"] = "ms";
  document["traceEvents"] = std::move(events);
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace lms
