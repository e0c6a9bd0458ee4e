#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace lms::torch {

/// When operators run in slices.
enum class SliceMode : std::uint8_t {
  kOff,
  kParts,    ///< where they do not fit otherwise, and can be cut
  kAll,      ///< where they do not fit otherwise; what cannot be cut, in place
  kAlways,   ///< for tests: all that can be cut
  kInPlace,  ///< for tests: all that can, in place
  kChains,   ///< for tests: as kAll, and results wait for whoever uses them, where they can
};

/// "auto", which is "all", "parts", "off", "always", "in_place" or "chains". Throws BadSetting.
SliceMode slice_mode(const std::string& text);

/// What one device knows of calls that did not fit as a whole. Thread-safe.
class SliceMemory {
 public:
  /// How much of a call's operands may lie on the device as a whole.
  enum class Whole : std::uint8_t {
    kUnknown,  ///< it has not been tried
    kSome,     ///< not all; as many as find room
    kNone,
    kInPlace,         ///< it runs in place, with some of its tensors on the device
    kAllBelow,        ///< in place, with none
    kWorkspaceBelow,  ///< likewise, nor its kernel's own memory
    kLessWorkspace,   ///< as kAllBelow, by another algorithm than the first
  };
  [[nodiscard]] Whole of(std::uint64_t call) const;
  /// How much more room than the limit the call as a whole has asked for; 0: nobody knows.
  [[nodiscard]] Bytes lack_of(std::uint64_t call) const;
  void set(std::uint64_t call, Whole whole, Bytes lack = 0);
  void clear();

  /// A child of the calling thread finds the lock free. Innermost.
  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }

 private:
  static constexpr std::size_t kMost = 4096;
  struct Known {
    Whole whole = Whole::kUnknown;
    Bytes lack = 0;
  };
  [[nodiscard]] Known known(std::uint64_t call) const;

  mutable std::mutex mutex_;
  std::map<std::uint64_t, Known> calls_;
};

}  // namespace lms::torch
