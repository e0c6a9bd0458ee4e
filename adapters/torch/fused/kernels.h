#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace lms::torch {

/// Kernels of LMS's own on one device, made when they are first wanted. Thread-safe.
class Kernels {
 public:
  /// A kernel that has been made; lives as long as the process.
  using Kernel = struct OpaqueKernel*;

  /// What kernels load and store at once lies at multiples of this.
  static constexpr std::uint32_t kVectorBytes = 16;
  [[nodiscard]] static bool is_vector(const void* address) {
    return reinterpret_cast<std::uintptr_t>(address) % kVectorBytes == 0;
  }

  virtual ~Kernels() = default;

  /// Multiprocessors of the device; 0: kernels of one's own would give other bits there.
  [[nodiscard]] virtual int multiprocessors() const noexcept = 0;
  /// The kernel `name` of a source in CUDA's C++, made for the device. `options`: the compiler's.
  /// Takes some ten milliseconds. Throws Error.
  [[nodiscard]] virtual Kernel make(const char* source, const char* name,
                                    std::vector<std::string> options) = 0;
  /// Queues it on the current stream, in blocks of `threads`, in one dimension. False if the driver
  /// refuses. Throws Error.
  [[nodiscard]] virtual bool launch(Kernel kernel, unsigned blocks, unsigned threads,
                                    void** arguments) = 0;
  /// Queues zeros for memory of the device. Throws Error.
  virtual void clear(void* data, std::size_t bytes) = 0;
  /// Waits for the current stream, and reads memory of the device. Throws Error.
  virtual void read(void* to, const void* data, std::size_t bytes) = 0;
  /// Milliseconds that the device takes for what `queue` queues on the current stream; waits for
  /// it. Throws Error, and what `queue` throws.
  [[nodiscard]] virtual float time(const std::function<void()>& queue) = 0;
};

}  // namespace lms::torch
