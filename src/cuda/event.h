#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "base/error.h"
#include "tiers/host_arena.h"

namespace lms::cuda {

/// Throws Error with the call and CUDA's reason.
void check(cudaError_t code, const char* call);

/// A point in a stream's work. Events are reused: they come from a pool per device and go back
/// when the last reference is dropped. Thread-safe.
class Event final : public Fence {
 public:
  /// The point that `stream` has reached with all that is queued on it now. The device of the
  /// stream must be current.
  static std::shared_ptr<Event> record(int device, cudaStream_t stream);

  class Passkey {
    friend class Event;
    Passkey() = default;
  };
  Event(Passkey /*of record()*/, int device, cudaEvent_t event) : device_(device), event_(event) {}
  ~Event() override;

  /// `stream` goes on only after this point; the host does not wait.
  void block(cudaStream_t stream) const;

  bool done() override;
  void wait() override;

 private:
  int device_;
  cudaEvent_t event_;
};
using EventPtr = std::shared_ptr<Event>;

}  // namespace lms::cuda
