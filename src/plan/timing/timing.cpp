#include "plan/timing/timing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "plan/producers.h"
#include "plan/timing/step_clock.h"

namespace lms {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
constexpr int kMostSteps = 16;  ///< after so many a backlog that still grows is taken as it is
constexpr double kSame = 1e-9;

struct BlockState {
  std::uint32_t out = kNone;  ///< ticket of a copy that has been started and not been finished
  std::uint32_t in = kNone;   ///< ticket of a copy that nobody has waited for
  bool clean = false;
  bool absent = false;
};

}  // namespace

class PlanTimer::Run {
 public:
  Run(const Trace& trace, const LinkModel& link)
      : trace_(trace), host_(link.host), clock_(link), blocks_(trace.blocks.size()) {
    for (const TraceOperator& op : trace.operators) {
      Bytes born = op.workspace;
      for (const TraceBlockId id : op.allocs) born += trace.blocks[id].bytes;
      taken_.push_back(born);
      waits_ = waits_ || op.host_waits;
      Bytes freed = op.workspace;
      for (const TraceBlockId id : op.frees) freed += trace.blocks[id].bytes;
      given_.push_back(freed);
    }
    on_host_ = trace.host_ms() > 0;
    if (on_host_ && !waits_) lead_ms_ = host_lead(trace.host_ms(), trace.operators.size());
  }

  const PlanTiming& time(const Plan& plan, bool with_timeline) {
    plan_ = &plan;
    timeline_ = with_timeline;
    run_until_steady(lead_ms_);
    // A host that takes longer than the device is never ahead.
    if (lead_ms_ > 0 && timing_.host_ms > timing_.step_ms) run_until_steady(0);
    if (timeline_) show_copies();
    return timing_;
  }

 private:
  void run_until_steady(double lead_ms) {
    clock_.reset(lead_ms);
    begin_first_step();
    bool began_idle = true;
    double last_ms = -1;
    double last_busy_ms = -1;
    for (int step = 0; step < kMostSteps; ++step) {
      blocks_ = start_;
      one_step();
      const bool idle = clock_.in_backlog() <= 0;
      const bool same = find_next_start();
      const double allowed = kSame * timing_.step_ms;
      const bool repeats = std::abs(timing_.step_ms - last_ms) <= allowed &&
                           std::abs(timing_.in_busy_ms - last_busy_ms) <= allowed;
      if (same && ((began_idle && idle && !on_host_) || repeats)) break;
      std::swap(start_, next_);
      began_idle = idle;
      last_ms = timing_.step_ms;
      last_busy_ms = timing_.in_busy_ms;
    }
  }

  struct Mark {
    double now, tax, waited, out_busy, in_busy, late, issued;
  };
  [[nodiscard]] Mark mark() const {
    return {clock_.now(),     clock_.tax(),  clock_.waited(), clock_.out_busy(),
            clock_.in_busy(), clock_.late(), clock_.issued()};
  }

  void begin_first_step() {
    start_.assign(trace_.blocks.size(), {});
    device_at_start_ = 0;
    for (const TraceBlock& block : trace_.blocks) {
      device_at_start_ += block.born_in_step ? 0 : block.bytes;
    }
    for (const TraceBlockId id : plan_->absent_at_start) {
      device_at_start_ -= trace_.blocks[id].bytes;
      start_[id].clean = start_[id].absent = true;
    }
  }

  /// The blocks of the next step are as this one leaves them. True if that is how it began.
  bool find_next_start() {
    next_.assign(trace_.blocks.size(), {});
    bool same = true;
    for (std::size_t id = 0; id < next_.size(); ++id) {
      const TraceBlock& block = trace_.blocks[id];
      if (block.born_in_step) continue;
      next_[id] = blocks_[trace_.name_at_birth(static_cast<TraceBlockId>(id))];
      std::uint32_t& in = next_[id].in;
      if (in != kNone && clock_.in_done(in)) in = kNone;
      const BlockState& was = start_[id];
      same = same && was.clean == next_[id].clean && (was.in == kNone) == (in == kNone);
    }
    return same;
  }

  void one_step() {
    timing_ = {};
    started_out_.clear();
    started_in_.clear();
    device_ = device_at_start_;
    const Mark begin = mark();
    begin_ms_ = begin.now;
    pending_ms_ = 0;
    measure(device_);
    auto directive = plan_->directives.begin();
    for (now_ = 0; now_ <= trace_.operators.size(); ++now_) {
      const double waited = clock_.waited();
      for (; directive != plan_->directives.end() && directive->before == now_; ++directive) {
        obey(*directive);
      }
      if (now_ < trace_.operators.size()) operate(trace_.operators[now_], waited);
    }
    settle();
    const Mark end = mark();
    timing_.step_ms = end.now - begin.now;
    timing_.tax_ms = end.tax - begin.tax;
    timing_.waited_ms = end.waited - begin.waited;
    timing_.late_ms = end.late - begin.late;
    timing_.host_ms = end.issued - begin.issued;
    timing_.out_busy_ms = end.out_busy - begin.out_busy;
    timing_.in_busy_ms = end.in_busy - begin.in_busy;
  }

  /// Computation is saved up until something else happens.
  void settle() {
    clock_.compute(pending_ms_);
    pending_ms_ = 0;
  }

  /// The host takes so long before what comes next.
  void issue(double ms) {
    if (!on_host_) return;
    settle();
    clock_.issue(ms);
  }

  void measure(Bytes bytes) { timing_.peak = std::max(timing_.peak, bytes); }

  void await_in(BlockState& block) {
    if (block.in == kNone) return;
    settle();
    clock_.wait_in(std::exchange(block.in, kNone));
  }

