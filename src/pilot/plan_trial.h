#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace lms {

struct Script;

/// Two plans of one step, of which the quicker is to stay. That the newer one is, its prediction
/// says; steps say whether it is so, since what a host takes on shared cores was measured in one
/// step, and may be wrong. If steps under the newer plan are slower than the best of those before,
/// the older one is followed again, for as many steps: the machine may have become slower. Not
/// thread-safe.
class PlanTrial {
 public:
  enum class Next : std::uint8_t {
    kGoOn,
    kChange,  ///< the other plan is to be followed; once over(), for good
    kSettle,  ///< the plan that is followed stays
  };

  /// `before`: the step with the older plan, of which one step has taken no more than `before_ms`.
  PlanTrial(std::shared_ptr<Script> before, double before_ms, std::size_t operators);

  /// A step under the plan that is followed (first the newer one) has taken so long, and the one
  /// before was under it, too.
  Next note(double ms);
  /// The older plan is followed again.
  [[nodiscard]] bool looks_back() const { return stage_ == Stage::kBefore; }
  /// There is no more to find out.
  [[nodiscard]] bool over() const { return stage_ == Stage::kOver; }

  /// The step with the plan that is not followed.
  std::shared_ptr<Script> other;

 private:
  enum class Stage : std::uint8_t { kNewer, kBefore, kOver };

  Stage stage_ = Stage::kNewer;
  double before_ms_;
  double newer_ms_ = 0;
  std::size_t settled_after_;  ///< steps under a plan: until then the device has others to do
  std::size_t noted_ = 0;      ///< under this plan
  std::vector<double> taken_ms_;
};

}  // namespace lms
