#pragma once

#include <cstdint>

#include "base/counter.h"

namespace lms {

/// What an engine has done. Bytes unless said otherwise.
struct EngineStats {
  Counter device;   ///< managed bytes on the device
  Counter below;    ///< managed bytes absent from the device, in a lower tier
  Counter dropped;  ///< managed bytes that are nowhere, and can be computed again
  Counter blocks;   ///< number of blocks known
  Counter pinned;   ///< bytes of blocks with at least one pin
  Counter kept;     ///< bytes of blocks that stay until their storage dies
  std::int64_t evictions = 0;
  std::int64_t clean_evictions = 0;
  std::int64_t page_ins = 0;
  std::int64_t drops = 0;
  std::int64_t remakes = 0;  ///< dropped blocks that were computed again
  std::int64_t bytes_remade = 0;
  std::int64_t relocations = 0;  ///< moves on the device
  std::int64_t bytes_out = 0;
  std::int64_t bytes_in = 0;
  std::int64_t operators = 0;  ///< outermost operators
};

}  // namespace lms
