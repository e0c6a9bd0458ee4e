#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <ranges>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "pilot/pilot.h"
#include "sim/device.h"

namespace lms::testing {

/// A device that takes times from the simulation's clock, and places blocks itself.
class PlainDevice final : public PilotDevice {
 public:
  PlainDevice(Bytes limit, SimDevice& sim) : limit_(limit), sim_(sim) {}

  void start_laps() override {
    const std::lock_guard guard(mutex_);
    ++timed;
    copies_.clear();
    ends_ = {now()};
    running_ = true;
  }
  void lap() override {
    const std::lock_guard guard(mutex_);
    ends_.push_back(now());
  }
  void restart_lap() override { ++restarted; }
  Laps finish_laps() override {
    const std::lock_guard guard(mutex_);
    Laps laps;
    for (std::size_t i = 1; i < ends_.size(); ++i) {
      const double waited = ends_[i].stalled - ends_[i - 1].stalled;
      laps.operators.push_back({.begin_ms = ends_[i - 1].ms + waited - ends_[0].ms,
                                .end_ms = ends_[i].ms - ends_[0].ms,
                                .waited_ms = waited,
                                .behind = behind,
                                .behind_after = behind});
    }
    for (const std::size_t i : starves_at) {
      laps.operators.at(i).behind = 0;
      laps.operators.at(i).end_ms += 100;
    }
    laps.copies = copies_;
    running_ = false;
    return laps;
  }
  void drop_laps() override {
    const std::lock_guard guard(mutex_);
    ++dropped;
    running_ = false;
  }
  [[nodiscard]] double now_ms() const override { return sim_.now_ms(); }
  void show(Stage stage, bool begins) noexcept override {
    const std::lock_guard guard(mutex_);
    shown.emplace_back(stage, begins);
  }
  /// A copy of as many bytes is under way.
  void note_copy(const Block& block, bool out) {
    const std::lock_guard guard(mutex_);
    if (running_) copies_.push_back({block.uid, block.size, out, now().ms, now().ms + 1});
  }

  Room room(bool first) override {
    if (!refuses.empty()) throw Error(refuses);
    if (first) ++first_rooms;
    return {.arena = limit_, .page = page, .addresses = addresses};
  }
  [[nodiscard]] std::int64_t misplaced() const override { return misplacements; }
  Bytes still_room(Bytes room) override { return std::min(room, limit_ - lost); }
  [[nodiscard]] bool obstructed(Bytes bytes) override {
    return squatter > 0 || limit_ - lost < bytes;
  }
  void clear_way() override {
    ++cleared;
    if (!returns) lost += std::exchange(squatter, 0);
  }
  [[nodiscard]] bool at_home(const Block& block) override {
    ++asked;
    return strays.erase(block.uid) == 0;
  }
  LinkModel link() override {
    return {.out_bytes_per_ms = link_rate,
            .in_bytes_per_ms = link_rate,
            .both_bytes_per_ms = link_rate,
            .latency_ms = 0};
  }
  void say(const std::string& line) override { said.push_back(line); }
  void defer_updates(const std::vector<BlockUid>& written) override {
    deferred = {written.begin(), written.end()};
  }
  [[nodiscard]] bool copies_beside() const override { return beside; }

  double link_rate = 512;  ///< as it is told, in bytes a millisecond
  std::vector<std::string> said;
  std::set<BlockUid> deferred;  ///< what the updates write that are to wait
  std::vector<std::pair<Stage, bool>> shown;
  std::string refuses;
  bool beside = false;     ///< copies may be begun ahead without a plan
  bool addresses = false;  ///< plans say where everything lies
  Bytes page = 0;          ///< in pieces of so many bytes
  std::int64_t misplacements = 0;
  int first_rooms = 0;   ///< times that it was asked for the room of a first plan
  Bytes squatter = 0;    ///< what cannot move and is in the way
  Bytes lost = 0;        ///< of the room
  bool returns = false;  ///< the squatter is there again at once
  int cleared = 0;
  std::set<BlockUid> strays;  ///< what lies elsewhere than planned, until it is asked for
  int asked = 0;
  int behind = -1;  ///< MeasuredOperator::behind
  /// Operators of timed steps for which it has waited, and they seem to take so much longer.
  std::vector<std::size_t> starves_at;
  int timed = 0;
  int dropped = 0;
  int restarted = 0;

 private:
  struct Moment {
    double ms;
    double stalled;
  };
  [[nodiscard]] Moment now() const { return {sim_.now_ms(), sim_.stalled_ms()}; }