  void obey(const Directive& directive) {
    BlockState& block = blocks_[directive.block];
    const Bytes bytes = trace_.blocks[directive.block].bytes;
    switch (directive.action) {
      case Action::kKeep:
        return;
      case Action::kStartOut:
        if (block.clean) return;
        issue(host_.copy_ms);
        settle();
        block.out = clock_.start_out(bytes);
        timing_.bytes_out += bytes;
        if (timeline_) started_out_.emplace_back(block.out, directive.block);
        return;
      case Action::kFinishOut:
        issue(host_.leave_ms);
        await_in(block);
        if (block.out != kNone) {
          settle();
          clock_.wait_out(std::exchange(block.out, kNone));
        }
        block.clean = block.absent = true;
        device_ -= bytes;
        return;
      case Action::kStartIn:
        issue(host_.copy_ms);
        settle();
        block.in = clock_.start_in(bytes);
        timing_.bytes_in += bytes;
        if (timeline_) started_in_.emplace_back(block.in, directive.block);
        block.absent = false;
        device_ += bytes;
        measure(device_);
        return;
      case Action::kDrop:
        issue(host_.leave_ms);
        await_in(block);
        block.clean = false;
        block.absent = true;
        device_ -= bytes;
        return;
      case Action::kRematerialise:
        rematerialise(directive.block);
        return;
    }
  }

  void rematerialise(TraceBlockId id) {
    issue(host_.remake_ms);
    blocks_[id].absent = false;
    device_ += trace_.blocks[id].bytes;
    timing_.bytes_recomputed += trace_.blocks[id].bytes;
    if (!producers_) producers_.emplace(trace_);
    const auto lineage = producers_->at(id, now_);
    for (const std::size_t at : lineage) {
      const TraceOperator& op = trace_.operators[at];
      for (const TraceBlockId read : op.again_reads()) {
        if (read != id && !op.spares(read)) await_in(blocks_[read]);
      }
    }
    for (const std::size_t at : lineage) {
      const TraceOperator& op = trace_.operators[at];
      const bool born_here = std::ranges::find(op.allocs, id) != op.allocs.end();
      measure(device_ + taken_[at] - (born_here ? trace_.blocks[id].bytes : 0));
      pending_ms_ += op.again_ms();
      timing_.recomputed_ms += op.again_ms();
      timing_.compute_ms += op.again_ms();
    }
    measure(device_);
  }

  void operate(const TraceOperator& op, double waited) {
    issue(op.host_ms);
    for (const TraceBlockId id : op.reads) await_in(blocks_[id]);
    for (const TraceBlockId id : op.writes) {
      await_in(blocks_[id]);
      blocks_[id].clean = false;
    }
    device_ += taken_[now_];
    measure(device_);
    if (timeline_) settle();
    const double began = clock_.now();
    pending_ms_ += op.ms;
    timing_.compute_ms += op.ms;
    if (timeline_) {
      settle();
      timing_.operators.push_back(
          {began - begin_ms_, clock_.now() - begin_ms_, clock_.waited() - waited, device_});
    }
    if (op.host_waits && on_host_) {
      settle();
      clock_.host_waits();
    }
    device_ -= given_[now_];
    for (const TraceBlockId id : op.frees) {
      await_in(blocks_[id]);
      if (blocks_[id].absent) device_ += trace_.blocks[id].bytes;
      blocks_[id] = {};
    }
  }

  void show_copies() {
    for (const auto& [ticket, id] : started_in_) clock_.wait_in(ticket);
    for (const auto& [ticket, id] : started_out_) {
      const auto [begin, end] = clock_.out_times(ticket);
      timing_.copies.push_back({id, true, begin - begin_ms_, end - begin_ms_});
    }
    for (const auto& [ticket, id] : started_in_) {
      const auto [begin, end] = clock_.in_times(ticket);
      timing_.copies.push_back({id, false, begin - begin_ms_, end - begin_ms_});
    }
  }

  const Trace& trace_;
  const HostCosts host_;
  bool on_host_ = false;  ///< it is known what the host takes
  bool waits_ = false;    ///< and it waits for the device in the step
  double lead_ms_ = 0;    ///< by which the host is ahead when the first step begins
  StepClock clock_;
  const Plan* plan_ = nullptr;
  bool timeline_ = false;
  PlanTiming timing_;
  std::vector<BlockState> blocks_;
  std::vector<BlockState> start_;
  std::vector<BlockState> next_;
  std::vector<Bytes> taken_;  ///< by each operator: its results and its workspace
  std::vector<Bytes> given_;  ///< back by each operator, if all that ends there is on the device
  std::optional<Producers> producers_;
  std::vector<std::pair<std::uint32_t, TraceBlockId>> started_out_;
  std::vector<std::pair<std::uint32_t, TraceBlockId>> started_in_;
  std::size_t now_ = 0;
  Bytes device_ = 0;
  Bytes device_at_start_ = 0;
  double begin_ms_ = 0;
  double pending_ms_ = 0;
};

PlanTimer::PlanTimer(const Trace& trace, const LinkModel& link)
    : run_(std::make_unique<Run>(trace, link)) {}
PlanTimer::PlanTimer(PlanTimer&&) noexcept = default;
PlanTimer& PlanTimer::operator=(PlanTimer&&) noexcept = default;
PlanTimer::~PlanTimer() = default;

const PlanTiming& PlanTimer::time(const Plan& plan, bool with_timeline) {
  return run_->time(plan, with_timeline);
}

PlanTiming time_plan(const Trace& trace, const Plan& plan, const LinkModel& link,
                     bool with_timeline) {
  return PlanTimer(trace, link).time(plan, with_timeline);
}

}  // namespace lms
