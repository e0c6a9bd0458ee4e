#include <mutex>
#include <string>
#include <vector>

#include "cuda/event.h"

namespace lms::cuda {

void check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  throw Error(std::string("CUDA: ") + call + ": " + cudaGetErrorString(code));
}

namespace {

/// Events that nobody uses, by device. Never destroyed: the runtime may be gone before us.
struct EventPool {
  std::mutex mutex;
  std::vector<std::vector<cudaEvent_t>> free;

  std::vector<cudaEvent_t>& of(int device) {
    const auto index = static_cast<std::size_t>(device);
    if (index >= free.size()) free.resize(index + 1);
    return free[index];
  }
};

EventPool& pool() {
  static auto* pool = new EventPool;
  return *pool;
}

cudaEvent_t take(int device) {
  EventPool& events = pool();
  {
    std::lock_guard guard(events.mutex);
    auto& free = events.of(device);
    if (!free.empty()) {
      cudaEvent_t event = free.back();
      free.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return event;
}

}  // namespace

std::shared_ptr<Event> Event::record(int device, cudaStream_t stream) {
  auto event = std::make_shared<Event>(Passkey(), device, take(device));
  check(cudaEventRecord(event->event_, stream), "cudaEventRecord");
  return event;
}

Event::~Event() {
  EventPool& events = pool();
  std::lock_guard guard(events.mutex);
  events.of(device_).push_back(event_);
}

void Event::block(cudaStream_t stream) const {
  check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
}

bool Event::done() {
  const cudaError_t code = cudaEventQuery(event_);
  // A runtime that is shutting down will not run anything any more.
  if (code == cudaErrorCudartUnloading) return true;
  if (code == cudaErrorNotReady) {
    (void)cudaGetLastError();  // "not ready" is an answer, and must not be found by others
    return false;
  }
  check(code, "cudaEventQuery");
  return true;
}

void Event::wait() {
  const cudaError_t code = cudaEventSynchronize(event_);
  if (code != cudaErrorCudartUnloading) check(code, "cudaEventSynchronize");
}

}  // namespace lms::cuda
