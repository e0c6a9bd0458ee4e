#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

#include "model_cuda/costless.h"
#include "model_cuda/schedule.h"

namespace model {

/// Bytes of the device. (LMS reserves many times as many addresses, and valgrind has 128 GiB.)
inline std::size_t device_bytes() noexcept { return std::size_t{costless() ? 1U : 4U} << 30U; }
inline constexpr std::size_t kPage = std::size_t{2} << 20;

/// All that the calls of the runtime and of the driver share; guarded by its mutex.
struct Model {
  std::mutex mutex;
  Schedule schedule;
  StreamId last_stream = 0;  // 0 is the default stream
  std::map<char*, std::size_t> device;
  std::map<char*, std::size_t> pinned;
  std::size_t used = 0;
  std::unordered_map<const void*, std::string> kernels;
  int memory = -1;  // the file behind mapped chunks
  off_t chunks = 0;
  std::map<unsigned long long, std::size_t> chunk_sizes;  // by handle, until they are released
  int capturing = 0;
  int syncs_in_capture = 0;
  int refused_questions = 0;
  long long calls = 0;                      ///< events recorded, and waits for them
  Times times;                              ///< of a costless run
  std::multimap<std::size_t, char*> freed;  ///< by size: the next to ask gets the same address
};

inline StreamId id_of(const void* stream) {
  // The legacy default stream and the per-thread one are the same here.
  const auto value = reinterpret_cast<std::uintptr_t>(stream);
  return value <= 2 ? 0 : static_cast<StreamId>(value >> 8U);
}

inline Model& model_now() {
  static auto* model = new Model;
  return *model;
}

}  // namespace model
