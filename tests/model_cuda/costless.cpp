#include "model_cuda/costless.h"

#include <cstdlib>
#include <string_view>

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#endif

namespace model {

bool costless() noexcept {
  static const bool is_costless = [] {
    const char* const way = std::getenv("MODEL_CUDA");
    return way != nullptr && std::string_view(way) == "costless";
  }();
  return is_costless;
}

}  // namespace model

/// Under valgrind --tool=callgrind --instr-atstart=no: from now on instructions are counted (1), or
/// no longer (0).
extern "C" void model_cuda_count(int on) {
#ifdef CALLGRIND_START_INSTRUMENTATION
  if (on != 0) {
    CALLGRIND_START_INSTRUMENTATION;
  } else {
    CALLGRIND_STOP_INSTRUMENTATION;
  }
#endif
  (void)on;
}
