#pragma once

#include "engine/engine.h"
#include "sim/lanes.h"
#include "trace/trace.h"

namespace lms {

/// How a stream of operators is run on a device that is too small for it.
enum class Reactive : std::uint8_t {
  kLru,            ///< least recently used leaves first, and nothing comes ahead
  kForesight,      ///< as foretold from what has been
  kForesightOnly,  ///< likewise, but nothing comes ahead
  kClairvoyant,    ///< as it will be
};

struct StreamResult {
  double ms = 0;  ///< of the part that counts
  double computed_ms = 0;
  Bytes bytes_out = 0;
  Bytes bytes_in = 0;
  Bytes peak = 0;
  double right = 0;  ///< Forecast::right() at the end
};

/// Runs the operators of `trace`, which may be many steps, and counts from operator `from` on.
/// Throws OutOfMemory.
StreamResult run_stream(const Trace& trace, Bytes limit, LaneDevice::Options link, Reactive how,
                        std::size_t from = 0);

}  // namespace lms
