#include "cuda/lane.h"

namespace lms::cuda {

Lane::Lane(int device) : device_(device) {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

EventPtr Lane::copy(void* to, const void* from, Bytes bytes) {
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream_),
        "cudaMemcpyAsync");
  return Event::record(device_, stream_);
}

void Lane::wait_for(const EventPtr& event) {
  if (event) event->block(stream_);
}

void Pinning::pin(void* p, std::size_t n) {
  check(cudaHostRegister(p, n, cudaHostRegisterPortable), "cudaHostRegister");
}

void Pinning::unpin(void* p, std::size_t /*n*/) noexcept {
  // At process exit the runtime may be gone; the pages go with the process.
  (void)cudaHostUnregister(p);
  (void)cudaGetLastError();
}

}  // namespace lms::cuda
