#include "adapters/torch/cuda/device_arena.h"

#include <algorithm>
#include <limits>

#include "adapters/torch/cuda/cuda_block.h"
#include "plan/place/placement.h"

namespace lms::torch {

using Guard = std::lock_guard<std::mutex>;

DeviceArena::DeviceArena(int device, Bytes reserve, Bytes page) : memory_(device, reserve, page) {}

/// Puts memory behind addresses that have been taken. If there is none, they are free again.
bool DeviceArena::back(Bytes address, Bytes size, MayGrow may_grow) {
  const Bytes missing = memory_.missing(address, address + size);
  if (missing > 0 && !may_grow(memory_.mapped() + missing)) {
    map_.give(address);
    return false;
  }
  try {
    memory_.map(address, address + size);
    note_mapped();
    return true;
  } catch (const OutOfMemory&) {
    // The device has less than we may take: what is behind the window now is all there is.
    map_.give(address);
    set_end(base_ + memory_.mapped() - below_);
    return false;
  }
}

void* DeviceArena::register_stay(Bytes address, Bytes size, BlockUid uid, MayGrow may_grow) {
  return back(address, size, may_grow) ? register_at(address, size, uid) : nullptr;
}

void* DeviceArena::register_at(Bytes address, Bytes size, BlockUid uid) {
  Stay& stay = stays_[address];
  stay.address = address;
  stay.size = size;
  stay.uid = uid;
  // Written under the lock alone.
  const Bytes used = this->used() + size;
  used_.store(used, std::memory_order_relaxed);
  if (used > peak()) peak_.store(used, std::memory_order_relaxed);
  taken_.store(taken() + size, std::memory_order_relaxed);
  return memory_.base() + address;
}

/// Where these chunks lie side by side, or kNoAddress if there are no addresses for it.
Bytes DeviceArena::side_by_side(const std::vector<std::uint32_t>& chunks) {
  try {
    return memory_.side_by_side(chunks);
  } catch (const OutOfMemory&) {
    // Plans that are followed no more have used them up.
  }
  memory_.forget([this](Bytes offset) { return stays_.contains(offset); });
  try {
    return memory_.side_by_side(chunks);
  } catch (const OutOfMemory&) {
    return kNoAddress;
  }
}

void* DeviceArena::take_on(const std::vector<std::uint32_t>& pages, Bytes size, BlockUid uid,
                           MayGrow may_grow) {
  const Guard guard(mutex_);
  return put_on(pages, size, uid, may_grow);
}

void* DeviceArena::take_in_pieces(Bytes size, BlockUid uid, MayGrow may_grow) {
  const Guard guard(mutex_);
  const std::vector<std::uint32_t> pages = free_pages(size);
  return pages.empty() ? nullptr : put_on(pages, size, uid, may_grow);
}

/// So many of the window's whole pages of which nothing is taken, or none.
std::vector<std::uint32_t> DeviceArena::free_pages(Bytes size) {
  const Bytes page = memory_.chunk();
  const auto wanted = static_cast<std::size_t>((size + page - 1) / page);
  std::vector<std::uint32_t> pages;
  Bytes from = 0;  // of the window
  const auto add_until = [&](Bytes end) {
    for (Bytes at = round_up(from, page); at + page <= end && pages.size() < wanted; at += page) {
      pages.push_back(static_cast<std::uint32_t>(at / page));
    }
  };
  map_.for_each([&](Bytes address, Bytes taken) {
    if (address < base_) return;
    add_until(address - base_);
    from = address - base_ + taken;
  });
  add_until(map_.capacity() - base_);
  if (pages.size() < wanted) pages.clear();
  return pages;
}

void* DeviceArena::put_on(const std::vector<std::uint32_t>& pages, Bytes size, BlockUid uid,
                          MayGrow may_grow) {
  const Bytes page = memory_.chunk();
  std::vector<std::pair<Bytes, Bytes>> pieces;
  std::vector<std::uint32_t> chunks;
  for (const std::uint32_t number : pages) {
    const Bytes address = base_ + number * page;
    chunks.push_back(static_cast<std::uint32_t>(address / page));
    if (pieces.empty() || pieces.back().first + pieces.back().second != address) {
      pieces.emplace_back(address, page);
    } else {
      pieces.back().second += page;
    }
  }
  std::size_t taken = 0;
  const auto fits = [&](const std::pair<Bytes, Bytes>& piece) {
    if (!map_.take_at(piece.first, piece.second)) return false;
    if (!back(piece.first, piece.second, may_grow)) return false;
    ++taken;
    return true;
  };
  Bytes address = kNoAddress;
  if (size <= static_cast<Bytes>(pages.size()) * page && std::ranges::all_of(pieces, fits)) {
    address = side_by_side(chunks);
    joins_ = memory_.joins();
  }
  if (address == kNoAddress) {
    for (std::size_t i = 0; i < taken; ++i) map_.give(pieces[i].first);
    return nullptr;
  }
  void* const data = register_at(address, size, uid);
  for (const auto& [begin, length] : pieces) in_pieces_[begin] = address;
  stays_[address].pieces = std::move(pieces);
  return data;
}

void* DeviceArena::take_at(Bytes address, Bytes size, BlockUid uid, MayGrow may_grow) {
  const Guard guard(mutex_);
  return map_.take_at(address, size) ? register_stay(address, size, uid, may_grow) : nullptr;
}

void* DeviceArena::take(Bytes size, BlockUid uid, MayGrow may_grow) {
  const Guard guard(mutex_);
  const auto address = map_.take(size);
  return address ? register_stay(*address, size, uid, may_grow) : nullptr;
}

std::optional<DeviceArena::Leaving> DeviceArena::look(const void* data) {
  const Guard guard(mutex_);
  const Stay* stay = find(data);
  if (stay == nullptr) return std::nullopt;
  return Leaving{stay->uid, stay->block, stay->arriving, stay->users};
}

void DeviceArena::give(const void* data) {
  const Guard guard(mutex_);
  const auto found = stays_.find(offset_of(data));
  if (found == stays_.end()) return;
  const Stay& stay = found->second;
  used_.store(used() - stay.size, std::memory_order_relaxed);
  for (const auto& [begin, length] : stay.pieces) {
    map_.give(begin);
    in_pieces_.erase(begin);
  }
  if (stay.pieces.empty()) map_.give(stay.address);
  stays_.erase(found);
}

DeviceArena::Stay* DeviceArena::find(const void* data) {
  const auto found = stays_.find(offset_of(data));
  return found == stays_.end() ? nullptr : &found->second;
}

/// Whose a taken stretch of addresses is; null: nobody's.
DeviceArena::Stay* DeviceArena::stay_in(Bytes address) {
  const auto piece = in_pieces_.find(address);
  const auto found = stays_.find(piece == in_pieces_.end() ? address : piece->second);
  return found == stays_.end() ? nullptr : &found->second;
}

bool DeviceArena::lies_at(const void* data, Bytes address) {
  const Guard guard(mutex_);
  const Stay* stay = find(data);
  return stay != nullptr && stay->pieces.empty() && stay->address == base_ + address;
}

bool DeviceArena::lies_on(const void* data, const std::vector<std::uint32_t>& pages) {
  const Guard guard(mutex_);
  const Stay* stay = find(data);
  if (stay == nullptr) return false;
  const Bytes page = memory_.chunk();
  std::size_t next = 0;
  for (const auto& [begin, length] : stay->pieces) {
    for (Bytes at = begin; at < begin + length; at += page, ++next) {
      if (next >= pages.size() || at != base_ + pages[next] * page) return false;
    }
  }
  return next > 0 && next == pages.size();
}

BlockUid DeviceArena::track(const void* data, CudaBlock* block) {
  const Guard guard(mutex_);
  Stay* stay = find(data);
  if (stay == nullptr) return 0;
  stay->block = block;
  return stay->uid;
}

void DeviceArena::set_block(const void* data, CudaBlock* block) {
  const Guard guard(mutex_);
  if (Stay* stay = find(data)) stay->block = block;
}

void DeviceArena::hand_over(const void* data, CudaBlock& block) {
  const Guard guard(mutex_);
  if (Stay* stay = find(data)) {
    stay->block = &block;
    stay->uid = block.uid;
  }
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

c10::SmallVector<cudaStream_t, 2> DeviceArena::users_of(const void* data) {
  const Guard guard(mutex_);
  const Stay* stay = find(data);
  return stay == nullptr ? c10::SmallVector<cudaStream_t, 2>() : stay->users;
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
    const Stay* stay = stay_in(at);
    if (stay == nullptr || stay->block == nullptr) return;
    if (std::ranges::find(found, stay->block) == found.end()) found.push_back(stay->block);
  });
  return found;
}

