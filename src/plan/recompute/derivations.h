#pragma once

#include <vector>

#include "trace/trace.h"

namespace lms {

/// How a block's contents can be computed again: the operators that made and wrote it up to some
/// moment, run once more.
struct Derivation {
  std::vector<TraceBlockId> inputs;  ///< other blocks that must be there, each once
  double ms = 0;
  Bytes beside = 0;  ///< most bytes in use beside the block and its inputs meanwhile
  /// It is right before this operator and all earlier ones; later an input has changed, or has died
  /// and cannot be computed again itself. Negative: never right.
  int until = -1;
};

/// The derivations of all blocks of a trace. An input that has died by then counts as there if its
/// own derivation at its death gives it back.
class Derivations {
 public:
  explicit Derivations(const Trace& trace);

  /// Of the contents that the block has before operator `at`, at which they are wanted (the number
  /// of operators: after the last). Null if they cannot be computed again.
  [[nodiscard]] const Derivation* wanted(TraceBlockId block, int at) const;
  /// Of the contents with which a dead block died, wanted before operator `at`, or null.
  [[nodiscard]] const Derivation* ghost(TraceBlockId block, int at) const;
  /// The operator after which the block dies; the number of operators if it does not.
  [[nodiscard]] int death(TraceBlockId block) const { return lives_[block].death; }

 private:
  struct Life {
    bool born = false;     ///< in the step
    int death = 0;         ///< operator after which it dies
    bool movable = false;  ///< and no operator has written what running it again would leave out
    std::vector<int> makers = {};              ///< operators that made or wrote it, ascending
    std::vector<Derivation> derivations = {};  ///< of the first, the first two, … makers
  };

  [[nodiscard]] Derivation compose(const Trace& trace, TraceBlockId block,
                                   std::size_t makers) const;
  /// Takes account of inputs that die. Derivations of earlier contents must be done.
  void settle(const Trace& trace);
  /// The first operator after `at` that writes the block; the number of operators if none does.
  [[nodiscard]] int next_write(TraceBlockId block, int at) const;

  int operators_;
  std::vector<Life> lives_;
};

}  // namespace lms