  Bytes limit_;
  SimDevice& sim_;
  std::mutex mutex_;  ///< guards what follows: a plan may be made in another thread
  std::vector<Moment> ends_;
  std::vector<MeasuredCopy> copies_;
  bool running_ = false;
};

/// A training loop on a simulated device, with real bytes: a chain of layers, forward and back.
class Loop {
 public:
  static constexpr Bytes kBytes = 512;

  Loop(Bytes limit, int layers)
      : sim_({.out_bytes_per_ms = kBytes, .in_bytes_per_ms = kBytes}),
        engine_({.limit = limit}, sim_, std::make_unique<LruPolicy>()),
        device(limit, sim_),
        pilot(engine_, device) {
    sim_.set_hooks({.mid_move = [this](SimBlock& block, Direction direction) {
      device.note_copy(block, direction == Direction::kOut);
      if (direction == Direction::kOut) pilot.wake();
    }});
    {
      auto lock = engine_.lock();
      engine_.set_policy(lock, std::make_unique<ForesightPolicy>(pilot.foresight()));
    }
    pilot.start({.limit = limit, .in_foreground = true, .search = {.rounds = 200}});
    pilot.wake();
    for (int i = 0; i < layers; ++i) weights_.push_back(&make(value_++));
  }
  ~Loop() {
    for (auto* block : weights_) drop(*block);
    for (auto& one : kept_) drop(*one.block);
  }

  /// The first layer's weight is one of `bytes` that stays on the device until it dies.
  void hold_first(Bytes bytes) {
    drop(*weights_.at(0));
    begin(52);
    weights_[0] = &make(value_++, bytes);
    end();
    auto lock = engine_.lock();
    engine_.keep(lock, *weights_[0]);
    pilot.kept(lock, *weights_[0]);
  }

  /// A block that is kept, to be read by steps. Returns its number.
  std::size_t keep(Bytes bytes = kBytes) {
    kept_.push_back({nullptr, value_++});
    begin(50);
    kept_.back().block = &make(kept_.back().value, bytes);
    end();
    return kept_.size() - 1;
  }
  /// So much of the limit is not there for steps.
  void occupy(Bytes bytes) {
    const std::size_t index = keep(bytes);
    auto lock = engine_.lock();
    engine_.keep(lock, *kept_[index].block);
  }
  /// The next step reads this one, at its beginning and at its end.
  void feed(std::size_t kept) { fed_ = kept; }
  /// One operator writes it, all of it.
  void refill(std::size_t kept) {
    begin(51);
    use(*kept_.at(kept).block, true);
    kept_.at(kept).block->fill(kept_.at(kept).value = value_++);
    end();
  }

  /// One iteration over the first `layers` layers. Checks all bytes that it finds.
  void step(int layers, OperatorKey extra = 0) {
    std::vector<int> all(static_cast<std::size_t>(layers));
    std::iota(all.begin(), all.end(), 0);
    step_of(all, extra);
  }
  /// Likewise over these layers, in order.
  void step_of(const std::vector<int>& layers, OperatorKey extra = 0) {
    std::vector<Held> activations;
    std::vector<Held> masks;
    for (const int i : layers) {
      begin(100 + static_cast<OperatorKey>(alike ? 0 : i));
      use(*weights_[static_cast<std::size_t>(i)], false);
      if (activations.empty()) read_fed();
      if (!activations.empty()) use(*activations.back().block, false, activations.back().value);
      const Bytes bytes = each ? each(i) : activation;
      if (masked && !activations.empty()) {
        masks.push_back({nullptr, value_++});
        masks.back().block = &make(masks.back().value, bytes / 4);
      }
      activations.push_back({nullptr, value_++});
      if (temporaries) pass(temporaries(bytes));
      activations.back().block = &make(activations.back().value, bytes);
      end();
      look_at(activations.back(), 1000);
    }
    if (extra != 0) {
      begin(extra);
      use(*activations.back().block, false, activations.back().value);
      end();
    }
    for (const int i : layers | std::views::reverse) {
      look_at(activations.back(), 2000);
      begin(200 + static_cast<OperatorKey>(alike ? 0 : i));
      use(*weights_[static_cast<std::size_t>(i)], true);
      use(*activations.back().block, false, activations.back().value);
      if (activations.size() == 1) read_fed();
      if (!masks.empty()) use(*masks.back().block, false, masks.back().value);
      end();
      if (!masks.empty()) {
        drop(*masks.back().block);
        masks.pop_back();
      }
      drop(*activations.back().block);
      activations.pop_back();
      if (adds == 0) continue;
      begin(adds);
      use(*weights_[static_cast<std::size_t>(i)], true);
      end();
    }
  }

