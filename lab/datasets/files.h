#pragma once

// Bytes of files, and errors about them. For the sources of this folder.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lab/datasets/image.h"

namespace lms::data {

/// Throws DataError: "where: what".
[[noreturn]] void fail(const std::string& where, const std::string& what);

/// The whole file. Throws DataError if it cannot be read, or is larger than `most` bytes.
std::vector<std::uint8_t> read_bytes(const std::string& path, std::size_t most);

/// Its lines without their ends (LF or CRLF), spaces and tabs at either end, a byte-order mark; the
/// empty ones are left out, their numbers are not.
struct Line {
  std::size_t number = 0;  ///< from 1
  std::string text;
};
std::vector<Line> split_lines(ByteView text);
std::vector<Line> read_lines(const std::string& path);

void write_bytes(const std::string& path, ByteView bytes);

bool is_file(const std::string& path);
bool is_folder(const std::string& path);

/// Names of the folder's files, or of its folders, sorted; without those that begin with a dot.
/// Throws DataError if the folder cannot be read.
std::vector<std::string> files_in(const std::string& folder);
std::vector<std::string> folders_in(const std::string& folder);

/// folder/name, for a name that was read from a file: throws DataError (with `where`) if it is
/// empty, absolute, leaves the folder by "..", or holds a zero byte.
std::string inside(const std::string& folder, const std::string& name, const std::string& where);

std::string without_extension(const std::string& name);

}  // namespace lms::data
