#pragma once

#include <c10/util/Exception.h>
#include <lms/torch.h>

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/error.h"

namespace lms::torch {

enum class Written : std::uint8_t;

/// Out of memory within an operator, on its way to run_operator(), which gives it PyTorch's type.
/// Not a c10::OutOfMemoryError until then: kernels that try one algorithm after another (cuDNN's)
/// would catch that, go on with one that needs less workspace, and remember it, and the result
/// would have other bits than with enough memory.
class Shortage final : public c10::Error {
 public:
  using c10::Error::Error;

  std::string below;      ///< why the tier below has no room either; empty: it has
  Bytes least_limit = 0;  ///< that its text names
  Written written{};      ///< by then
};

/// True if the error says that the device has no room: PyTorch's allocator, or LMS.
[[nodiscard]] bool is_shortage(const std::exception& error);
/// Likewise, or that the tier below has none.
[[nodiscard]] bool found_no_room(const std::exception& error);

/// What need_of() says of an error with this text from now on. Thread-safe.
void remember_need(const std::string& error, Need need);

/// Runs `body`, and turns LMS's own errors into PyTorch's, which Python shows as they should be and
/// C++ programs know.
template <typename Body>
auto guarded(Body&& body) {
  try {
    return body();
  } catch (const OutOfMemory& error) {
    throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                error.what());
  } catch (const TierFull& error) {
    remember_need(error.what(), {.below = true});
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
