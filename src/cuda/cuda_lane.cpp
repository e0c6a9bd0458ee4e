#include <algorithm>

#include "cuda/lane.h"

namespace lms::cuda {

Lane::Lane(int device, bool out)
    : device_(device), kind_(out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice) {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

EventPtr Lane::copy(void* to, const void* from, Bytes bytes) {
  const auto queue = [&](Bytes part) {
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(part), kind_, stream_),
          "cudaMemcpyAsync");
  };
  queue(bytes);
  auto again = static_cast<Bytes>((slowness_ - 1) * static_cast<double>(bytes));
  for (; again > 0; again -= bytes) queue(std::min(again, bytes));
  return Event::record(device_, stream_);
}

void Lane::wait_for(const EventPtr& event) {
  if (event) event->block(stream_);
}

void Pinning::pin(void* p, std::size_t n) {
  // Mapped: kernels may read and write it where it lies.
  check(cudaHostRegister(p, n, cudaHostRegisterPortable | cudaHostRegisterMapped),
        "cudaHostRegister");
}

void Pinning::unpin(void* p, std::size_t /*n*/) noexcept {
  // At process exit the runtime may be gone; the pages go with the process.
  (void)cudaHostUnregister(p);
  (void)cudaGetLastError();
}

}  // namespace lms::cuda
