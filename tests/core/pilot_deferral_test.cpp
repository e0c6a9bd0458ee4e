// A plan has some updates wait until the next step: that is another step, in whatever sizes it
// comes.

#include <string_view>
#include <utility>

#include "core/pilot_loop.h"

namespace lms::testing {
namespace {

constexpr int kLayers = 16;

/// A loop with an optimizer, whose updates run where the device has been told that they had better.
class Training : public Loop {
 public:
  explicit Training(Bytes limit) : Loop(limit, kLayers), gradients_(kLayers, nullptr) {
    pilot.start({.min_block = 1,
                 .limit = limit,
                 .in_foreground = true,
                 .may_wait = [](std::string_view name) { return name == "aten::_fused_sgd_"; },
                 .detours = DetourGate::Rule::kOpen,
                 .search = {.rounds = 200}});
    pilot.wake();
    for (int i = 0; i < kLayers; ++i) {
      begin(54);
      states_.push_back(&make(value_++, 2 * kBytes));
      end();
    }
  }
  ~Training() {
    for (SimBlock* gradient : gradients_) {
      if (gradient != nullptr) drop(*gradient);
    }
    for (SimBlock* state : states_) drop(*state);
  }

  void train(Bytes batch) {
    std::vector<SimBlock*> activations;
    for (std::size_t i = 0; i < kLayers; ++i) {
      if (gradients_[i] != nullptr) update(i);
      begin(100 + i);
      use(*weights_[i], false);
      activations.push_back(&make(value_++, batch));
      end(2);
    }
    for (std::size_t i = kLayers; i-- > 0;) {
      begin(200 + i);
      use(*weights_[i], false);
      use(*activations[i], false);
      gradients_[i] = &make(value_++);
      end(4);
      drop(*activations[i]);
    }
    for (std::size_t i = 0; i < kLayers; ++i) {
      if (!device.deferred.contains(weights_[i]->uid)) update(i);
    }
  }

 private:
  void update(std::size_t layer) {
    begin(300, "aten::_fused_sgd_");
    use(*weights_[layer], true);
    use(*gradients_[layer], false);
    use(*states_[layer], true);
    end(0.01);
    drop(*std::exchange(gradients_[layer], nullptr));
  }

  std::vector<SimBlock*> states_;
  std::vector<SimBlock*> gradients_;
};

/// The step before the choice is none to come back to after each update that has waited.
TEST(PilotDeferral, IsLearntAnew) {
  Training training(44 * Loop::kBytes);
  const auto& deferred = training.device.deferred;
  const auto steps = [&](int count) {
    for (int i = 0; i < count; ++i) training.train(Loop::kBytes / 2);
  };
  for (int i = 0; i < 20 && deferred.empty(); ++i) steps(1);
  ASSERT_FALSE(deferred.empty());
  EXPECT_LT(deferred.size(), 2U * kLayers) << "all of them wait";
  EXPECT_EQ(training.pilot.stats().shapes, 0);
  EXPECT_EQ(training.pilot.stats().why, "planned") << "of the step that runs";
  steps(8);
  const auto before = training.pilot.stats();
  steps(12);
  const auto after = training.pilot.stats();
  EXPECT_EQ(after.steps - before.steps, 12) << after.why;
  EXPECT_EQ(after.shapes, 1);
  EXPECT_EQ(after.detours, 0);
}

}  // namespace
}  // namespace lms::testing
