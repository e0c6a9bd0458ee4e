// Random sequences of everything an adapter may do, against a model that knows only what each
// block's bytes must be and how often it is pinned.

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "engine_fixture.h"

namespace lms::testing {
namespace {

struct Modelled {
  SimBlock* block = nullptr;
  std::uint64_t value = 0;
  int pins = 0;
  bool used = false;  ///< unpinned at least once
  bool kept = false;
};

enum class Call : std::uint8_t {
  kMake,
  kPin,
  kWrite,
  kUnpin,
  kRemove,
  kDieUnnoticed,
  kEvict,
  kMakeRoom,
  kReclaimOne,
  kKeep,
  kOperatorEnded,
  kReturnAll,
  kDropCopies,
  kCollectDead,
  kPause,
  kFailNext,
};

/// The common calls come often, so that blocks come and go rather than pile up pinned.
constexpr std::array kCalls = {
    Call::kMake,     Call::kMake,       Call::kMake,          Call::kPin,       Call::kPin,
    Call::kPin,      Call::kWrite,      Call::kWrite,         Call::kUnpin,     Call::kUnpin,
    Call::kUnpin,    Call::kUnpin,      Call::kUnpin,         Call::kUnpin,     Call::kUnpin,
    Call::kUnpin,    Call::kRemove,     Call::kDieUnnoticed,  Call::kEvict,     Call::kEvict,
    Call::kMakeRoom, Call::kReclaimOne, Call::kOperatorEnded, Call::kReturnAll, Call::kDropCopies,
    Call::kKeep,     Call::kPause,      Call::kCollectDead,   Call::kFailNext,
};

class Session {
 public:
  Session(Bytes limit, Bytes host, bool stress)
      : limit_(limit),
        world_(limit, {.host_bytes = host},
               stress ? std::make_unique<EvictEverythingPolicy>() : std::make_unique<LruPolicy>()) {
    auto lock = world_.engine.lock();
    world_.engine.set_options(lock, {.limit = limit, .verify = true});
  }

  void call(Call what, int first, int second) {
    try {
      dispatch(what, first, second);
    } catch (const OutOfMemory&) {
      ++failures_;
    } catch (const TierFull&) {
      ++failures_;
    }
    check();
  }

  void end() {
    for (Modelled& m : blocks_) {
      while (m.pins > 0) unpin(m);
      world_.remove(*m.block);
    }
    blocks_.clear();
    {
      auto lock = world_.engine.lock();
      world_.engine.collect_dead(lock);
      // Absent blocks that died unnoticed are found when they are wanted, or never.
      std::vector<Block*> left;
      world_.engine.for_each(lock, [&](Block& block) { left.push_back(&block); });
      for (Block* block : left) world_.engine.remove(lock, *block);
    }
    check();
    RC_ASSERT(world_.sim.device_used() == 0);
    RC_ASSERT(world_.sim.host_used() == 0);
  }

  [[nodiscard]] std::int64_t evictions() { return world_.stats().evictions; }
  [[nodiscard]] int failures() const { return failures_; }

 private:
  Modelled* pick(int number) {
    if (blocks_.empty()) return nullptr;
    return &blocks_[static_cast<std::size_t>(number) % blocks_.size()];
  }

  void pin(Modelled& m, Modelled& other, bool writes) {
    world_.pin({{m.block, writes}, {other.block, false}});
    ++m.pins;
    ++other.pins;
    RC_ASSERT(m.block->holds(m.value));
    RC_ASSERT(other.block->holds(other.value));
    if (writes) m.block->fill(m.value = ++last_value_);
  }

  void unpin(Modelled& m) {
    RC_ASSERT(m.block->holds(m.value));
    world_.unpin(*m.block);
    --m.pins;
    m.used = true;
  }

  void forget(Modelled& m) { blocks_.erase(blocks_.begin() + (&m - blocks_.data())); }

