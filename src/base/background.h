#pragma once

namespace lms {

/// From now on the calling thread, and threads that it starts, run only where the processor has
/// nothing better to do: what trains a model comes first. No effect where the system cannot.
void run_in_background() noexcept;

}  // namespace lms
