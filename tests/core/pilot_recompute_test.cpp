// Plans that drop and rematerialise, carried out on a device whose lineages check what they read.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "pilot/pilot.h"
#include "sim/device.h"

namespace lms {
namespace {

constexpr Bytes kBytes = 16 * kKiB;
constexpr OperatorKey kForward = 100;
constexpr OperatorKey kSecond = 200;
constexpr OperatorKey kBack = 300;

/// A training loop: each layer makes something in between, which dies at once, and of that what the
/// backward pass needs. Computing is cheap, and the link slow.
class Layers final : public PilotDevice {
 public:
  Layers(Bytes limit, int layers)
      : sim_({.out_bytes_per_ms = kSlow, .in_bytes_per_ms = kSlow}),
        engine_({.limit = limit}, sim_, std::make_unique<LruPolicy>()),
        limit_(limit),
        layers_(layers),
        pilot(engine_, *this) {
    sim_.set_hooks({.drop = [this](SimBlock& block) { return drop(block); },
                    .rematerialise = [this](SimBlock& block) { return rematerialise(block); }});
    pilot.start(
        {.limit = limit, .in_foreground = true, .search = {.rounds = 200, .recompute = true}});
    pilot.wake();
    input_ = make(0);
  }
  ~Layers() override { free(input_); }
  Layers(const Layers&) = delete;
  Layers& operator=(const Layers&) = delete;

  void step(OperatorKey extra = 0) {
    std::vector<BlockUid> saved{input_};
    for (int i = 0; i < layers_; ++i) {
      begin(kForward + static_cast<OperatorKey>(i));
      use(saved.back());
      const BlockUid middle = make(saved.back());
      end();
      begin(kSecond + static_cast<OperatorKey>(i));
      use(middle);
      saved.push_back(make(middle));
      end();
      free(middle);
    }
    if (extra != 0) {
      begin(extra);
      use(saved.back());
      end();
    }
    for (int i = layers_; i > 0; --i) {
      begin(kBack + static_cast<OperatorKey>(i));
      use(saved.back());
      end();
      free(saved.back());
      saved.pop_back();
    }
  }

  [[nodiscard]] EngineStats stats() {
    auto lock = engine_.lock();
    return engine_.stats(lock);
  }

  // What has happened, for the tests.
  std::vector<std::string> said;
  std::multiset<OperatorKey> asked;  ///< operators that the pilot wanted recorded
  int unplanned = 0;                 ///< lineages' inputs that were not there
  int ghosts_made = 0;
  int ghosts_dropped = 0;
  int ghosts_swept = 0;
  int with_addresses = 0;
  bool forgets = false;    ///< how blocks come about is not recorded
  bool addresses = false;  ///< plans say where
  int fails = 0;           ///< so many rematerialisations fail

 private:
  static constexpr double kSlow = kBytes / 64.0;
  struct Known {
    SimBlock* block = nullptr;  ///< null: dead
    std::uint64_t value = 0;
    BlockUid input = 0;  ///< that it is computed from; 0: it is not
    bool recorded = false;
    bool ghost = false;  ///< dead, and its bytes are there
  };

  // PilotDevice
  void start_laps() override {
    ends_ = {sim_.now_ms()};
    stalled_ = {sim_.stalled_ms()};
  }
  void lap() override {
    ends_.push_back(sim_.now_ms());
    stalled_.push_back(sim_.stalled_ms());
  }
  Laps finish_laps() override {
    Laps laps;
    for (std::size_t i = 1; i < ends_.size(); ++i) {
      const double waited = stalled_[i] - stalled_[i - 1];
      laps.operators.push_back({.begin_ms = ends_[i - 1] + waited - ends_[0],
                                .end_ms = ends_[i] - ends_[0],
                                .waited_ms = waited});
    }
    return laps;
  }
  Room room(bool /*first*/) override { return {.arena = limit_, .addresses = addresses}; }
  LinkModel link() override {
    return {.out_bytes_per_ms = kSlow,
            .in_bytes_per_ms = kSlow,
            .both_bytes_per_ms = kSlow,
            .latency_ms = 0};
  }
  void say(const std::string& line) override { said.push_back(line); }
  void remake_ghost(BlockUid uid, const std::vector<Bytes>& where) override {
    check_unlocked();
    ++ghosts_made;
    with_addresses += where.empty() ? 0 : 1;
    Known& known = known_.at(uid);
    EXPECT_EQ(known.block, nullptr) << "it is alive";
    compute(known);
    known.ghost = true;
  }
  void drop_ghost(BlockUid uid) override {
    check_unlocked();
    ++ghosts_dropped;
    known_.at(uid).ghost = false;
  }
  void drop_ghosts() override {
    check_unlocked();
    ++ghosts_swept;
    for (auto& [uid, known] : known_) known.ghost = false;
  }

  void check_unlocked() {
    // Would wait for itself for ever under either lock.
    (void)stats();
    (void)pilot.stats();
  }

