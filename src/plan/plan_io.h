#pragma once

#include <optional>
#include <string>

#include "plan/placed_plan.h"

namespace lms {

/// Raised by every change of the files' form. What the values in them mean has kPlanVersion.
inline constexpr int kPlanFileVersion = 1;

/// A plan as it is kept in a file: with what it was made for.
struct SavedPlan {
  /// Of the step that it is for; whatever the writer takes for the same step. May be empty.
  std::string key;
  Bytes room = 0;  ///< bytes on the device that there were for it
  Bytes page = 0;  ///< in which they can be scattered; 0: they cannot
  LinkModel link;
  /// Without timeline. A placement without allocations is none: the plan has no addresses.
  PlacedPlan made;
};

/// Writes the plan as JSON, packed with gzip if `path` ends in ".gz". Whoever reads `path`
/// meanwhile, in another process too, sees the file of before or the whole of the new one.
/// load_plan gives back an equal one, to the last bit. Throws Error if the file cannot be written;
/// the one of before is then still there.
void save_plan(const SavedPlan& plan, const std::string& path);

/// The plan in a file that save_plan has written, packed or not. Throws Error, naming the file and
/// what is wrong, if it cannot be read, is something else, of another version or damaged. What is
/// given back makes sense by itself (sizes are no less than 0, addresses lie in the arena, lists
/// beside each other are as long as each other), but need not for any trace: see misfit().
SavedPlan load_plan(const std::string& path);

/// Why the plan cannot be followed in steps like the trace's on `room` bytes, in a sentence;
/// nothing if it can, which verify_plan and verify_placement then have proved. For any plan that
/// load_plan may give back.
std::optional<std::string> misfit(const SavedPlan& plan, const Trace& trace, Bytes room);

}  // namespace lms
