#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "tiers/extent_map.h"
#include "tiers/host_arena.h"
#include "tiers/mapped_memory.h"

namespace lms {

/// One registration of a HostArena: mapped, touched, pinned; all of it undone on destruction.
class HostSegment {
 public:
  HostSegment(MappedMemory memory, std::shared_ptr<HostPinning> pinning);
  HostSegment(const HostSegment&) = delete;
  HostSegment& operator=(const HostSegment&) = delete;
  ~HostSegment();

  [[nodiscard]] char* data() const { return static_cast<char*>(memory_.data()); }
  [[nodiscard]] Bytes size() const { return memory_.size(); }
  [[nodiscard]] bool idle() const { return free.free_bytes() == size(); }

  ExtentMap free;
  bool closed = false;      ///< nothing is cut from it, nor is it given back
  std::uint64_t order = 0;  ///< of their making

 private:
  MappedMemory memory_;
  std::shared_ptr<HostPinning> pinning_;
};

/// The segments of a HostArena, and which of them a slot is cut from: the oldest that has room, so
/// that the newest become idle, and can be given back. Segments larger than `step` were made for
/// large slots, and are kept for these as long as there is another way. Not thread-safe.
class HostSegments {
 public:
  using Owned = std::map<char*, std::unique_ptr<HostSegment>>;

  explicit HostSegments(Bytes step) : step_(step) {}

  void add(std::unique_ptr<HostSegment> segment);
  /// `size` bytes of a segment for slots of about this size; null: there is none.
  char* take_suiting(Bytes size);
  /// `size` bytes of any segment; null: there is none.
  char* take_any(Bytes size);
  void put_back(char* data, Bytes size);

  /// Takes idle segments of `wanted` bytes or more (as far as there are any) out.
  void take_idle(Bytes wanted, Owned& gone) noexcept;
  [[nodiscard]] Bytes idle_bytes() const;

  /// Those which hold `wanted` bytes or more once what they hold has been moved to others, with as
  /// little to move as possible; `movable`: all that may move, of which some may have been
  /// returned. Empty: there are none, or the others have no room for it.
  [[nodiscard]] std::vector<HostSegment*> to_empty(Bytes wanted,
                                                   std::span<const HostRange> movable) const;

  /// The one that holds this address.
  [[nodiscard]] HostSegment& of(const void* data) const;
  [[nodiscard]] const Owned& all() const { return segments_; }

 private:
  [[nodiscard]] bool suits(const HostSegment& segment, Bytes size) const;
  char* cut(HostSegment& segment, Bytes size) { return segment.data() + *segment.free.take(size); }

  Bytes step_;
  Owned segments_;
  std::vector<HostSegment*> oldest_first_;
  std::uint64_t made_ = 0;
};

}  // namespace lms
