#pragma once

#include <string>

namespace lms {

/// All of a file, unpacked if it is gzip. Throws Error, naming the file, if it cannot be read or is
/// cut off.
std::string read_gz_file(const std::string& path);

/// Replaces the file by `text`, packed if `path` ends in ".gz". Throws Error, naming the file; what
/// was written by then is removed.
void write_gz_file(const std::string& path, const std::string& text);

}  // namespace lms