  void dispatch(Call what, int first, int second) {
    Modelled* m = pick(first);
    Modelled* other = pick(second);
    if (what == Call::kMake || m == nullptr) {
      SimBlock& block = world_.fresh(1 + first % 12, ++last_value_);
      blocks_.push_back({.block = &block, .value = last_value_});
      return;
    }
    auto& engine = world_.engine;
    const Bytes bytes = second % (limit_ + 2);
    switch (what) {
      case Call::kPin:
      case Call::kWrite:
        pin(*m, *other, what == Call::kWrite);
        break;
      case Call::kUnpin:
        while (m->pins > 0) unpin(*m);
        break;
      case Call::kRemove:
        if (m->pins > 0) break;
        world_.remove(*m->block);
        forget(*m);
        break;
      case Call::kDieUnnoticed:
        if (m->pins > 0) break;
        m->block->die();
        forget(*m);
        break;
      case Call::kEvict:
        evict(*m);
        break;
      case Call::kMakeRoom:
        make_room(bytes);
        break;
      case Call::kReclaimOne: {
        auto lock = engine.lock();
        const Bytes least = first % 6;
        const Bytes most = least + second % 6;
        const Bytes left = engine.reclaim_one(lock, least, most);
        RC_ASSERT(left == 0 || (left >= least && left <= most));
        break;
      }
      case Call::kKeep:
        if (m->pins == 0 || second % 4 != 0) break;
        world_.keep(*m->block);
        m->kept = true;
        break;
      case Call::kOperatorEnded:
        world_.operator_ended();
        break;
      case Call::kReturnAll:
        return_all();
        break;
      case Call::kDropCopies: {
        auto lock = engine.lock();
        engine.drop_copies(lock, bytes);
        break;
      }
      case Call::kCollectDead: {
        auto lock = engine.lock();
        engine.collect_dead(lock);
        break;
      }
      case Call::kPause: {
        auto lock = engine.lock();
        if (engine.paused(lock)) {
          engine.resume(lock);
        } else if (second % 4 == 0) {
          engine.pause(lock);
        }
        break;
      }
      default:
        world_.sim.fail_next(first % 2 == 0 ? Direction::kOut : Direction::kIn, 1 + second % 3);
    }
  }

  void evict(Modelled& m) {
    auto lock = world_.engine.lock();
    const bool may = m.used && m.pins == 0 && !m.kept && !world_.engine.paused(lock) &&
                     m.block->state == BlockState::kResident;
    RC_ASSERT(world_.engine.evict(lock, *m.block) == may);
  }

  void make_room(Bytes bytes) {
    auto lock = world_.engine.lock();
    const bool paused = world_.engine.paused(lock);
    const bool made = world_.engine.make_room(lock, bytes);
    const Bytes here = world_.engine.stats(lock).device.current;
    RC_ASSERT(made == (here + bytes <= limit_));
    if (!made && !paused) RC_ASSERT(here == world_.engine.immovable(lock));
  }

  void return_all() {
    auto lock = world_.engine.lock();
    const auto before = world_.engine.stats(lock).evictions;
    const Bytes absent = world_.engine.return_all(lock);
    RC_ASSERT(absent == world_.engine.stats(lock).below.current);
    RC_ASSERT(world_.engine.stats(lock).evictions == before);
  }

  void check() {
    check_consistent(world_);
    RC_ASSERT(!::testing::Test::HasFailure());
    RC_ASSERT(world_.sim.device_peak() <= limit_);
    auto lock = world_.engine.lock();
    for (const Modelled& m : blocks_) {
      RC_ASSERT(m.block->pins == m.pins);
      RC_ASSERT(m.block->kept == m.kept);
      RC_ASSERT(m.block->state != BlockState::kFresh || !m.used);
      const bool must_be_here = m.pins > 0 || m.kept || !m.used;
      if (must_be_here) RC_ASSERT(m.block->holds(m.value));
    }
  }

  Bytes limit_;
  World world_;
  std::vector<Modelled> blocks_;
  std::uint64_t last_value_ = 0;
  int failures_ = 0;
};

RC_GTEST_PROP(EngineProperty, BytesAreRightAndCountersAddUp, ()) {
  const Bytes limit = *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<Bytes>(12, 60));
  const Bytes host = *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<Bytes>(0, 120));
  const bool stress = *rc::gen::arbitrary<bool>();
  using Step = std::tuple<int, int, int>;
  const auto steps = *rc::gen::resize(
      rc::kNominalSize,
      rc::gen::container<std::vector<Step>>(
          120, rc::gen::tuple(rc::gen::inRange(0, static_cast<int>(kCalls.size())),
                              rc::gen::inRange(0, 1000), rc::gen::inRange(0, 1000))));
  Session session(limit, host, stress);
  for (const auto& [what, first, second] : steps) {
    session.call(kCalls.at(static_cast<std::size_t>(what)), first, second);
  }
  RC_CLASSIFY(session.evictions() > 0, "something left");
  RC_CLASSIFY(session.failures() > 0, "something failed");
  session.end();
}

}  // namespace
}  // namespace lms::testing
