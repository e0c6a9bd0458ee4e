#include <memory>
#include <utility>

#include "base/error.h"
#include "foresight/foresight_policy.h"
#include "lab/bench/costs.h"
#include "pilot/pilot.h"
#include "sim/device.h"

namespace lms::bench {
namespace {

constexpr int kLayers = 200;
constexpr Bytes kBytes = 4096;
/// All weights and all activations, which live at once in the middle of the step.
constexpr Bytes needed(int layers) { return 2 * layers * kBytes; }
constexpr Bytes kNeeded = needed(kLayers);
constexpr int kMostSteps = 60;

/// A device on which laps take no time.
class Device final : public PilotDevice {
 public:
  Device(Bytes room, bool foresees) : room_(room), foresees_(foresees) {}

  void start_laps() override {}
  void lap() override {}
  decltype(std::declval<PilotDevice&>().finish_laps()) finish_laps() override { return {}; }
  Room room() override {
    if (room_ == 0) throw Error("nothing is to be planned here");
    return {.arena = room_, .addresses = false};
  }
  LinkModel link() override { return {}; }
  [[nodiscard]] bool copies_beside() const override { return foresees_; }
  void say(const std::string& /*line*/) override {}

 private:
  const Bytes room_;  ///< 0: none
  const bool foresees_;
};

struct Setup {
  std::string mode;
  bool enabled = true;
  Bytes engine_limit = 4 * kNeeded;
  Bytes pilot_limit = kNeeded;  ///< what the loop must nearly fill to be taken for a step
  Bytes room = 2 * kNeeded;     ///< for plans; 0: none is made
  int layers = kLayers;
  bool foresees = false;  ///< what leaves is chosen by its next use, and comes ahead

  [[nodiscard]] int operators() const { return 2 * layers; }
};

/// A chain of layers, forward and back: every operator uses two blocks, and makes or drops one.
class Loop {
 public:
  explicit Loop(const Setup& setup)
      : sim_({.contents = false}),
        engine_({.limit = setup.engine_limit}, sim_, std::make_unique<LruPolicy>()),
        device_(setup.room, setup.foresees),
        pilot(engine_, device_),
        layers_(setup.layers) {
    pilot.start({.enabled = setup.enabled,
                 .limit = setup.pilot_limit,
                 .in_foreground = true,
                 .search = {.rounds = 200}});
    if (setup.foresees) {
      EngineLock lock = engine_.lock();
      engine_.set_policy(lock, std::make_unique<ForesightPolicy>(pilot.foresight()));
    }
    pilot.wake();
    for (int i = 0; i < layers_; ++i) weights_.push_back(&make());
  }
  ~Loop() {
    for (SimBlock* block : weights_) drop(*block);
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void step() {
    for (int i = 0; i < layers_; ++i) {
      begin(i);
      SimBlock* last = activations_.empty() ? nullptr : activations_.back();
      use({weights_[static_cast<std::size_t>(i)], false}, last);
      activations_.push_back(&make());
      end();
    }
    for (int i = layers_; i-- > 0;) {
      begin(layers_ + i);
      use({weights_[static_cast<std::size_t>(i)], true}, activations_.back());
      end();
      drop(*activations_.back());
      activations_.pop_back();
    }
  }

  [[nodiscard]] double moved() {
    EngineLock lock = engine_.lock();
    const EngineStats stats = engine_.stats(lock);
    return static_cast<double>(stats.evictions + stats.page_ins);
  }

 private:
  void begin(int number) {
    pilot.begin_operator(100 + static_cast<OperatorKey>(number), "aten::linear", true);
  }
  void use(Use first, SimBlock* second) {
    uses_.assign(1, first);
    if (second != nullptr) uses_.push_back({second, false});
    EngineLock lock = engine_.lock();
    engine_.pin(lock, uses_);
    pilot.touch(lock, uses_);
  }
  void end() {
    {
      EngineLock lock = engine_.lock();
      engine_.unpin(lock, uses_);
      engine_.operator_ended(lock);
    }
    pilot.end_operator();
  }
  SimBlock& make() {
    auto block = sim_.make_block(kBytes);
    block->uid = Pilot::new_uid();
    (void)pilot.allocating(block->uid, kBytes);
    EngineLock lock = engine_.lock();
    if (!engine_.reserve(lock, kBytes)) throw Error("no room for a block");
    return static_cast<SimBlock&>(engine_.add(lock, std::move(block)));
  }
  void drop(SimBlock& block) {
    pilot.released(block.uid);
    EngineLock lock = engine_.lock();
    engine_.remove(lock, block);
  }

  SimDevice sim_;
  Engine engine_;
  Device device_;

 public:
  Pilot pilot;

 private:
  const int layers_;
  std::vector<SimBlock*> weights_;
  std::vector<SimBlock*> activations_;
  std::vector<Use> uses_;
};

/// Steps until a plan made with the times of planned steps is followed, or enough for all else.
void settle(Loop& loop, bool follows) {
  for (int i = 0; i < kMostSteps; ++i) {
    loop.step();
    if (follows ? loop.pilot.stats().refined > 0 : i >= 10) return;
  }
  throw Error("the pilot has not come to follow a plan");
}

Cost measure(const Setup& setup, const std::string& base, int samples) {
  Loop loop(setup);
  const bool follows = setup.enabled && setup.pilot_limit <= kNeeded && setup.room > 0;
  const bool tracks = setup.enabled && setup.pilot_limit <= kNeeded && setup.room == 0;
  settle(loop, follows);
  const Pilot::Stats before = loop.pilot.stats();
  if ((before.shapes > 0) != (follows || tracks)) throw Error(setup.mode + ": another step known");
  const double moved = loop.moved();
  Cost cost{"engine and pilot alone", setup.mode, base, {}, 0};
  for (int i = 0; i < samples; ++i) {
    const double began = cpu_ns();
    loop.step();
    cost.samples.push_back((cpu_ns() - began) / setup.operators());
  }
  cost.moves = (loop.moved() - moved) / samples / setup.operators();
  const Pilot::Stats after = loop.pilot.stats();
  if (after.divergences != before.divergences || after.shapes != before.shapes ||
      after.steps - before.steps != (follows ? samples : 0)) {
    throw Error(setup.mode + ": the pilot has done something else");
  }
  return cost;
}

}  // namespace

void pilot_costs(int samples, std::vector<Cost>& costs) {
  const std::string alone = "no plans";
  const std::string tight = "no plans, tight";
  costs.push_back(measure({.mode = alone, .enabled = false}, "", samples));
  costs.push_back(measure({.mode = "recording", .pilot_limit = 4 * kNeeded}, alone, samples));
  costs.push_back(measure({.mode = "tracking", .room = 0}, alone, samples));
  costs.push_back(measure({.mode = "following", .room = 2 * kNeeded}, alone, samples));
  // A tenth less than what the step needs.
  const Bytes less = kNeeded / 10 * 9;
  costs.push_back(measure({.mode = tight, .enabled = false, .engine_limit = less}, "", samples));
  costs.push_back(
      measure({.mode = "following, tight", .engine_limit = less, .room = less}, tight, samples));
  // Never planned, with many blocks, at six tenths of what the step needs.
  constexpr int kMany = 2500;
  Setup many{.mode = "no plans, many blocks",
             .engine_limit = needed(kMany) / 10 * 6,
             .pilot_limit = 4 * needed(kMany),
             .room = 0,
             .layers = kMany};
  costs.push_back(measure(many, "", samples));
  many.mode = "foreseeing, many blocks";
  many.foresees = true;
  costs.push_back(measure(many, "no plans, many blocks", samples));
}

}  // namespace lms::bench
