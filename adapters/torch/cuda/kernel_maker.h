#pragma once

#include <cuda.h>

#include <cstddef>
#include <string>
#include <vector>

namespace lms::torch {

/// Multiprocessors of a device for which replays have kernels of their own; 0: it has none. Devices
/// before compute capability 8 make other NaNs of 16 bits than PyTorch does there.
[[nodiscard]] int multiprocessors_for_replays(int device) noexcept;

/// Makes kernels at run time, by the NVRTC that comes with PyTorch and the driver that is there:
/// LMS is built without a compiler for device code.
class KernelMaker {
 public:
  /// Throws Error where there is no NVRTC, or no driver.
  KernelMaker();

  /// The kernel `name` of a source, made for the current device and loaded there, for as long as
  /// the process lives. `options`: NVRTC's, beside that of the architecture. Takes some ten
  /// milliseconds. Throws Error.
  [[nodiscard]] CUfunction make(const char* source, const char* name,
                                std::vector<std::string> options) const;
  /// Queues it, in blocks of `threads`, in one dimension. False if the driver refuses.
  [[nodiscard]] bool launch(CUfunction kernel, unsigned blocks, unsigned threads, CUstream stream,
                            void** arguments) const noexcept;

 private:
  using Program = void*;  ///< NVRTC's: its header is not always there

  template <typename Function>
  void find(Function& function, const char* name) const;
  [[nodiscard]] std::vector<char> compile(const char* source,
                                          const std::vector<std::string>& options) const;

  /// Libraries stay loaded: so do the kernels.
  std::vector<void*> libraries_;
  int (*create_)(Program*, const char*, const char*, int, const char* const*,
                 const char* const*) = nullptr;
  int (*destroy_)(Program*) = nullptr;
  int (*compile_)(Program, int, const char* const*) = nullptr;
  int (*log_size_)(Program, std::size_t*) = nullptr;
  int (*log_)(Program, char*) = nullptr;
  int (*size_)(Program, std::size_t*) = nullptr;
  int (*binary_)(Program, char*) = nullptr;
  CUresult (*load_)(CUmodule*, const void*) = nullptr;
  CUresult (*get_)(CUfunction*, CUmodule, const char*) = nullptr;
  CUresult (*launch_)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                      unsigned, CUstream, void**, void**) = nullptr;
};

}  // namespace lms::torch
