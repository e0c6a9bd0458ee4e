#pragma once

namespace lms::torch {

/// TorchScript fuses operators into kernels that it launches with raw addresses, past the
/// dispatcher. From now on what it compiles holds their inputs while they are launched: they are on
/// the device, and what waits for them has run. What they make is complete when they end. What it
/// has compiled before does not. Idempotent; thread-safe.
void hold_inputs_of_fused_groups();

}  // namespace lms::torch
