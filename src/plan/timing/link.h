#pragma once

#include "base/bytes.h"

namespace lms {

/// What the host takes for what a plan does, beside the step's own operators.
struct HostCosts {
  double copy_ms = 0;    ///< to have a copy begun, either way
  double leave_ms = 0;   ///< to let go of a block whose copy is there, or that is dropped
  double remake_ms = 0;  ///< to have a block computed again
};

/// What copies cost: the rates of the two lanes, and what copies take from the computation beside
/// them. Rates are bytes per millisecond; 1 GB/s is 1e6 of them.
struct LinkModel {
  double out_bytes_per_ms = 55.5e6;   ///< device to host, alone
  double in_bytes_per_ms = 55.5e6;    ///< host to device, alone
  double both_bytes_per_ms = 50.9e6;  ///< each way, while both lanes are busy
  double latency_ms = 0.01;           ///< added to every copy
  /// The copy tax: computation that a byte copied beside it costs.
  double out_tax_ms_per_byte = 0.15e-9;
  double in_tax_ms_per_byte = 0.6e-9;
  /// Only counts in steps of which it is known what the host takes (TraceOperator::host_ms).
  HostCosts host;
};

}  // namespace lms
