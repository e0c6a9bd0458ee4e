#include "tiers/host_segments.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

namespace lms {

HostSegment::HostSegment(MappedMemory memory, std::shared_ptr<HostPinning> pinning)
    : memory_(std::move(memory)), pinning_(std::move(pinning)) {
  free.put(0, size());
  if (pinning_) pinning_->pin(memory_.data(), static_cast<std::size_t>(size()));
}

HostSegment::~HostSegment() {
  if (pinning_) pinning_->unpin(memory_.data(), static_cast<std::size_t>(size()));
}

void HostSegments::add(std::unique_ptr<HostSegment> segment) {
  segment->order = ++made_;
  oldest_first_.push_back(segment.get());
  segments_.emplace(segment->data(), std::move(segment));
}

bool HostSegments::suits(const HostSegment& segment, Bytes size) const {
  // A slot of less than half of a large one would keep the next large slot out.
  return size <= step_ ? segment.size() <= step_
                       : segment.size() > step_ && size >= segment.size() / 2;
}

char* HostSegments::take_suiting(Bytes size) {
  for (HostSegment* const segment : oldest_first_) {
    if (!segment->closed && suits(*segment, size) && segment->free.fit(size)) {
      return cut(*segment, size);
    }
  }
  return nullptr;
}

char* HostSegments::take_any(Bytes size) {
  HostSegment* best = nullptr;
  Bytes best_fit = 0;
  for (HostSegment* const segment : oldest_first_) {
    if (segment->closed) continue;
    const auto fit = segment->free.fit(size);
    if (fit && (best == nullptr || *fit < best_fit)) {
      best = segment;
      best_fit = *fit;
    }
  }
  return best == nullptr ? nullptr : cut(*best, size);
}

HostSegment& HostSegments::of(const void* data) const {
  return *std::prev(segments_.upper_bound(static_cast<char*>(const_cast<void*>(data))))->second;
}

void HostSegments::put_back(char* data, Bytes size) {
  HostSegment& segment = of(data);
  segment.free.put(data - segment.data(), size);
}

void HostSegments::take_idle(Bytes wanted, Owned& gone) noexcept {
  for (auto at = oldest_first_.size(); at > 0 && wanted > 0; --at) {
    HostSegment& segment = *oldest_first_[at - 1];
    if (segment.closed || !segment.idle()) continue;
    wanted -= segment.size();
    oldest_first_.erase(oldest_first_.begin() + static_cast<std::ptrdiff_t>(at - 1));
    gone.insert(segments_.extract(segment.data()));
  }
}

Bytes HostSegments::idle_bytes() const {
  Bytes idle = 0;
  for (const HostSegment* segment : oldest_first_) {
    if (!segment->closed && segment->idle()) idle += segment->size();
  }
  return idle;
}

std::vector<HostSegment*> HostSegments::to_empty(Bytes wanted,
                                                 std::span<const HostRange> movable) const {
  std::unordered_map<const HostSegment*, Bytes> moves;
  for (const HostRange& range : movable) {
    // One that has been returned meanwhile may have taken its segment along.
    const auto after = segments_.upper_bound(static_cast<char*>(const_cast<void*>(range.data)));
    if (after != segments_.begin()) {
      moves[std::prev(after)->second.get()] += host_slot_bytes(range.size);
    }
  }
  std::vector<HostSegment*> candidates;
  Bytes free = 0;
  for (HostSegment* const segment : oldest_first_) {
    if (segment->closed) continue;
    free += segment->free.free_bytes();
    const auto found = moves.find(segment);
    const Bytes moved = found == moves.end() ? 0 : found->second;
    if (moved == segment->size() - segment->free.free_bytes()) candidates.push_back(segment);
  }
  const auto held = [](const HostSegment& segment) {
    return static_cast<double>(segment.size() - segment.free.free_bytes()) /
           static_cast<double>(segment.size());
  };
  std::ranges::stable_sort(candidates, {}, [&](const HostSegment* one) { return held(*one); });
  std::vector<HostSegment*> chosen;
  Bytes to_move = 0;
  for (HostSegment* const segment : candidates) {
    if (wanted <= 0) break;
    wanted -= segment->size();
    free -= segment->free.free_bytes();
    to_move += segment->size() - segment->free.free_bytes();
    chosen.push_back(segment);
  }
  if (wanted > 0 || to_move > free) chosen.clear();
  return chosen;
}

}  // namespace lms
