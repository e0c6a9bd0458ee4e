#include "sim/replay.h"

#include <utility>

namespace lms {
namespace {

class Replay {
 public:
  Replay(const Trace& trace, Engine& engine, SimDevice& device)
      : trace_(trace), engine_(engine), device_(device), slots_(trace.blocks.size()) {}
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;
  ~Replay() {
    auto lock = engine_.lock();
    for (Slot& slot : slots_) {
      if (slot.block != nullptr) engine_.remove(lock, *slot.block);
    }
  }

  SimResult run() {
    prepare();
    const EngineStats before = stats();
    const double began_ms = device_.now_ms();
    const double began_stalled_ms = device_.stalled_ms();
    {
      auto lock = engine_.lock();
      engine_.reset_peak(lock);
    }
    SimResult result;
    for (const TraceOperator& op : trace_.operators) {
      const double stalled_ms = device_.stalled_ms();
      operate(op);
      if (device_.stalled_ms() > stalled_ms) ++result.stalls;
    }
    const EngineStats after = stats();
    result.ms = device_.now_ms() - began_ms;
    result.stalled_ms = device_.stalled_ms() - began_stalled_ms;
    result.bytes_out = after.bytes_out - before.bytes_out;
    result.bytes_in = after.bytes_in - before.bytes_in;
    result.peak = after.device.peak;
    return result;
  }

 private:
  struct Slot {
    SimBlock* block = nullptr;
    std::uint64_t version = 0;
  };

  EngineStats stats() {
    auto lock = engine_.lock();
    return engine_.stats(lock);
  }

  [[nodiscard]] std::uint64_t value(TraceBlockId id) const {
    return (static_cast<std::uint64_t>(id) << 32U) + slots_[id].version;
  }

  void reserve(Bytes bytes, const std::string& who) {
    auto lock = engine_.lock();
    if (engine_.reserve(lock, bytes)) return;
    const EngineStats now = engine_.stats(lock);
    throw OutOfMemory(who + " needs " + format_bytes(bytes) + " beside the " +
                      format_bytes(now.device.current) + " that cannot leave; the limit is " +
                      format_bytes(engine_.options(lock).limit) + ", at least " +
                      format_bytes(now.device.current + bytes) + " would work");
  }

  void unreserve(Bytes bytes) {
    auto lock = engine_.lock();
    engine_.unreserve(lock, bytes);
  }

  void make(TraceBlockId id, const std::string& who) {
    const Bytes bytes = trace_.blocks[id].bytes;
    reserve(bytes, who);
    std::unique_ptr<SimBlock> block;
    try {
      block = device_.make_block(bytes);
    } catch (...) {
      unreserve(bytes);
      throw;
    }
    block->fill(value(id));
    auto lock = engine_.lock();
    slots_[id].block = block.get();
    engine_.add(lock, std::move(block));
  }

  void prepare() {
    for (TraceBlockId id = 0; id < slots_.size(); ++id) {
      if (trace_.blocks[id].born_in_step) continue;
      make(id, "a block from before the step");
      // Used before, hence free to leave.
      const Use use{slots_[id].block, false};
      auto lock = engine_.lock();
      engine_.pin(lock, {&use, 1});
      engine_.unpin(lock, {&use, 1});
    }
  }

  [[nodiscard]] std::vector<Use> uses(const TraceOperator& op) const {
    std::vector<Use> result;
    for (const TraceBlockId id : op.reads) result.push_back({slots_[id].block, false});
    for (const TraceBlockId id : op.writes) result.push_back({slots_[id].block, true});
    return result;
  }

  void compute(const TraceOperator& op) {
    reserve(op.workspace, op.name);
    try {
      for (const TraceBlockId id : op.allocs) make(id, op.name);
    } catch (...) {
      unreserve(op.workspace);
      throw;
    }
    for (const TraceBlockId id : op.reads) check(op, id);
    for (const TraceBlockId id : op.writes) {
      check(op, id);
      ++slots_[id].version;
      slots_[id].block->fill(value(id));
    }
    device_.advance(op.ms);
    unreserve(op.workspace);
  }

  void check(const TraceOperator& op, TraceBlockId id) const {
    if (slots_[id].block->holds(value(id))) return;
    throw Error(op.name + " found wrong bytes in block " + std::to_string(id));
  }

  void pin(const TraceOperator& op, const std::vector<Use>& pinned) {
    auto lock = engine_.lock();
    try {
      engine_.pin(lock, pinned);
    } catch (const OutOfMemory& error) {
      throw OutOfMemory(op.name + ": " + error.what());
    }
  }

  void operate(const TraceOperator& op) {
    const std::vector<Use> pinned = uses(op);
    pin(op, pinned);
    try {
      compute(op);
    } catch (...) {
      auto lock = engine_.lock();
      engine_.unpin(lock, pinned);
      throw;
    }
    auto lock = engine_.lock();
    engine_.unpin(lock, pinned);
    engine_.operator_ended(lock);
    for (const TraceBlockId id : op.frees) {
      engine_.remove(lock, *std::exchange(slots_[id].block, nullptr));
    }
  }

  const Trace& trace_;
  Engine& engine_;
  SimDevice& device_;
  std::vector<Slot> slots_;
};

}  // namespace

SimResult replay(const Trace& trace, Engine& engine, SimDevice& device) {
  const auto notes = trace.validate();
  if (!notes.empty()) throw Error("replay: the trace is inconsistent: " + notes.front());
  return Replay(trace, engine, device).run();
}

}  // namespace lms
