#pragma once

#include <string>

#include "trace/trace.h"

namespace lms {

/// Writes the trace as JSON, packed with gzip if `path` ends in ".gz". load_trace gives back an
/// equal trace, to the last bit. Throws Error if the file cannot be written.
void save_trace(const Trace& trace, const std::string& path);

/// The trace in a file that save_trace has written, packed or not. Throws Error, naming the file
/// and what is wrong, if it cannot be read, is something else or of a version that is neither this
/// one nor 2 (which lacks `spared` and `replay_ms`), is damaged, or holds a trace that is
/// inconsistent.
Trace load_trace(const std::string& path);

}  // namespace lms
