#pragma once

#include <c10/util/Exception.h>

#include <cstdint>

#include "adapters/torch/thread_state.h"
#include "base/error.h"

namespace lms::torch {

/// Runs `body`, and turns LMS's own errors into PyTorch's, which Python shows as they should be and
/// C++ programs know.
template <typename Body>
auto guarded(Body&& body) {
  try {
    return body();
  } catch (const OutOfMemory& error) {
    throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                error.what());
  } catch (const Shortage& error) {
    // Of computing something again.
    throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, error.msg());
  } catch (const BadSetting& error) {
    throw c10::ValueError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, error.what());
  } catch (const Error& error) {
    throw c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, error.what());
  }
}

}  // namespace lms::torch
