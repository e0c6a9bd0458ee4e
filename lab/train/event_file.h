#pragma once

// TensorBoard's log: records of serialized Event messages, each with checksums. Written field by
// field; no protobuf.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lms::train {

/// CRC-32C (Castagnoli), and the same rotated and offset as record files want it.
std::uint32_t crc32c(std::string_view bytes);
std::uint32_t masked_crc32c(std::string_view bytes);

/// Scalars for TensorBoard. Not thread-safe. Throws lms::Error where the file cannot be written.
class EventFile {
 public:
  /// Appends to `path`, beginning with the format's version. `restart_step` >= 0 tells TensorBoard
  /// that the run goes on from there: what earlier files say of later steps is void.
  EventFile(const std::string& path, double wall_time, std::int64_t restart_step = -1);

  void scalars(std::int64_t step, double wall_time,
               const std::vector<std::pair<std::string, float>>& values);
  void flush();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  void record(const std::string& event);

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace lms::train