  // Lineages
  bool drop(SimBlock& block) {
    const Known& known = known_.at(block.uid);
    return known.recorded && !forgets;
  }
  bool rematerialise(SimBlock& block) {
    if (fails > 0) {
      --fails;
      throw std::runtime_error("cannot compute now");
    }
    if (!pilot.addresses_for(block).empty()) ++with_addresses;
    compute(known_.at(block.uid));
    block.fill(known_.at(block.uid).value);
    return true;
  }
  /// Checks and brings what it reads, as lineages do.
  void compute(const Known& known) {
    sim_.advance(1);
    if (known.input == 0) throw std::runtime_error("nobody knows how");
    Known& input = known_.at(known.input);
    if (input.block != nullptr) {
      auto lock = engine_.lock();
      if (input.block->state != BlockState::kResident) ++unplanned;
      const Use use{input.block, false};
      engine_.pin(lock, {&use, 1});
      EXPECT_TRUE(input.block->holds(input.value));
      engine_.unpin(lock, {&use, 1});
    } else if (!input.ghost) {
      ++unplanned;
      compute(input);
    }
  }

  // The program
  void begin(OperatorKey key) {
    recording_ = pilot.begin_operator(key, "op", true) == Pilot::Recording::kForPlan;
    if (recording_) asked.insert(key);
  }
  void use(BlockUid uid) {
    auto lock = engine_.lock();
    const Use use{known_.at(uid).block, false};
    engine_.pin(lock, {&use, 1});
    pilot.touch(lock, {&use, 1});
    uses_.push_back(use);
    EXPECT_TRUE(known_.at(uid).block->holds(known_.at(uid).value)) << "wrong bytes";
  }
  BlockUid make(BlockUid input) {
    {
      auto lock = engine_.lock();
      if (!engine_.reserve(lock, kBytes)) throw OutOfMemory("no room");
    }
    auto block = sim_.make_block(kBytes);
    const BlockUid uid = block->uid = Pilot::new_uid();
    known_[uid] = {block.get(), uid, input, recording_ && input != 0};
    block->fill(uid);
    (void)pilot.allocating(uid, kBytes);
    auto lock = engine_.lock();
    const Use use{&engine_.add(lock, std::move(block)), true};
    engine_.pin(lock, {&use, 1});
    pilot.touch(lock, {&use, 1});
    uses_.push_back(use);
    return uid;
  }
  void end() {
    sim_.advance(1);
    {
      auto lock = engine_.lock();
      engine_.unpin(lock, uses_);
      uses_.clear();
      engine_.operator_ended(lock);
    }
    pilot.end_operator();
    recording_ = false;
  }
  void free(BlockUid uid) {
    pilot.released(uid);
    auto lock = engine_.lock();
    engine_.unpin(lock, uses_);
    uses_.clear();
    engine_.remove(lock, *std::exchange(known_.at(uid).block, nullptr));
  }

  SimDevice sim_;
  Engine engine_;
  Bytes limit_;
  int layers_;
  std::map<BlockUid, Known> known_;
  std::vector<double> ends_;
  std::vector<double> stalled_;
  std::vector<Use> uses_;
  BlockUid input_ = 0;
  bool recording_ = false;

