// Ranges where there is no NVTX: nobody sees them.

#include "cuda/profiler.h"

namespace lms::cuda {

void push_range(const char* /*name*/, Bytes /*bytes*/) noexcept {}
void pop_range() noexcept {}
RangeId start_range(const char* /*name*/) noexcept { return 0; }
void end_range(RangeId /*id*/) noexcept {}
void mark(const char* /*name*/, Bytes /*bytes*/) noexcept {}

}  // namespace lms::cuda
