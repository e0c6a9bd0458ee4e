#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "plan/plan.h"
#include "trace/trace.h"

namespace lms {

/// "No address": of directives that take no memory.
inline constexpr Bytes kNoAddress = -1;
/// Addresses from here on are no addresses: kScattered + i is entry i of Placement::scattered.
inline constexpr Bytes kScattered = Bytes{1} << 56;

/// Addresses in one arena, from 0, for everything that a planned step has on the device.
struct Placement {
  /// Of every allocation of the step: for each operator in order, its results and temporaries in
  /// the order of their allocation (see TraceTemporary).
  std::vector<std::vector<Bytes>> allocations;
  /// Beside Plan::directives: where a kStartIn puts the block; else kNoAddress.
  std::vector<Bytes> arrivals;
  /// Beside Plan::directives: of a kRematerialise, every allocation of the operators of the block's
  /// lineage, in order, each as in `allocations`; the block's own is among those of the first. Else
  /// empty.
  std::vector<std::vector<Bytes>> remakes;
  /// Of every block that is on the device when the step begins, by ascending id.
  std::vector<std::pair<TraceBlockId, Bytes>> at_start;
  /// Blocks of `at_start` that are carried from a block born while they are still there (`y =
  /// f(x)` in a loop: the old y goes after the new one has come). The two take turns: when a step
  /// finds the old block not at its address of `at_start`, it is at the one of the last arrival
  /// (or remaking, or the allocation) of the new block, which then gets that of `at_start`. Both
  /// are free of others throughout the step.
  std::vector<TraceBlockId> taking_turns;
  Bytes page = 0;  ///< of `scattered`; 0 if there are none
  /// Memory in pieces: the pages (page n is [n * page, (n + 1) * page)) that lie behind the bytes
  /// of a stay, in their order. Of the last one a part may be unused.
  std::vector<std::vector<std::uint32_t>> scattered;
  /// Blocks of `at_start` that a step leaves somewhere else: before anything happens in the next,
  /// each is moved to its address of `at_start`, in this order.
  std::vector<TraceBlockId> moved;
  Bytes bytes = 0;        ///< end of the highest address in use: what the arena must hold
  Bytes lower_bound = 0;  ///< most bytes in use at one moment: no placement can need less
};

/// Offline dynamic storage allocation: every stay of a block on the device (from allocation or
/// arrival until it dies or has left) is a rectangle in address and time; a stay that lasts over
/// the end of the step goes on, at the same address, at the start of the next, under the name of
/// the block that is carried from it, if there is one.
///
/// Time is finer than operators: first the directives before an operator, in their order, each of
/// which may use what those before it gave back; then the operator's allocations (its results count
/// from its start, its temporaries while they live); then its frees. A kRematerialise is the
/// operators of the lineage, one after the other, each of which frees its other results. An
/// operator with a workspace, but no recorded temporaries, leaves so many bytes free in one piece
/// while it runs.
///
/// Sizes are rounded up to `alignment`, addresses are multiples of it. Searches for `seconds` at
/// most, less when nothing better is possible. The plan must satisfy verify_plan (under a budget
/// that does not matter here).
Placement place(const Trace& trace, const Plan& plan, Bytes alignment = 512, double seconds = 1);

/// Where several addresses can stand for the same memory.
struct Pages {
  Bytes room = 0;  ///< what everything should fit into
  Bytes page = 0;  ///< memory can be put behind addresses in pieces of this; 0: it cannot
};

/// The same; but what does not fit into the room in one piece each is scattered over its pages. If
/// it does not fit even so, the result is that of place() without.
Placement place(const Trace& trace, const Plan& plan, Bytes alignment, double seconds,
                const Pages& pages);

/// Everything that is wrong with a placement (overlaps in address and time, moves between steps, a
/// missing address, a lower bound that is none), a sentence each. Independent of place(): carries
/// out several steps in a row.
std::vector<std::string> verify_placement(const Trace& trace, const Plan& plan,
                                          const Placement& placement, Bytes alignment = 512);

}  // namespace lms
