#include "pilot/overheard.h"

#include <algorithm>
#include <span>
#include <unordered_map>
#include <utility>

#include "pilot/kinds_of_steps.h"
#include "pilot/pilot.h"

namespace lms {
namespace {

/// Where the whole has rounds of the part, its operators take what they do in that.
void take_times_of_rounds(Script& whole, const Script& part) {
  const auto& in_part = part.shape.operators;
  const auto& in_whole = whole.shape.operators;
  for (std::size_t at = 0; at + in_part.size() <= in_whole.size();) {
    const bool is_round =
        std::ranges::equal(in_part, std::span(in_whole).subspan(at, in_part.size()), {},
                           &StepShape::Operator::key, &StepShape::Operator::key);
    if (!is_round) {
      ++at;
      continue;
    }
    for (std::size_t i = 0; i < in_part.size(); ++i, ++at) {
      whole.shape.trace.operators[at].ms = part.shape.trace.operators[i].ms;
    }
  }
}

}  // namespace

void Overheard::listen(std::uint64_t until, Bytes marginal) {
  until_ = std::max(until_, until);
  if (log_) return;
  log_ = std::make_unique<StepLog>();
  log_->set_marginal(marginal);
}

void Overheard::stop() {
  log_.reset();
  until_ = again_ = 0;
}

std::optional<StepLog::Span> Overheard::repeated(std::uint64_t now) {
  if (now >= until_) stop();
  return log_ && now >= again_ ? log_->repeated_step() : std::nullopt;
}

/// A step of which parts have been followed may have come twice by now. It gets a plan while they
/// are followed on, if their times are known, and else is timed first.
void Pilot::look_for_whole() {
  if (!overheard_.log()) return;
  const auto span = overheard_.repeated(operators_);
  if (!overheard_.log()) wants_costs_ = !walking();
  // One at a time: the one before may wait until another plan has been made.
  if (!span || whole_ || scripts_.size() >= kMostScripts) return;
  const std::uint64_t size = span->end - span->begin;
  const auto go_on = [&] { overheard_.pause(operators_ + pause_after(size)); };
  if (size <= growth_.longer_than) return go_on();
  const auto is_it = [&](const auto& one) { return one->suspected && one->size() == size; };
  if (std::ranges::any_of(scripts_, is_it)) return go_on();
  auto script = std::make_shared<Script>();
  script->shape = make_shape(*overheard_.log(), *span);
  const auto is_known = [&](const auto& one) { return same_round(one->shape, script->shape); };
  if (is_several(script->shape) || std::ranges::any_of(scripts_, is_known)) return go_on();
  if (bytes_needed(script->shape) < options_.limit / 2) return go_on();
  get_to_know(*script);
  Walk walk(*script);
  if (!walk.go_along(*overheard_.log(), span->end)) return go_on();
  growth_ = {};
  if (estimate_times(*script)) {
    script->waits = true;
    whole_ = script;
  } else {
    walk_along(script, std::move(walk));
    log_.clear();
    leave_parts_alone(*script);
  }
  detours_.know(size);
  scripts_.push_back(std::move(script));
  stats_.shapes = static_cast<std::int64_t>(scripts_.size());
  overheard_.stop();
  wants_costs_ = !walking();
}

/// What its operators take, as far as steps tell that have been timed; what is in none of these
/// takes as long as the bytes that it uses, at the best rate among those. False if none has been.
bool Pilot::estimate_times(Script& whole) const {
  struct Sum {
    double ms = 0;
    int count = 0;
  };
  std::unordered_map<OperatorKey, Sum> by_key;
  double bytes_per_ms = 0;
  const auto bytes_of = [](const Trace& trace, const TraceOperator& op) {
    Bytes bytes = 0;
    for (const auto* ids : {&op.reads, &op.writes}) {
      for (const TraceBlockId id : *ids) bytes += trace.blocks[id].bytes;
    }
    return static_cast<double>(bytes);
  };
  for (const auto& known : scripts_) {
    if (!known->planned) continue;
    const Trace& trace = known->shape.trace;
    for (std::size_t i = 0; i < known->size(); ++i) {
      const TraceOperator& op = trace.operators[i];
      Sum& sum = by_key[known->shape.operators[i].key];
      sum.ms += op.ms;
      ++sum.count;
      if (op.ms > 0) bytes_per_ms = std::max(bytes_per_ms, bytes_of(trace, op) / op.ms);
    }
  }
  if (bytes_per_ms <= 0) return false;
  Trace& trace = whole.shape.trace;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    TraceOperator& op = trace.operators[i];
    const auto sum = by_key.find(whole.shape.operators[i].key);
    op.ms = sum != by_key.end() ? sum->second.ms / sum->second.count
                                : bytes_of(trace, op) / bytes_per_ms;
  }
  for (const auto& known : scripts_) {
    if (known->planned) take_times_of_rounds(whole, *known);
  }
  return true;
}

/// The whole is followed from its next beginning on, which is its parts' as well. `still`: it has
/// come again, and what is left alone stays so, but for steps of their own, which have plans.
void Pilot::leave_parts_alone(const Script& whole, bool still) {
  for (const auto& part : scripts_) {
    const bool is_left = operators_ < part->shunned_until && (part->is_part || !part->planned);
    if (still && !is_left) continue;
    if (!begins_with(whole.shape, part->shape)) continue;
    part->shunned_until = operators_ + kSeen * whole.size();
  }
}

/// Whatever is followed meanwhile, which may never come to its end.
void Pilot::see_to_whole() {
  if (job_ && job_->done && (job_->original->waits || job_->stop)) take_over();
  if (whole_) hurry(*whole_);
  if (!whole_ || job_ || timing_ || due_) return;
  due_ = job_ = std::make_shared<Job>();
  job_->original = std::exchange(whole_, nullptr);
  job_->made = std::make_shared<Script>(*job_->original);
  job_->timed = false;
  job_->first = std::ranges::none_of(scripts_, [](const auto& one) { return one->planned; });
  job_->options = options_;
}

}  // namespace lms