std::optional<std::vector<CudaBlock*>> DeviceArena::cheapest(
    Bytes size, const std::function<double(CudaBlock&)>& cost) {
  const Guard guard(mutex_);
  const auto window = map_.cheapest_window(size, [&](Bytes at, Bytes) {
    const Stay* stay = stay_in(at);
    CudaBlock* block = stay == nullptr ? nullptr : stay->block;
    return block == nullptr ? std::numeric_limits<double>::infinity() : cost(*block);
  });
  if (!window) return std::nullopt;
  std::vector<CudaBlock*> blocks;
  map_.for_overlapping(window->address, window->size, [&](Bytes at, Bytes) {
    CudaBlock* block = stay_in(at)->block;
    if (std::ranges::find(blocks, block) == blocks.end()) blocks.push_back(block);
  });
  return blocks;
}

void DeviceArena::note_mapped() {
  mapped_ = memory_.mapped();
  mapped_peak_ = std::max(mapped_peak_.load(), mapped_.load());
}

Bytes DeviceArena::end_for(Bytes budget) {
  const Guard guard(mutex_);
  return base_ + std::max<Bytes>(budget - below_, 0) / memory_.chunk() * memory_.chunk();
}

void DeviceArena::set_end(Bytes end) {
  map_.set_capacity(std::clamp(end, std::max(map_.top(), base_.load()), memory_.reserved()));
}

