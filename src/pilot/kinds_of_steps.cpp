#include "pilot/kinds_of_steps.h"

#include <algorithm>
#include <array>
#include <functional>
#include <span>

namespace lms {
namespace {

/// True if from operator `first` of `whole` on there is a round of `part`, and its beginning again.
bool repeats_at(const StepShape& whole, std::size_t first, const StepShape& part) {
  const std::size_t size = part.operators.size();
  const std::size_t all = size + std::min(kTellTale, size);
  if (whole.operators.size() < first + all) return false;
  for (std::size_t i = 0; i < all; ++i) {
    if (whole.operators[first + i].key != part.operators[i % size].key) return false;
  }
  return true;
}

/// `key`: of an operator.
template <typename Key>
bool has_rounds(std::uint64_t operators, Key key) {
  return std::ranges::any_of(std::array{2U, 3U}, [&](std::uint64_t rounds) {
    const std::uint64_t lag = operators / rounds;
    if (operators % rounds != 0) return false;
    for (std::uint64_t i = lag; i < operators; ++i) {
      if (key(i) != key(i - lag)) return false;
    }
    return true;
  });
}

std::vector<bool> which_are_written(const StepShape& shape) {
  std::vector<bool> written(shape.trace.blocks.size());
  for (const TraceOperator& op : shape.trace.operators) {
    for (const TraceBlockId id : op.writes) written[id] = true;
  }
  return written;
}

}  // namespace

bool same_operators(const StepShape& a, const StepShape& b) {
  return std::ranges::equal(a.operators, b.operators, {}, &StepShape::Operator::key,
                            &StepShape::Operator::key);
}

bool same_round(const StepShape& a, const StepShape& b) {
  if (a.operators.size() != b.operators.size()) return false;
  std::vector<OperatorKey> twice;
  std::vector<OperatorKey> once;
  for (int round = 0; round < 2; ++round) {
    for (const auto& op : a.operators) twice.push_back(op.key);
  }
  for (const auto& op : b.operators) once.push_back(op.key);
  const std::boyer_moore_searcher find(once.begin(), once.end());
  return std::search(twice.begin(), twice.end(), find) != twice.end();
}

bool repeats(const StepShape& whole, const StepShape& part) { return repeats_at(whole, 0, part); }

bool begins_with(const StepShape& whole, const StepShape& part) {
  if (whole.operators.size() <= part.operators.size()) return false;
  const auto beginning = std::span(whole.operators).first(part.operators.size());
  return std::ranges::equal(beginning, part.operators, {}, &StepShape::Operator::key,
                            &StepShape::Operator::key);
}

bool has_part(const StepShape& whole, const StepShape& part) {
  for (std::size_t first = 0; first < whole.operators.size(); ++first) {
    if (repeats_at(whole, first, part)) return true;
  }
  return false;
}

bool is_several(const StepShape& shape) {
  return has_rounds(shape.operators.size(),
                    [&](std::uint64_t i) { return shape.operators[i].key; });
}

bool is_several(StepLog& log, StepLog::Span span) {
  return has_rounds(span.end - span.begin,
                    [&](std::uint64_t i) { return log.at(span.begin + i).key; });
}

std::vector<BlockUid> only_read(const StepShape& shape) {
  const std::vector<TraceBlock>& blocks = shape.trace.blocks;
  const std::vector<bool> written = which_are_written(shape);
  std::vector<BlockUid> found;
  for (TraceBlockId id = 0; id < blocks.size(); ++id) {
    if (blocks[id].lasts() && !written[id]) found.push_back(shape.uids[id]);
  }
  std::ranges::sort(found);
  return found;
}

std::size_t updated_by(const StepShape& shape) {
  constexpr std::size_t kNearlyAll = 9;  // of ten
  enum class State : std::uint8_t { kUntouched, kRead, kDone };
  std::vector<State> states(shape.trace.blocks.size(), State::kUntouched);
  std::vector<std::size_t> updates;
  for (std::size_t i = 0; i < shape.operators.size(); ++i) {
    for (const auto& touch : shape.operators[i].touches) {
      const auto id = static_cast<std::size_t>(touch.block);
      if (!shape.trace.blocks[id].lasts()) continue;
      if (!touch.writes) {
        if (states[id] == State::kUntouched) states[id] = State::kRead;
        continue;
      }
      if (states[id] == State::kRead) updates.push_back(i);
      states[id] = State::kDone;
    }
  }
  if (updates.empty()) return shape.operators.size();
  return updates[(updates.size() * kNearlyAll) / 10];
}

}  // namespace lms