  /// The same operator again and again, on two weights.
  void optimizer() {
    begin(300);
    use(*weights_[0], true);
    use(*weights_[1], true);
    end();
  }

  /// Something else runs for so long.
  void wait(double ms) { sim_.advance(ms); }
  [[nodiscard]] double now_ms() const { return sim_.now_ms(); }
  [[nodiscard]] BlockUid weight(std::size_t layer) const { return weights_.at(layer)->uid; }
  [[nodiscard]] EngineStats stats() {
    auto lock = engine_.lock();
    return engine_.stats(lock);
  }

 protected:
  struct Held {
    SimBlock* block;
    std::uint64_t value;
  };

  /// Some operators that read it.
  void look_at(Held& one, OperatorKey key) {
    for (int i = 1; i < parts; ++i) {
      begin(key + static_cast<OperatorKey>(i));
      use(*one.block, false, one.value);
      end();
    }
  }

  void begin(OperatorKey key, const char* name = "op") {
    pilot.begin_operator(key, name, true);
    if (fails_at_first) pilot.restart_operator();
  }

  void use(SimBlock& block, bool writes, std::uint64_t value = 0) {
    auto lock = engine_.lock();
    const Use use{&block, writes};
    engine_.pin(lock, {&use, 1});
    if (block.size >= least) pilot.touch(lock, {&use, 1});
    uses_.push_back(use);
    if (value != 0) {
      EXPECT_TRUE(block.holds(value)) << "wrong bytes in block " << block.uid;
    }
  }

  void read_fed() {
    if (fed_) use(*kept_.at(*fed_).block, false, kept_.at(*fed_).value);
  }

  SimBlock& make(std::uint64_t value, Bytes bytes = kBytes) {
    {
      auto lock = engine_.lock();
      if (!engine_.reserve(lock, bytes)) throw OutOfMemory("no room");
    }
    auto block = sim_.make_block(bytes);
    block->fill(value);
    block->uid = Pilot::new_uid();
    if (bytes >= least) (void)pilot.allocating(block->uid, bytes);
    auto lock = engine_.lock();
    auto& added = static_cast<SimBlock&>(engine_.add(lock, std::move(block)));
    const Use use{&added, true};
    engine_.pin(lock, {&use, 1});
    if (bytes >= least) pilot.touch(lock, {&use, 1});
    uses_.push_back(use);
    return added;
  }

  /// What an operator makes for itself: all at once, the last of them to go first.
  void pass(const std::vector<Bytes>& sizes) {
    std::vector<SimBlock*> made;
    for (const Bytes bytes : sizes) made.push_back(&make(value_++, bytes));
    for (SimBlock* block : made | std::views::reverse) drop(*block);
  }

  void end(double ms = 1) {
    sim_.advance(ms);
    {
      auto lock = engine_.lock();
      engine_.unpin(lock, uses_);
      uses_.clear();
      engine_.operator_ended(lock);
    }
    pilot.end_operator();
  }

  void drop(SimBlock& block) {
    pilot.released(block.uid);
    auto lock = engine_.lock();
    if (!uses_.empty()) {
      engine_.unpin(lock, uses_);
      uses_.clear();
    }
    engine_.remove(lock, block);
  }

  SimDevice sim_;
  Engine engine_;

 public:
  PlainDevice device;
  Pilot pilot;
  bool fails_at_first = false;  ///< every operator is tried twice
  bool masked = false;          ///< all layers but the first make one for each four bytes
  Bytes least = 0;              ///< of smaller blocks the pilot does not hear
  int parts = 1;                ///< operators of a layer, forward and back
  bool alike = false;           ///< those of all layers look the same
  OperatorKey adds = 0;  ///< one more operator of each layer, on its weights, backwards; 0: none
  Bytes activation = kBytes;       ///< the size of what steps make
  std::function<Bytes(int)> each;  ///< or that of each layer's, if it is there
  /// What an operator of the forward pass takes beside its result, by the result's size.
  std::function<std::vector<Bytes>(Bytes)> temporaries;

 protected:
  std::vector<SimBlock*> weights_;
  std::vector<Held> kept_;
  std::optional<std::size_t> fed_;  ///< of kept_
  std::vector<Use> uses_;
  std::uint64_t value_ = 1;
};

}  // namespace lms::testing