 public:
  Pilot pilot;
};

constexpr int kLayers = 10;
constexpr Bytes kLayersTight = 8 * kBytes;  // of the 12 that ten layers take

/// Steps until a plan is followed that drops.
std::shared_ptr<const Script> settle(Layers& loop) {
  for (int i = 0; i < 12; ++i) loop.step();
  auto script = loop.pilot.current();
  EXPECT_TRUE(script && script->planned) << (loop.said.empty() ? "" : loop.said.front());
  return script;
}

std::int64_t count(const Script& script, Action action, bool ghosts) {
  std::int64_t sum = 0;
  std::vector<std::size_t> death(script.shape.trace.blocks.size(), script.size());
  for (std::size_t i = 0; i < script.size(); ++i) {
    for (const TraceBlockId id : script.shape.trace.operators[i].frees) death[id] = i;
  }
  for (const Directive& directive : script.plan.directives) {
    if (directive.action == action && (death[directive.block] < directive.before) == ghosts) ++sum;
  }
  return sum;
}

TEST(PilotRecompute, APlanDropsAndRematerialisesInItsOrder) {
  Layers loop(kLayersTight, kLayers);
  const auto script = settle(loop);
  ASSERT_GT(count(*script, Action::kRematerialise, false), 0);
  ASSERT_GT(count(*script, Action::kRematerialise, true), 0) << "what died in between is needed";
  loop.unplanned = loop.ghosts_made = loop.ghosts_dropped = 0;
  const EngineStats before = loop.stats();
  constexpr int kSteps = 5;
  for (int i = 0; i < kSteps; ++i) loop.step();
  const EngineStats after = loop.stats();
  EXPECT_EQ(loop.pilot.current(), script);
  EXPECT_EQ(loop.unplanned, 0) << "inputs come first";
  EXPECT_EQ(after.remakes - before.remakes, kSteps * count(*script, Action::kRematerialise, false));
  EXPECT_EQ(loop.ghosts_made, kSteps * count(*script, Action::kRematerialise, true));
  EXPECT_EQ(loop.ghosts_dropped, kSteps * count(*script, Action::kDrop, true));
  EXPECT_EQ(loop.pilot.stats().refused + loop.pilot.stats().failed, 0);
  EXPECT_TRUE(loop.said.empty()) << loop.said.front();
}

TEST(PilotRecompute, ExactlyTheOperatorsOfLineagesAreRecorded) {
  Layers loop(kLayersTight, kLayers);
  const auto script = settle(loop);
  loop.asked.clear();
  loop.step();
  std::multiset<OperatorKey> expected;
  for (std::size_t i = 0; i < script->size(); ++i) {
    if (script->records(i)) expected.insert(script->shape.operators[i].key);
  }
  EXPECT_EQ(loop.asked, expected);
  EXPECT_GT(expected.size(), 0U);
  EXPECT_LT(expected.size(), script->size()) << "the backward pass makes nothing";

  // Those that made what is dropped, and what died before that.
  std::set<std::size_t> needed;
  std::map<TraceBlockId, std::size_t> maker;
  std::map<TraceBlockId, std::size_t> death;
  for (std::size_t i = 0; i < script->size(); ++i) {
    for (const TraceBlockId id : script->shape.trace.operators[i].allocs) maker[id] = i;
    for (const TraceBlockId id : script->shape.trace.operators[i].frees) death[id] = i;
  }
  for (const Directive& directive : script->plan.directives) {
    if (directive.action == Action::kRematerialise) needed.insert(maker.at(directive.block));
  }
  for (const std::size_t op : needed) EXPECT_TRUE(script->records(op)) << op;
}

TEST(PilotRecompute, AddressesAreThoseOfThePlanWhileItIsCarriedOut) {
  Layers loop(kLayersTight, kLayers);
  loop.addresses = true;
  const auto script = settle(loop);
  ASSERT_FALSE(script->placement.remakes.empty());
  loop.with_addresses = 0;
  const EngineStats before = loop.stats();
  loop.ghosts_made = 0;
  loop.step();
  const EngineStats after = loop.stats();
  EXPECT_EQ(loop.with_addresses, after.remakes - before.remakes + loop.ghosts_made);
  EXPECT_GT(loop.with_addresses, 0);
  // One attempt of the plan's fails: who needs the block has it computed, wherever there is room.
  loop.with_addresses = loop.ghosts_made = 0;
  loop.fails = 1;
  const EngineStats again = loop.stats();
  loop.step();
  EXPECT_EQ(loop.with_addresses, loop.stats().remakes - again.remakes + loop.ghosts_made - 1);
}

TEST(PilotRecompute, ADropThatIsRefusedBecomesAnEviction) {
  Layers loop(kLayersTight, kLayers);
  const auto script = settle(loop);
  loop.forgets = true;
  const EngineStats before = loop.stats();
  const auto refused = loop.pilot.stats().refused;
  loop.step();
  loop.step();
  const EngineStats after = loop.stats();
  EXPECT_GT(loop.pilot.stats().refused, refused);
  EXPECT_EQ(after.drops, before.drops);
  EXPECT_GT(after.evictions, before.evictions);
  EXPECT_EQ(loop.pilot.current(), script) << "still the plan";
}

TEST(PilotRecompute, AFailureIsSaidAndTheUserOfTheBlockTriesAgain) {
  Layers loop(kLayersTight, kLayers);
  (void)settle(loop);
  loop.fails = 1;
  loop.step();
  EXPECT_EQ(loop.pilot.stats().failed, 1);
  ASSERT_EQ(loop.said.size(), 1U);
  EXPECT_NE(loop.said[0].find("cannot compute now"), std::string::npos) << loop.said[0];
  loop.step();
  EXPECT_EQ(loop.pilot.stats().failed, 1);
}

TEST(PilotRecompute, GhostsGoWhenTheStepEndsAndWhenItIsAnother) {
  Layers loop(kLayersTight, kLayers);
  (void)settle(loop);
  loop.ghosts_swept = 0;
  for (int i = 0; i < 3; ++i) loop.step();
  EXPECT_GE(loop.ghosts_swept, 2) << "once a step";
  const EngineStats before = loop.stats();
  loop.ghosts_swept = 0;
  loop.step(/*extra=*/777);  // in the middle, while much is dropped
  EXPECT_GE(loop.ghosts_swept, 1);
  EXPECT_GT(loop.stats().drops, before.drops);
  ASSERT_EQ(loop.said.size(), 1U);
  for (int i = 0; i < 6; ++i) loop.step();
  EXPECT_EQ(loop.pilot.stats().failed, 0);
  EXPECT_GT(loop.stats().drops, before.drops + 3) << "the plan is followed again";
}

TEST(PilotRecompute, ToldNotToItDropsNothing) {
  Layers loop(kLayersTight, kLayers);
  loop.pilot.start({.limit = kLayersTight,
                    .in_foreground = true,
                    .search = {.rounds = 200, .recompute = false}});
  loop.pilot.wake();
  (void)settle(loop);
  EXPECT_EQ(loop.stats().drops, 0);
  EXPECT_TRUE(loop.asked.empty());
}

}  // namespace
}  // namespace lms
