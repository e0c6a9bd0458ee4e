#include "sim/stream.h"

#include <functional>
#include <vector>

#include "foresight/ahead.h"
#include "foresight/duel.h"
#include "foresight/forecast.h"

namespace lms {
namespace {

OperatorKey key_of(const std::string& name) { return std::hash<std::string>()(name); }

class Stream {
 public:
  Stream(const Trace& trace, Bytes limit, LaneDevice::Options link, Reactive how)
      : trace_(trace),
        limit_(limit),
        how_(how),
        device_(link),
        foresight_(std::make_shared<Foresight>()),
        engine_({.limit = limit}, device_, policy()),
        ahead_(engine_),
        blocks_(trace.blocks.size()) {
    if (how == Reactive::kClairvoyant) find_uses();
    for (std::size_t id = 0; id < blocks_.size(); ++id) {
      if (!trace.blocks[id].born_in_step) make(static_cast<TraceBlockId>(id));
    }
  }
  ~Stream() {
    auto lock = engine_.lock();
    for (Block* block : blocks_) {
      if (block != nullptr) engine_.remove(lock, *block);
    }
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  StreamResult run(std::size_t from) {
    StreamResult result;
    EngineStats before;
    double began = 0;
    for (at_ = 0; at_ < trace_.operators.size(); ++at_) {
      if (at_ == from) {
        auto lock = engine_.lock();
        before = engine_.stats(lock);
        began = device_.now_ms();
      }
      operate(trace_.operators[at_]);
      if (at_ >= from) result.computed_ms += trace_.operators[at_].ms;
    }
    auto lock = engine_.lock();
    const EngineStats after = engine_.stats(lock);
    result.ms = device_.now_ms() - began;
    result.bytes_out = after.bytes_out - before.bytes_out;
    result.bytes_in = after.bytes_in - before.bytes_in;
    result.peak = after.device.peak;
    result.right = forecast_.right();
    return result;
  }

 private:
  std::unique_ptr<Policy> policy() {
    if (how_ == Reactive::kLru) return std::make_unique<LruPolicy>();
    return std::make_unique<ForesightPolicy>(foresight_);
  }

  /// The operators that use each block, and the one after which it dies.
  void find_uses() {
    uses_.resize(trace_.blocks.size());
    for (std::size_t i = 0; i < trace_.operators.size(); ++i) {
      const TraceOperator& op = trace_.operators[i];
      const auto add = [&](TraceBlockId id) {
        if (uses_[id].empty() || uses_[id].back() != i) uses_[id].push_back(i);
      };
      for (const auto* list : {&op.reads, &op.writes, &op.allocs}) {
        for (const TraceBlockId id : *list) add(id);
      }
    }
    death_.assign(trace_.blocks.size(), 0);
    for (std::size_t i = 0; i < trace_.operators.size(); ++i) {
      for (const TraceBlockId id : trace_.operators[i].frees) death_[id] = i;
    }
  }

  Forecast::Expected truth(TraceBlockId id) const {
    const auto next = std::ranges::upper_bound(uses_[id], at_);
    if (next != uses_[id].end()) return {.at = *next + 1};
    if (death_[id] > 0) return {.at = death_[id] + 1, .ends = true};
    return {.at = trace_.operators.size() + 1};
  }

  void make(TraceBlockId id) {
    const Bytes bytes = trace_.blocks[id].bytes;
    auto lock = engine_.lock();
    if (!engine_.reserve(lock, bytes)) throw OutOfMemory("no room");
    auto block = std::make_unique<LaneDevice::LaneBlock>(bytes);
    block->uid = id + 1;
    blocks_[id] = &engine_.add(lock, std::move(block));
    const Use use{blocks_[id], true};
    engine_.pin(lock, {&use, 1});
    engine_.unpin(lock, {&use, 1});
  }

  void look_ahead(const TraceOperator& op) {
    if (how_ == Reactive::kLru) return;
    if (how_ == Reactive::kClairvoyant) {
      foresight_->now = at_ + 1;
      foresight_->trusted = true;
      bring_clairvoyantly();
      return;
    }
    forecast_.begin_operator(key_of(op.name));
    duel_.ghost().begin_operator();
    foresight_->now = forecast_.now();
    const auto stats = [&] {
      auto lock = engine_.lock();
      return engine_.stats(lock);
    }();
    duel_.look({stats.bytes_in + stats.bytes_out, ahead_.copied()}, stats.device.peak, limit_);
    foresight_->trusted = forecast_.trusted() && duel_.follow();
    if (how_ == Reactive::kForesightOnly || !foresight_->trusted) return;
    wanted_.clear();
    ahead_.collect(forecast_, wanted_);
    act(forecast_.now());
  }

  void bring_clairvoyantly() {
    wanted_.clear();
    while (seen_ < trace_.operators.size() && seen_ < at_ + 256) {
      ++seen_;
      if (seen_ >= trace_.operators.size()) break;
      const TraceOperator& op = trace_.operators[seen_];
      for (const auto* list : {&op.reads, &op.writes}) {
        for (const TraceBlockId id : *list) wanted_.push_back({id + 1, seen_ + 1});
      }
    }
    act(at_ + 1);
  }

  void act(std::uint64_t now) {
    for (auto& one : wanted_) one.block = blocks_[one.uid - 1];
    auto lock = engine_.lock();
    ahead_.act(lock, now, wanted_, limit_, [&](EngineLock& held, Bytes bytes, const auto& spare) {
      return Ahead::make_room(held, engine_, bytes, spare);
    });
  }

  void touch(TraceBlockId id, Block& block, bool writes) {
    if (how_ == Reactive::kLru) return;
    duel_.ghost().touch(static_cast<BlockUid>(id) + 1, block.size, writes);
    const auto expected =
        how_ == Reactive::kClairvoyant ? truth(id) : forecast_.touch(static_cast<BlockUid>(id) + 1);
    block.expected_use = expected.at;
    block.expected_end = expected.ends;
  }

  void operate(const TraceOperator& op) {
    look_ahead(op);
    std::vector<Use> uses;
    for (const TraceBlockId id : op.reads) uses.push_back({blocks_[id], false});
    for (const TraceBlockId id : op.writes) uses.push_back({blocks_[id], true});
    {
      auto lock = engine_.lock();
      engine_.pin(lock, uses);
      for (const TraceBlockId id : op.reads) touch(id, *blocks_[id], false);
      for (const TraceBlockId id : op.writes) touch(id, *blocks_[id], true);
      for (const Use& use : uses) device_.use(*use.block);
      if (!engine_.reserve(lock, op.workspace)) throw OutOfMemory("no room");
    }
    for (const TraceBlockId id : op.allocs) {
      make(id);
      touch(id, *blocks_[id], true);
    }
    device_.advance(op.ms);
    auto lock = engine_.lock();
    engine_.unreserve(lock, op.workspace);
    engine_.unpin(lock, uses);
    engine_.operator_ended(lock);
    for (const TraceBlockId id : op.frees) {
      if (how_ != Reactive::kLru) {
        forecast_.released(static_cast<BlockUid>(id) + 1);
        duel_.ghost().released(static_cast<BlockUid>(id) + 1);
      }
      engine_.remove(lock, *std::exchange(blocks_[id], nullptr));
    }
  }

  const Trace& trace_;
  const Bytes limit_;
  const Reactive how_;
  LaneDevice device_;
  std::shared_ptr<Foresight> foresight_;
  Engine engine_;
  Forecast forecast_;
  Ahead ahead_;
  Duel duel_;
  std::vector<Block*> blocks_;
  std::vector<Ahead::Wanted> wanted_;
  std::vector<std::vector<std::size_t>> uses_;
  std::vector<std::size_t> death_;
  std::size_t seen_ = 0;
  std::size_t at_ = 0;
};

}  // namespace

StreamResult run_stream(const Trace& trace, Bytes limit, LaneDevice::Options link, Reactive how,
                        std::size_t from) {
  return Stream(trace, limit, link, how).run(from);
}

}  // namespace lms
