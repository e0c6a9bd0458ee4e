#pragma once

// What users do today to keep activations off the device: torch.autograd.graph.save_on_cpu, for
// programs without Python.

#include <cstdint>
#include <stdexcept>

namespace lms::studies {

/// The host memory that a try may use is full.
class HostFull : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct OffloadCounts {
  std::int64_t to_host = 0;    ///< bytes copied since the process began
  std::int64_t to_device = 0;  ///< likewise
  std::int64_t live = 0;       ///< bytes on the host now, as PyTorch's pinned allocator rounds them
  std::int64_t peak = 0;       ///< their most
};
OffloadCounts offload_counts();

/// While one lives, whatever autograd saves of the operators of the process is copied to (pinned)
/// host memory, and back when the backward pass asks for it, as save_on_cpu(pin_memory=True) does.
/// Saving throws HostFull where more than `host_budget` bytes would lie there. One at a time; the
/// first one replaces PyTorch's autograd engine, for good, by one that differs in nothing else.
class OffloadScope {
 public:
  explicit OffloadScope(std::int64_t host_budget);
  ~OffloadScope();
  OffloadScope(const OffloadScope&) = delete;
  OffloadScope& operator=(const OffloadScope&) = delete;
};

}  // namespace lms::studies
