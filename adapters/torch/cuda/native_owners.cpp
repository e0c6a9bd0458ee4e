#include "adapters/torch/cuda/native_owners.h"

#include <algorithm>
#include <utility>

#include "adapters/torch/cuda/bridge_allocator.h"

namespace lms::torch {
namespace {

/// Calls `visit` with each address of the segment that is in use.
template <typename Segment, typename Visit>
void for_each_taken(const Segment& segment, Visit visit) {
  auto address = static_cast<std::uintptr_t>(segment.address);
  for (const auto& block : segment.blocks) {
    if (block.allocated) visit(reinterpret_cast<const void*>(address));
    address += block.size;
  }
}

}  // namespace

void NativeOwners::start() {
  std::lock_guard guard(mutex_);
  segments_.clear();
  owners_.clear();
  users_.clear();
  const auto snapshot = BridgeAllocator::instance().native()->snapshot({0, 0}, false);
  for (const auto& segment : snapshot.segments) {
    if (segment.device != device_) continue;
    if (segment.owner_private_pool_id != c10::MempoolId_t{0, 0}) {
      // A graph's, that was captured before: it has the addresses.
      for_each_taken(segment, [&](const void* data) { pooled_.insert(data); });
      any_pooled_ = true;
    }
    if (segment.stream == nullptr) continue;
    segments_.push_back({segment.address, segment.address + segment.total_size,
                         static_cast<cudaStream_t>(segment.stream)});
  }
}

void NativeOwners::allocated(void* data, cudaStream_t stream, bool pooled, bool large) {
  std::lock_guard guard(mutex_);
  if (pooled) {
    pooled_.insert(data);
    any_pooled_ = true;
    if (pooled_.size() >= prune_pooled_at_) prune_pooled();
  } else if (!pooled_.empty()) {
    pooled_.erase(data);  // the pool has given it back
  }
  if (!large) return;
  // What a segment from before start() says of its addresses ends with them.
  if (stream != nullptr || !segments_.empty()) {
    owners_[data] = stream;
  } else if (!owners_.empty()) {
    owners_.erase(data);
  }
  if (!users_.empty()) users_.erase(data);
}

void NativeOwners::prune_pooled() {
  std::unordered_set<const void*> taken;
  const auto snapshot = BridgeAllocator::instance().native()->snapshot({0, 0}, false);
  for (const auto& segment : snapshot.segments) {
    for_each_taken(segment, [&](const void* data) { taken.insert(data); });
  }
  std::erase_if(pooled_, [&](const void* data) { return !taken.contains(data); });
  prune_pooled_at_ = std::max(prune_pooled_at_, 2 * pooled_.size());
}

bool NativeOwners::pooled(const void* data) {
  std::lock_guard guard(mutex_);
  return pooled_.contains(data);
}

cudaStream_t NativeOwners::owner_of(const void* data) {
  std::lock_guard guard(mutex_);
  if (const auto found = owners_.find(data); found != owners_.end()) return found->second;
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  for (const Segment& segment : segments_) {
    if (address >= segment.begin && address < segment.end) return segment.stream;
  }
  return nullptr;
}

bool NativeOwners::is_beside(const void* data, cudaStream_t main) {
  std::lock_guard guard(mutex_);
  const auto found = owners_.find(data);
  return found != owners_.end() && found->second != nullptr && found->second != main;
}

void NativeOwners::add_user(const void* data, cudaStream_t stream) {
  std::lock_guard guard(mutex_);
  auto& users = users_[data];
  if (std::ranges::find(users, stream) == users.end()) users.push_back(stream);
}

NativeOwners::Streams NativeOwners::take_users(const void* data) {
  std::lock_guard guard(mutex_);
  const auto found = users_.find(data);
  if (found == users_.end()) return {};
  Streams users = std::move(found->second);
  users_.erase(found);
  return users;
}

}  // namespace lms::torch
