#pragma once

#include <vector>

#include "plan/timing/timing.h"

namespace lms {

/// A stretch of operators in which a block lies idle, and could be away. Operators are those of
/// StepModel, counted on into the next step: a gap of a block that every step uses may begin in one
/// step and end in the next.
struct Gap {
  TraceBlockId block = 0;
  Bytes bytes = 0;
  int begin = 0;        ///< first operator of the gap, less than the step's operators
  int end = 0;          ///< operator that needs the block again, at most begin + operators
  bool returns = true;  ///< false: the block dies unused, after operator end - 1
  int version = 0;      ///< index into StepModel::versions
};

/// The contents of a block between two writes. One copy out serves all of its gaps.
struct Version {
  bool clean = false;  ///< never written in any step: its copy is always valid
  int ready = 0;       ///< before this operator its copy out may start at the earliest
};

/// What a search needs to know of a trace. Its operator i + 1 is the trace's operator i. The first
/// and the last stand for the moments at which the step begins and ends: they take no time. The
/// last ends what the next step does not know, the first makes what is there though the step before
/// did not leave it.
struct StepModel {
  explicit StepModel(const Trace& trace);

  int operators = 0;
  std::size_t blocks = 0;
  std::vector<Gap> gaps;
  std::vector<Version> versions;
  std::vector<Bytes> before;  ///< bytes alive before each operator
  std::vector<Bytes> taken;   ///< by each operator: results and workspace
  std::vector<Bytes> born;    ///< of which results
  std::vector<Bytes> freed;   ///< after each operator
  std::vector<double> ms;
  std::vector<double> host_ms;   ///< TraceOperator::host_ms; empty: not known
  std::vector<char> host_waits;  ///< likewise
  bool waits = false;            ///< any of them
  std::vector<double> begins;    ///< sum of ms before each operator; [operators]: all

  /// Bytes alive while the operator runs if nothing leaves.
  [[nodiscard]] Bytes during(int op) const {
    return before[static_cast<std::size_t>(op)] + taken[static_cast<std::size_t>(op)];
  }
  /// Adds `bytes` to sums[p] for every operator p of the gap.
  void add(std::vector<Bytes>& sums, const Gap& gap, Bytes bytes) const;

 private:
  void add_host(const Trace& trace);
};

}  // namespace lms
