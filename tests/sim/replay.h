#pragma once

#include "engine/engine.h"
#include "sim/device.h"
#include "trace/trace.h"

namespace lms {

/// What a replayed step took on a simulated device.
struct SimResult {
  double ms = 0;          ///< virtual time of the step
  double stalled_ms = 0;  ///< of that, spent waiting for moves
  Bytes bytes_out = 0;
  Bytes bytes_in = 0;
  Bytes peak = 0;           ///< most bytes counted against the limit
  std::int64_t stalls = 0;  ///< operators that waited for at least one move
};

/// Runs the step through a reactive engine that counts its own bytes (no Meter) and moves with
/// `device`: every operator pins what it reads and writes, reserves its workspace and its results,
/// computes for its time, and unpins. Blocks from before the step are made first, and the moves
/// that this takes are not counted. All blocks of the replay are gone when it returns or throws.
///
/// Checks the bytes that every operator finds, and throws Error if they are wrong. Throws Error
/// if the trace is inconsistent, OutOfMemory naming the operator if the limit is too small, and
/// TierFull. The engine must be used by this thread alone meanwhile.
SimResult replay(const Trace& trace, Engine& engine, SimDevice& device);

}  // namespace lms
