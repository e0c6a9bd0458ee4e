#include "sim/lanes.h"

#include <algorithm>

namespace lms {

void LaneDevice::wait_until(double ms) {
  if (ms <= now_ms_) return;
  waited_ms_ += ms - now_ms_;
  now_ms_ = ms;
}

double LaneDevice::copy(double& lane, double after, Bytes bytes, double rate) const {
  lane = std::max(lane, after) + options_.latency_ms + static_cast<double>(bytes) / rate;
  return lane;
}

std::optional<Bytes> LaneDevice::page_out(Block& base, bool clean) {
  auto& block = static_cast<LaneBlock&>(base);
  wait_until(std::max(block.arrives_ms_, block.copied_ms_));
  if (clean) return 0;
  block.copied_ms_ = copy(out_ms_, now_ms_, block.size, options_.out_bytes_per_ms);
  wait_until(block.copied_ms_);
  return block.size;
}

std::optional<Bytes> LaneDevice::copy_below(Block& base) {
  auto& block = static_cast<LaneBlock&>(base);
  block.copied_ms_ =
      copy(out_ms_, std::max(now_ms_, block.arrives_ms_), block.size, options_.out_bytes_per_ms);
  return block.size;
}

std::optional<Bytes> LaneDevice::page_in(Block& base, bool ahead) {
  auto& block = static_cast<LaneBlock&>(base);
  block.arrives_ms_ =
      copy(in_ms_, std::max(now_ms_, block.copied_ms_), block.size, options_.in_bytes_per_ms);
  if (!ahead) wait_until(block.arrives_ms_);
  block.has_copy = true;
  return block.size;
}

void LaneDevice::use(const Block& block) {
  wait_until(static_cast<const LaneBlock&>(block).arrives_ms_);
}

}  // namespace lms
