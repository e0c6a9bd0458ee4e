#include "sim/device.h"

#include <algorithm>

namespace lms {
namespace {

/// A byte that differs between neighbours and between values.
std::byte pattern(std::uint64_t value, std::size_t position) {
  std::uint64_t mixed = (value + 1) * 0x9E3779B97F4A7C15U + position * 0xD1B54A32D192ED03U;
  mixed ^= mixed >> 29U;
  return static_cast<std::byte>(mixed >> 3U);
}

}  // namespace

SimBlock::SimBlock(SimDevice& device, Bytes size) : Block(size), device_(device) {
  if (device.options_.contents) bytes_.resize(static_cast<std::size_t>(size));
  device.take_device(size);
  on_device_ = true;
}

SimBlock::~SimBlock() {
  const std::lock_guard guard(device_.mutex_);
  if (on_device_) device_.device_.sub(size);
  if (below_) device_.host_.sub(size);
}

void SimBlock::fill(std::uint64_t value) {
  for (std::size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = pattern(value, i);
}

bool SimBlock::holds(std::uint64_t value) const {
  if (!on_device_) return false;
  for (std::size_t i = 0; i < bytes_.size(); ++i) {
    if (bytes_[i] != pattern(value, i)) return false;
  }
  return true;
}

std::unique_ptr<SimBlock> SimDevice::make_block(Bytes size) {
  return std::unique_ptr<SimBlock>(new SimBlock(*this, size));
}

void SimDevice::take_device(Bytes bytes) {
  const std::lock_guard guard(mutex_);
  if (bytes > options_.device_bytes - device_.current) {
    throw OutOfMemory("the simulated device of " + format_bytes(options_.device_bytes) +
                      " has no room for " + format_bytes(bytes) + " beside " +
                      format_bytes(device_.current));
  }
  device_.add(bytes);
}

void SimDevice::fail_if_told(Direction direction) {
  const std::lock_guard guard(mutex_);
  int& left = failures_.at(static_cast<std::size_t>(direction));
  if (left == 0) return;
  --left;
  if (direction == Direction::kOut) throw TierFull("simulated failure of a move out");
  throw OutOfMemory("simulated failure of a move in");
}

void SimDevice::fail_next(Direction direction, int count) {
  const std::lock_guard guard(mutex_);
  failures_.at(static_cast<std::size_t>(direction)) = count;
}

void SimDevice::copy(SimBlock& block, Direction direction) {
  const bool out = direction == Direction::kOut;
  const std::vector<std::byte>& from = out ? block.bytes_ : block.copy_;
  std::vector<std::byte>& to = out ? block.copy_ : block.bytes_;
  to.resize(from.size());
  const auto middle = static_cast<std::ptrdiff_t>(from.size() / 2);
  std::copy(from.begin(), from.begin() + middle, to.begin());
  if (hooks_.mid_move) hooks_.mid_move(block, direction);
  std::copy(from.begin() + middle, from.end(), to.begin() + middle);

  const double rate = out ? options_.out_bytes_per_ms : options_.in_bytes_per_ms;
  const double ms = options_.latency_ms + static_cast<double>(block.size) / rate;
  const std::lock_guard guard(mutex_);
  now_ms_ += ms;
  stalled_ms_ += ms;
}

std::optional<Bytes> SimDevice::page_out(Block& block, bool clean) {
  auto& sim = static_cast<SimBlock&>(block);
  if (hooks_.before_page_out) hooks_.before_page_out(sim);
  if (!sim.alive_.load()) return std::nullopt;
  fail_if_told(Direction::kOut);
  if (clean) {
    if (hooks_.mid_move) hooks_.mid_move(sim, Direction::kOut);
  } else {
    if (!sim.below_) {
      const std::lock_guard guard(mutex_);
      if (sim.size > options_.host_bytes - host_.current) {
        throw TierFull("the simulated host memory of " + format_bytes(options_.host_bytes) +
                       " has no room for " + format_bytes(sim.size));
      }
      host_.add(sim.size);
    }
    sim.below_ = true;
    copy(sim, Direction::kOut);
  }
  give_back(sim);
  return clean ? 0 : sim.size;
}

void SimDevice::give_back(SimBlock& block) {
  block.bytes_ = {};
  block.on_device_ = false;
  const std::lock_guard guard(mutex_);
  device_.sub(block.size);
}

bool SimDevice::drop(Block& block, Bytes /*most*/) {
  auto& sim = static_cast<SimBlock&>(block);
  if (!sim.alive_.load() || !hooks_.drop || !hooks_.drop(sim)) return false;
  give_back(sim);
  drop_copy(sim);
  return true;
}

bool SimDevice::drop_absent(Block& block, Bytes /*most*/) {
  auto& sim = static_cast<SimBlock&>(block);
  if (!sim.alive_.load() || !hooks_.drop || !hooks_.drop(sim)) return false;
  drop_copy(sim);
  return true;
}

bool SimDevice::rematerialise(Block& block, const std::function<void()>& take) {
  auto& sim = static_cast<SimBlock&>(block);
  if (!sim.alive_.load()) return false;
  if (hooks_.before_count) hooks_.before_count();
  take();
  if (hooks_.before_take) hooks_.before_take(sim.size);
  take_device(sim.size);
  sim.on_device_ = true;
  if (options_.contents) sim.bytes_.resize(static_cast<std::size_t>(sim.size));
  try {
    if (hooks_.rematerialise && hooks_.rematerialise(sim)) return true;
  } catch (...) {
    give_back(sim);
    throw;
  }
  give_back(sim);
  return false;
}

std::optional<Bytes> SimDevice::page_in(Block& block, bool /*ahead*/) {
  auto& sim = static_cast<SimBlock&>(block);
  if (!sim.alive_.load()) return std::nullopt;
  fail_if_told(Direction::kIn);
  if (hooks_.before_take) hooks_.before_take(sim.size);
  take_device(sim.size);
  sim.on_device_ = true;
  copy(sim, Direction::kIn);
  block.has_copy = true;
  return sim.size;
}

void SimDevice::drop_copy(Block& block) noexcept {
  auto& sim = static_cast<SimBlock&>(block);
  if (!sim.below_) return;
  sim.copy_ = {};
  sim.below_ = false;
  const std::lock_guard guard(mutex_);
  host_.sub(sim.size);
}

bool SimDevice::copy_matches(Block& block) {
  auto& sim = static_cast<SimBlock&>(block);
  return sim.below_ && sim.bytes_ == sim.copy_;
}

void SimDevice::advance(double ms) {
  const std::lock_guard guard(mutex_);
  now_ms_ += ms;
}

double SimDevice::now_ms() const {
  const std::lock_guard guard(mutex_);
  return now_ms_;
}

double SimDevice::stalled_ms() const {
  const std::lock_guard guard(mutex_);
  return stalled_ms_;
}

Bytes SimDevice::device_used() const {
  const std::lock_guard guard(mutex_);
  return device_.current;
}

Bytes SimDevice::device_peak() const {
  const std::lock_guard guard(mutex_);
  return device_.peak;
}

Bytes SimDevice::host_used() const {
  const std::lock_guard guard(mutex_);
  return host_.current;
}

}  // namespace lms
