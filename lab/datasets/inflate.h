#pragma once

// Bytes in sequence, of a file in memory that may be compressed by gzip.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lab/datasets/image.h"

namespace lms::data {

/// Unpacks as it is read: what a compressed file could grow to is never held.
class ByteSource {
 public:
  /// `name` is for errors. `file` outlives the source.
  ByteSource(ByteView file, std::string name);
  ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  /// Fills `out`, or throws DataError: the file is truncated, or broken.
  void read(void* out, std::size_t bytes);
  void skip(std::size_t bytes);

 private:
  struct Stream;
  std::size_t read_some(std::uint8_t* out, std::size_t bytes);

  ByteView file_;
  std::string name_;
  std::unique_ptr<Stream> stream_;  // null: not compressed
  std::size_t at_ = 0;              // in file_, where it is not compressed
  std::size_t done_ = 0;
};

}  // namespace lms::data
