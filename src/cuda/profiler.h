#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace lms::cuda {

// Ranges and marks in the timeline of a profiler that knows NVTX (Nsight Systems), in a domain
// "LMS". Without a profiler, or in a build without NVTX, they do next to nothing. Names must live
// for ever. `bytes`, if not negative, is the range's payload. Thread-safe.

/// A range of the calling thread, to be ended there by pop_range(). They nest.
void push_range(const char* name, Bytes bytes = -1) noexcept;
void pop_range() noexcept;

/// A range of the process: it may be ended in another thread, and overlap others.
using RangeId = std::uint64_t;
RangeId start_range(const char* name) noexcept;
void end_range(RangeId id) noexcept;

/// A moment of the calling thread.
void mark(const char* name, Bytes bytes = -1) noexcept;

/// A range of the calling thread for the length of a scope.
class ScopedRange {
 public:
  explicit ScopedRange(const char* name, Bytes bytes = -1) noexcept { push_range(name, bytes); }
  ~ScopedRange() { pop_range(); }
  ScopedRange(const ScopedRange&) = delete;
  ScopedRange& operator=(const ScopedRange&) = delete;
};

}  // namespace lms::cuda
