#pragma once

#include <string>

#include "trace/trace.h"

namespace lms {

/// A step in the format of LMS's first recordings, packed or not:
///   {"T": ms, "tr": [[operator, [[block, bytes], …] read, [[block, bytes], …] returned,
///                     [block, …] written in place, ms, peak allocated bytes while it ran], …]}
/// which knows blocks of 1 MiB and more, and neither births nor deaths. They are taken to be:
/// - a block that is first seen among the returned is born there, and dies after its last use;
/// - every other block is there before the step, and after it. One that no operator of the step
///   writes is filled by something else before every step (a batch of data): it is not movable.
/// The operators' times are scaled to add up to T; what the peak holds beside known blocks is
/// workspace. Operators are repeatable but for the random and the list operators; a batch norm that
/// is run again spares what it writes, its running statistics.
/// Throws Error, naming the file and what is wrong.
Trace import_legacy(const std::string& path);

}  // namespace lms
