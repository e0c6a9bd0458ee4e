#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "pilot/script.h"

namespace lms {

/// A step that goes on otherwise than its script, and the search for the place where it is the
/// script's again: operators may be missing (a layer that is left out), more, or run once more (a
/// micro-batch). Not thread-safe.
class Detour {
 public:
  struct Left {
    std::shared_ptr<Script> script;
    std::size_t position;     ///< in the script
    std::uint64_t joined;     ///< Pilot::joined_, and operators_ when it left
    std::uint64_t operators;  ///< likewise
    bool followed;            ///< a plan
  };
  /// `walk`: as it was. `from`: the number in the log of the first operator that is not the
  /// script's.
  Detour(Left left, Walk walk, std::uint64_t from);

  [[nodiscard]] const Left& left() const { return left_; }
  [[nodiscard]] bool jumped() const { return walk_.jumped(); }
  void release(BlockUid uid) { walk_.release(uid); }

  struct Back {
    Walk walk;
    std::size_t seen;  ///< so many operators, the last of the log, are along it already
    bool next;         ///< in the next step: this one has ended
  };
  /// To be called after each operator: where the script goes on with the last ones.
  [[nodiscard]] std::optional<Back> way_back(const StepLog& log);
  /// Where the next step begins: true if what this one has left out need not make it another.
  [[nodiscard]] bool may_end() const;
  /// It has gone on for too long to be a detour.
  [[nodiscard]] bool is_lost(const StepLog& log) const;

 private:
  /// So many more operators of the script may be left out.
  [[nodiscard]] std::size_t may_leave_out() const;
  [[nodiscard]] std::size_t seen_before(const StepLog& log, std::size_t end, bool* telling) const;
  /// So many operators tell the place.
  struct Enough {
    bool few;             ///< without weights, a few
    std::size_t telling;  ///< with weights
  };
  [[nodiscard]] std::optional<Back> back_at(const StepLog& log, std::size_t end, std::size_t seen,
                                            Enough enough);

  Left left_;
  Walk walk_;
  std::uint64_t from_;
  std::vector<OperatorKey> keys_;
  int tries_ = 0;
};

/// A walk that has ended, until the next begins.
struct Parting {
  Detour::Left walk;
  std::uint64_t before = 0;  ///< the operator, of all ever seen, at which the one before had ended
  bool counts = false;       ///< its step may be a part of a longer one
  bool changed = false;      ///< somebody has written what it only reads
};

}  // namespace lms