bool DeviceArena::holds_untracked() {
  const Guard guard(mutex_);
  return std::ranges::any_of(stays_, [&](const auto& entry) {
    return entry.first >= base_ && entry.second.block == nullptr;
  });
}

Bytes DeviceArena::untracked() {
  const Guard guard(mutex_);
  Bytes sum = 0;
  for (const auto& [address, stay] : stays_) {
    if (stay.block == nullptr) sum += stay.size;
  }
  return sum;
}

void DeviceArena::set_budget(Bytes bytes) {
  const Bytes end = end_for(bytes);
  const Guard guard(mutex_);
  set_end(end);
}

void DeviceArena::move_window() {
  const Guard guard(mutex_);
  const Bytes above = round_up(map_.top(), memory_.chunk());
  const Bytes room = map_.capacity() - base_;
  if (above > base_ && above + room <= memory_.reserved()) base_ = above;
  map_.set_capacity(std::max(map_.capacity(), base_ + room));
  wall_off();
}

/// Memory stays behind what is in use below the window; all other addresses there are walled off.
void DeviceArena::wall_off() {
  for (const Bytes wall : walls_) map_.give(wall);
  walls_.clear();
  const Bytes base = base_;
  Bytes from = 0;
  std::vector<std::pair<Bytes, Bytes>> gaps;
  const auto free_until = [&](Bytes end) {
    if (from < end) gaps.emplace_back(from, end);
  };
  map_.for_each([&](Bytes address, Bytes size) {
    free_until(std::min(address, base));
    from = std::max(from, address + size);
  });
  free_until(base);
  for (const auto& [begin, end] : gaps) {
    memory_.unmap(begin, end);
    if (map_.take_at(begin, end - begin)) walls_.push_back(begin);
  }
  below_ = memory_.mapped_below(base_);
  note_mapped();
}

bool DeviceArena::give_back_below() {
  const Guard guard(mutex_);
  if (below_ == 0) return false;
  const Bytes before = memory_.mapped();
  wall_off();
  return memory_.mapped() < before;
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
  map_.for_each([&](Bytes address, Bytes size) { inside += address >= base_ ? size : 0; });
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
