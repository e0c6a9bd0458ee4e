#pragma once

#include <cstdint>
#include <vector>

namespace lms {

/// Counts the forks of this process and tells which of them may still have a living child.
///
/// Before each fork a pipe is made whose write end only the child keeps (and its descendants, until
/// they exec or exit); when no one holds it any more, the read end reports a hang-up. Not
/// thread-safe: the owner's lock is to be held from prepare() to parent() or child().
class ForkEpochs {
 public:
  ForkEpochs() = default;
  ForkEpochs(const ForkEpochs&) = delete;
  ForkEpochs& operator=(const ForkEpochs&) = delete;
  ~ForkEpochs();

  /// Forks so far, those that nothing was at stake in not counted.
  [[nodiscard]] std::uint64_t count() const { return count_; }

  /// `at_stake`: whether a child will see anything that has to be kept for it. Without a pipe (no
  /// descriptors left) the epoch counts as living for ever.
  void prepare(bool at_stake) noexcept;
  void parent() noexcept;
  void child() noexcept;

  /// Whether a child of one of the forks number first + 1 … last may be alive.
  [[nodiscard]] bool any_living(std::uint64_t first, std::uint64_t last) noexcept;

 private:
  struct Epoch {
    std::uint64_t number;
    int read_end;  // -1: never known to end
  };

  std::uint64_t count_ = 0;
  int write_end_ = -1;
  std::vector<Epoch> living_;
};

}  // namespace lms
