#include "adapters/torch/cuda/device_arena.h"

#include <algorithm>
#include <limits>

namespace lms::torch {

using Guard = std::lock_guard<std::mutex>;

namespace {
constexpr Bytes kChunk = cuda::VirtualMemory::granularity();
}  // namespace

DeviceArena::DeviceArena(int device, Bytes reserve) : memory_(device, reserve) {}

void* DeviceArena::register_stay(Bytes address, Bytes size, BlockUid uid) {
  try {
    memory_.map(address, address + size);
    note_mapped();
  } catch (const OutOfMemory&) {
    // The device has less than we may take: what is behind the window now is all there is.
    map_.give(address);
    set_end(base_ + memory_.mapped() - below_);
    return nullptr;
  }
  Stay& stay = stays_[address];
  stay.address = address;
  stay.size = size;
  stay.uid = uid;
  used_ += size;
  peak_ = std::max(peak_.load(), used_.load());
  taken_ += size;
  return memory_.base() + address;
}

void* DeviceArena::take_at(Bytes address, Bytes size, BlockUid uid) {
  const Guard guard(mutex_);
  return map_.take_at(address, size) ? register_stay(address, size, uid) : nullptr;
}

void* DeviceArena::take(Bytes size, BlockUid uid) {
  const Guard guard(mutex_);
  const auto address = map_.take(size);
  return address ? register_stay(*address, size, uid) : nullptr;
}

std::optional<DeviceArena::Stay> DeviceArena::look(const void* data) {
  const Guard guard(mutex_);
  const Stay* stay = find(data);
  return stay == nullptr ? std::nullopt : std::optional(*stay);
}

void DeviceArena::give(const void* data) {
  const Guard guard(mutex_);
  const Stay* stay = find(data);
  if (stay == nullptr) return;
  const Bytes address = stay->address;
  used_ -= stay->size;
  stays_.erase(address);
  map_.give(address);
}

DeviceArena::Stay* DeviceArena::find(const void* data) {
  const auto found = stays_.find(static_cast<const std::byte*>(data) - memory_.base());
  return found == stays_.end() ? nullptr : &found->second;
}

BlockUid DeviceArena::uid_of(const void* data) {
  const Guard guard(mutex_);
  const Stay* stay = find(data);
  return stay == nullptr ? 0 : stay->uid;
}

void DeviceArena::set_block(const void* data, CudaBlock* block) {
  const Guard guard(mutex_);
  if (Stay* stay = find(data)) stay->block = block;
}

void DeviceArena::unlink(const void* data, const CudaBlock* block) noexcept {
  const Guard guard(mutex_);
  Stay* stay = find(data);
  if (stay != nullptr && stay->block == block) stay->block = nullptr;
}

void DeviceArena::set_arriving(const void* data, cuda::EventPtr event) {
  const Guard guard(mutex_);
  if (Stay* stay = find(data)) stay->arriving = std::move(event);
}

void DeviceArena::add_user(const void* data, cudaStream_t stream) {
  const Guard guard(mutex_);
  Stay* stay = find(data);
  if (stay != nullptr && std::ranges::find(stay->users, stream) == stay->users.end()) {
    stay->users.push_back(stream);
  }
}

void DeviceArena::disown(const void* data) {
  const Guard guard(mutex_);
  if (Stay* stay = find(data)) {
    stay->uid = 0;
    stay->block = nullptr;
  }
}

std::vector<CudaBlock*> DeviceArena::occupants(Bytes address, Bytes size) {
  const Guard guard(mutex_);
  std::vector<CudaBlock*> found;
  map_.for_overlapping(address, size, [&](Bytes at, Bytes) {
    const auto stay = stays_.find(at);
    if (stay != stays_.end() && stay->second.block != nullptr) found.push_back(stay->second.block);
  });
  return found;
}

std::optional<std::vector<CudaBlock*>> DeviceArena::cheapest(
    Bytes size, const std::function<double(CudaBlock&)>& cost) {
  const Guard guard(mutex_);
  const auto window = map_.cheapest_window(size, [&](Bytes at, Bytes) {
    const auto found = stays_.find(at);
    CudaBlock* block = found == stays_.end() ? nullptr : found->second.block;
    return block == nullptr ? std::numeric_limits<double>::infinity() : cost(*block);
  });
  if (!window) return std::nullopt;
  std::vector<CudaBlock*> blocks;
  map_.for_overlapping(window->address, window->size,
                       [&](Bytes at, Bytes) { blocks.push_back(stays_.at(at).block); });
  return blocks;
}

void DeviceArena::note_mapped() {
  mapped_ = memory_.mapped();
  mapped_peak_ = std::max(mapped_peak_.load(), mapped_.load());
}

Bytes DeviceArena::end_for(Bytes budget) {
  const Guard guard(mutex_);
  return base_ + std::max<Bytes>(budget - below_, 0) / kChunk * kChunk;
}

void DeviceArena::set_end(Bytes end) {
  map_.set_capacity(std::clamp(end, std::max(map_.top(), base_.load()), memory_.reserved()));
}

void DeviceArena::set_budget(Bytes bytes) {
  const Bytes end = end_for(bytes);
  const Guard guard(mutex_);
  set_end(end);
}

void DeviceArena::move_window() {
  const Guard guard(mutex_);
  Bytes above = 0;
  for (const auto& [address, stay] : stays_) {
    if (address >= base_) above = std::max(above, address + stay.size);
  }
  const Bytes room = map_.capacity() - base_;
  if (above > base_ && round_up(above, kChunk) + room <= memory_.reserved()) {
    base_ = round_up(above, kChunk);
  }
  // Memory stays behind what is in use; all other addresses below are walled off.
  for (const Bytes wall : walls_) map_.give(wall);
  walls_.clear();
  Bytes from = 0;
  std::vector<std::pair<Bytes, Bytes>> gaps;
  map_.for_each([&](Bytes address, Bytes size) {
    if (address > from) gaps.emplace_back(from, address);
    from = address + size;
  });
  if (from < base_) gaps.emplace_back(from, base_.load());
  map_.set_capacity(std::max(map_.capacity(), base_ + room));
  for (const auto& [begin, end] : gaps) {
    memory_.unmap(begin, end);
    if (map_.take_at(begin, end - begin)) walls_.push_back(begin);
  }
  memory_.unmap(base_, memory_.reserved());
  below_ = memory_.mapped();
  note_mapped();
}

void DeviceArena::trim() {
  const Guard guard(mutex_);
  memory_.unmap(std::max(map_.top(), base_.load()), memory_.reserved());
  note_mapped();
}

void DeviceArena::allow(int peer) {
  const Guard guard(mutex_);
  memory_.allow(peer);
}

Bytes DeviceArena::room() {
  const Guard guard(mutex_);
  return map_.capacity() - base_;
}

Bytes DeviceArena::free() {
  const Guard guard(mutex_);
  Bytes inside = 0;
  for (const auto& [address, stay] : stays_) inside += address >= base_ ? stay.size : 0;
  return map_.capacity() - base_ - inside;
}

Bytes DeviceArena::top() {
  const Guard guard(mutex_);
  return map_.top();
}

void DeviceArena::reset_peak() {
  peak_ = used_.load();
  mapped_peak_ = mapped_.load();
}

}  // namespace lms::torch
