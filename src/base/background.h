#pragma once

namespace lms {

/// From now on the calling thread, and threads that it starts, give way: of a processor that others
/// want they get a small part. What trains a model comes first. No effect where the system cannot.
void run_in_background() noexcept;

}  // namespace lms
