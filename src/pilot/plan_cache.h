#pragma once

#include <optional>
#include <string>

#include "plan/plan_io.h"
#include "steps/step_log.h"

namespace lms {

/// What a plan is kept under, as 32 hexadecimal digits: equal for steps that do the same
/// (operators, and who uses, makes and frees which blocks of which sizes, in the same order), with
/// memory in pieces of the same size, plans that may recompute or not, and the same version of LMS.
/// Times of operators, rates of the link and addresses of blocks are no part of it: it comes out
/// the same in another process. Blocks' sizes are those that the plan is made with. Well under a
/// millisecond for thousands of operators.
std::string plan_key(const StepShape& shape, Bytes page, bool recompute);

/// Plans in a folder that many processes use at the same time: a file for each key and amount of
/// room. Damaged files are removed, and the least recently used when all are too large. Failing is
/// no error here: then there is no plan, or none is kept. Not thread-safe; any number of caches may
/// have the same folder.
class PlanCache {
 public:
  static constexpr Bytes kMostBytes = 64 * kMiB;

  /// `folder` is made when the first plan is kept; empty: nothing is ever found or kept.
  explicit PlanCache(std::string folder, Bytes most_bytes = kMostBytes);

  /// "lms/plans" in the folder where this user's caches are ($XDG_CACHE_HOME, else $HOME/.cache);
  /// empty if there is none.
  [[nodiscard]] static std::string default_folder();

  /// The plan kept under `key` that makes most of `room`: made for no more, and for at most a
  /// fiftieth less. It fits the trace (see misfit()).
  [[nodiscard]] std::optional<SavedPlan> find(const std::string& key, const Trace& trace,
                                              Bytes room);

  /// Keeps the plan under its key and room, instead of what was there. False if that failed: see
  /// why().
  bool keep(const SavedPlan& plan);

  /// Why the last find() or keep() came to nothing, though there was something; else empty.
  [[nodiscard]] const std::string& why() const { return why_; }

 private:
  void prune(const std::string& newest);

  std::string folder_;
  Bytes most_bytes_;
  std::string why_;
};

}  // namespace lms
