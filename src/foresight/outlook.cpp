#include "foresight/outlook.h"

#include <algorithm>

namespace lms {
namespace {

/// Operators between two looks at what has moved.
constexpr std::uint64_t kAskEvery = 16;

}  // namespace

bool Outlook::begin_operator(OperatorKey key) {
  if (resting_) {
    resting_ = false;
    duel_.restart();
  }
  forecast_.begin_operator(key);
  duel_.ghost().begin_operator();
  foresight_->now = forecast_.now();
  foresight_->trusted = forecast_.trusted() && duel_.follow();
  return ++operators_ % kAskEvery == 0;
}

void Outlook::touch(Block& block, Bytes bytes, bool writes) {
  const Forecast::Expected expected = forecast_.touch(block.uid);
  block.expected_use = expected.at;
  block.expected_end = expected.ends;
  duel_.ghost().touch(block.uid, bytes, writes);
}

void Outlook::released(BlockUid uid) {
  forecast_.released(uid);
  duel_.ghost().released(uid);
}

void Outlook::look(const EngineStats& now, Bytes limit) {
  // The peak may be one of another limit, until there is a new one.
  if (!looked_) peak_before_ = now.device.peak;
  looked_ = true;
  most_ = std::max(most_, now.device.current);
  const Bytes room = now.device.peak != peak_before_ ? now.device.peak : most_;
  duel_.look({.in_all = now.bytes_in + now.bytes_out, .ahead = ahead_.copied()}, room, limit);
}

void Outlook::collect(std::vector<Ahead::Wanted>& wanted) {
  if (trusted()) ahead_.collect(forecast_, wanted);
}

void Outlook::rest() {
  if (resting_) return;
  resting_ = true;
  foresight_->trusted = false;
  forecast_.lose_track();
}

void Outlook::clear() {
  forecast_.clear();
  duel_.clear();
  foresight_->trusted = false;
  looked_ = false;
  most_ = 0;
  ahead_.forget();
}

}  // namespace lms
