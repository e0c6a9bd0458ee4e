#include <nvtx3/nvToolsExt.h>

#include "cuda/profiler.h"

namespace lms::cuda {
namespace {

nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t handle = nvtxDomainCreateA("LMS");
  return handle;
}

nvtxEventAttributes_t attributes(const char* name, Bytes bytes) {
  nvtxEventAttributes_t event{};
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.messageType = NVTX_MESSAGE_TYPE_ASCII;
  event.message.ascii = name;
  if (bytes >= 0) {
    event.payloadType = NVTX_PAYLOAD_TYPE_INT64;
    event.payload.llValue = bytes;
  }
  return event;
}

}  // namespace

void push_range(const char* name, Bytes bytes) noexcept {
  const auto event = attributes(name, bytes);
  nvtxDomainRangePushEx(domain(), &event);
}

void pop_range() noexcept { nvtxDomainRangePop(domain()); }

RangeId start_range(const char* name) noexcept {
  const auto event = attributes(name, -1);
  return nvtxDomainRangeStartEx(domain(), &event);
}

void end_range(RangeId id) noexcept { nvtxDomainRangeEnd(domain(), id); }

void mark(const char* name, Bytes bytes) noexcept {
  const auto event = attributes(name, bytes);
  nvtxDomainMarkEx(domain(), &event);
}

}  // namespace lms::cuda
