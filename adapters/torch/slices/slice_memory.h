#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace lms::torch {

/// When operators run in slices.
enum class SliceMode : std::uint8_t {
  kOff,
  kAuto,    ///< where they do not fit otherwise
  kAlways,  ///< for tests: all that can
};

/// "auto", "off" or "always". Throws BadSetting.
SliceMode slice_mode(const std::string& text);

/// What one device knows of calls that did not fit as a whole. Thread-safe.
class SliceMemory {
 public:
  /// How much of a call's operands may lie on the device as a whole.
  enum class Whole : std::uint8_t {
    kUnknown,  ///< it has not been tried
    kSome,     ///< not all; as many as find room
    kNone,
  };
  [[nodiscard]] Whole of(std::uint64_t call) const;
  void set(std::uint64_t call, Whole whole);
  void clear();

 private:
  static constexpr std::size_t kMost = 4096;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Whole> calls_;
};

}  // namespace lms::torch
