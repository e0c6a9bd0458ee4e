#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "steps/step_log.h"

namespace lms::testing {

/// Feeds a log and keeps its own account of what it has fed.
class Tape {
 public:
  struct Operator {
    OperatorKey key = 0;
    std::vector<std::pair<BlockUid, bool>> touches;
    std::vector<std::pair<BlockUid, bool>> before;  ///< since the last one: blocks allocated
    std::vector<std::pair<BlockUid, bool>> inside;  ///< block, allocated or not
    std::vector<std::pair<BlockUid, bool>> after;   ///< until the next one: blocks released
    Bytes live = 0;  ///< what was there when it began, its results, the most of its temporaries
  };

  explicit Tape(StepLog& log) : log_(&log) {}

  BlockUid make(Bytes bytes) {
    const BlockUid uid = ++last_uid_;
    bytes_[uid] = bytes;
    alive_.insert(uid);
    log_->alloc(uid, bytes);
    note(uid, true);
    return uid;
  }
  void drop(BlockUid uid) {
    alive_.erase(uid);
    log_->release(uid);
    note(uid, false);
  }
  /// A block that the log hears of when it is first used.
  BlockUid was_there(Bytes bytes) {
    const BlockUid uid = ++last_uid_;
    bytes_[uid] = bytes;
    alive_.insert(uid);
    return uid;
  }

  void begin(OperatorKey key) {
    log_->begin_operator(key, "op" + std::to_string(key), key % 2 == 0);
    running_ = true;
    ops_.push_back({key, {}, std::move(between_), {}, {}, 0});
    between_.clear();
    base_ = 0;
    for (const BlockUid uid : alive_) base_ += bytes_.at(uid);
    lives_.push_back(base_);
  }
  void use(BlockUid uid, bool writes = false) {
    log_->touch(uid, bytes_.at(uid), writes);
    ops_.back().touches.emplace_back(uid, writes);
  }
  void end() {
    log_->end_operator();
    log_->set_ms(ops_.size() - 1, static_cast<double>(ops_.back().key));
    running_ = false;
    allocations_ = 0;
    std::set<BlockUid> temporaries;
    Bytes held = 0;
    Bytes most = 0;
    Bytes results = 0;
    for (const auto& [uid, made] : ops_.back().inside) {
      if (made && !alive_.contains(uid)) most = std::max(most, held += bytes_.at(uid));
      if (made && !alive_.contains(uid)) temporaries.insert(uid);
      if (made && alive_.contains(uid)) results += bytes_.at(uid);
      if (!made && temporaries.contains(uid)) held -= bytes_.at(uid);
    }
    ops_.back().live = base_ + results + most;
    if (!polls) return;
    const auto step = log_->repeated_step();
    if (step && (reports.empty() || reports.back().begin != step->begin ||
                 reports.back().end != step->end)) {
      reports.push_back(*step);
      reported_at.push_back(ops_.size());
    }
  }
  /// An operator that uses, makes and releases (before it ends) what it is told to.
  std::vector<BlockUid> run(OperatorKey key, const std::vector<BlockUid>& reads,
                            const std::vector<BlockUid>& writes = {},
                            const std::vector<Bytes>& results = {},
                            const std::vector<Bytes>& temporaries = {}) {
    begin(key);
    for (const BlockUid uid : reads) use(uid);
    for (const BlockUid uid : writes) use(uid, true);
    std::vector<BlockUid> made;
    made.reserve(results.size());
    for (const Bytes bytes : results) made.push_back(make(bytes));
    std::vector<BlockUid> held;
    held.reserve(temporaries.size());
    for (const Bytes bytes : temporaries) held.push_back(make(bytes));
    for (const BlockUid uid : held) drop(uid);
    end();
    return made;
  }

  [[nodiscard]] std::size_t size() const { return ops_.size(); }
  [[nodiscard]] const std::vector<Operator>& operators() const { return ops_; }
  [[nodiscard]] StepLog& log() { return *log_; }

  /// What is wrong with saying that [begin, end) is the step before it over again. Knows nothing of
  /// how the log finds out.
  [[nodiscard]] std::string objection(StepLog::Span span) const {
    const std::uint64_t length = span.end - span.begin;
    if (length == 0 || span.end > ops_.size() || span.begin < length) return "no such operators";
    const std::size_t first = span.begin - length;
    std::map<BlockUid, BlockUid> later;
    std::map<BlockUid, BlockUid> earlier;
    std::set<BlockUid> born;
    std::set<BlockUid> written;
    std::set<BlockUid> released;
    for (std::size_t i = first; i < span.begin; ++i) {
      const Operator& a = ops_[i];
      const Operator& b = ops_[i + length];
      const std::string at = " at " + std::to_string(i);
      if (a.key != b.key) return "another key" + at;
      std::vector<std::pair<BlockUid, BlockUid>> pairs;
      const auto compare = [&](const auto& x, const auto& y) {
        if (x.size() != y.size()) return false;
        for (std::size_t k = 0; k < x.size(); ++k) {
          if (x[k].second != y[k].second) return false;
          pairs.emplace_back(x[k].first, y[k].first);
        }
        return true;
      };
      if (!compare(a.before, b.before)) return "other changes before" + at;
      if (!compare(a.touches, b.touches)) return "other uses" + at;
      if (!compare(a.inside, b.inside)) return "other changes" + at;
      if (!compare(a.after, b.after)) return "other releases after" + at;
      for (const auto* changes : {&a.before, &a.inside, &a.after}) {
        for (const auto& [uid, made] : *changes) (made ? born : released).insert(uid);
      }
      for (const auto& [uid, made] : b.after) released.insert(uid);
      for (const auto& [uid, writes] : a.touches) {
        if (writes) written.insert(uid);
      }
      for (const auto& [x, y] : pairs) {
        if (bytes_.at(x) != bytes_.at(y)) return "another size" + at;
        if (later.contains(x) && later.at(x) != y) return "two partners" + at;
        if (earlier.contains(y) && earlier.at(y) != x) return "two for one" + at;
        later[x] = y;
        earlier[y] = x;
      }
    }
    Bytes taken = variation_of(first, length);
    for (const auto& [x, y] : later) taken += born.contains(x) ? 0 : bytes_.at(x);
    Bytes turning_read = 0;
    Bytes turning_written = 0;
    for (const auto& [x, y] : later) {
      const bool old = was_before(x, first) && was_before(y, first);
      if (x != y && old && !(released.contains(x) && births_.contains(x))) {
        (written.contains(x) ? turning_written : turning_read) += bytes_.at(x);
        continue;
      }
      // Of two different ones, the later was born in the first run, or both were, each in its own.
      if (x != y && !born.contains(x) && !born.contains(y)) {
        return "other weights: " + std::to_string(x) + ", " + std::to_string(y);
      }
      if (x == y) continue;
      const auto [from, from_place] = births_.at(x);
      const auto [to, to_place] = births_.at(y);
      if (from + length != to || from_place != to_place) {
        return "born elsewhere: " + std::to_string(x) + ", " + std::to_string(y);
      }
    }
    // Little may be another block each time.
    if (2 * turning_read > taken) return "reads other blocks";
    if (8 * turning_written > taken) return "writes other blocks";
    return "";
  }

  bool polls = true;
  std::vector<StepLog::Span> reports;      ///< without repetitions
  std::vector<std::uint64_t> reported_at;  ///< how many operators had ended

 private:
  [[nodiscard]] bool was_before(BlockUid uid, std::size_t first) const {
    const auto birth = births_.find(uid);
    return birth == births_.end() || birth->second.first < first;
  }
  /// How far the bytes that are alive between operators rise above the least of them.
  [[nodiscard]] Bytes variation_of(std::size_t first, std::size_t length) const {
    const auto [least, most] =
        std::minmax_element(lives_.begin() + static_cast<std::ptrdiff_t>(first + length),
                            lives_.begin() + static_cast<std::ptrdiff_t>(first + 2 * length));
    return *most - *least;
  }
  void note(BlockUid uid, bool made) {
    if (made && !ops_.empty()) {
      births_[uid] = {running_ ? ops_.size() - 1 : ops_.size(), allocations_++};
    }
    if (running_) {
      ops_.back().inside.emplace_back(uid, made);
    } else if (ops_.empty()) {
      return;  // belongs to no operator
    } else if (made) {
      between_.emplace_back(uid, made);
    } else {
      ops_.back().after.emplace_back(uid, made);
    }
  }

  StepLog* log_;
  std::vector<Operator> ops_;
  std::vector<std::pair<BlockUid, bool>> between_;
  std::map<BlockUid, Bytes> bytes_;
  /// The operator that its allocation belongs to, and which of that operator's it is.
  std::map<BlockUid, std::pair<std::size_t, std::size_t>> births_;
  std::size_t allocations_ = 0;
  std::set<BlockUid> alive_;
  std::vector<Bytes> lives_;  ///< bytes alive when each operator began
  BlockUid last_uid_ = 100;
  Bytes base_ = 0;
  bool running_ = false;
};

struct ModelOptions {
  int layers = 5;
  bool alike = false;           ///< all layers of one size
  bool shared = false;          ///< one weight for all layers
  int micro_steps = 1;          ///< whose gradients accumulate
  bool keep_gradients = false;  ///< zeroed, not released
  bool late_release = false;    ///< gradients are released only after the next step has begun
  bool prefetch = false;        ///< the next step's batch is fetched in this one
  bool scratch = false;         ///< memory is taken and given back between two operators
  bool keep_losses = false;     ///< for ever
};

/// A training loop: operators as eager frameworks run them.
class Model {
 public:
  using Options = ModelOptions;

  Model(Tape& tape, Options options) : tape_(&tape), options_(options) {
    for (int i = 0; i < (options.shared ? 1 : options.layers); ++i) {
      weights_.push_back(tape.was_there(weight_bytes(i)));
    }
    gradients_.assign(weights_.size(), 0);
    moments_.assign(weights_.size(), 0);
  }

  /// One step on a batch of `rows`. Returns where it began.
  std::uint64_t step(Bytes rows = 8) {
    const std::uint64_t begin = tape_->size();
    for (int i = 0; i < options_.micro_steps; ++i) micro_step(rows);
    if (options_.scratch) tape_->drop(tape_->make(17));
    update();
    if (!options_.late_release && !options_.keep_gradients) release_gradients();
    return begin;
  }

  void validate(Bytes rows = 8) {
    std::uint64_t x = tape_->run(1, {}, {}, {rows * 10})[0];
    for (int i = 0; i < options_.layers; ++i) {
      const BlockUid y = tape_->run(2, {x, weight(i)}, {}, {out_bytes(i, rows)}, {rows})[0];
      tape_->drop(x);
      x = y;
    }
    const BlockUid loss = tape_->run(9, {x}, {}, {4})[0];
    tape_->drop(x);
    tape_->drop(loss);
  }

 private:
  [[nodiscard]] Bytes weight_bytes(int i) const { return options_.alike ? 40 : 40 + i; }
  [[nodiscard]] Bytes out_bytes(int i, Bytes rows) const {
    return rows * (options_.alike || options_.shared ? 10 : 10 + i);
  }
  [[nodiscard]] std::size_t index(int i) const {
    return options_.shared ? 0 : static_cast<std::size_t>(i);
  }
  [[nodiscard]] BlockUid weight(int i) const { return weights_[index(i)]; }

  void micro_step(Bytes rows) {
    BlockUid x = 0;
    if (options_.prefetch) {
      if (batch_ == 0) batch_ = tape_->run(1, {}, {}, {rows * 10})[0];
      x = std::exchange(batch_, 0);
    } else {
      x = tape_->run(1, {}, {}, {rows * 10})[0];
    }
    if (options_.late_release) release_gradients();
    std::vector<BlockUid> acts{x};
    for (int i = 0; i < options_.layers; ++i) {
      // matmul and an activation in place
      acts.push_back(
          tape_->run(2, {acts.back(), weight(i)}, {}, {out_bytes(i, rows)}, {rows, 2 * rows})[0]);
      tape_->run(3, {}, {acts.back()});
    }
    if (options_.prefetch) batch_ = tape_->run(1, {}, {}, {rows * 10})[0];
    const BlockUid loss = tape_->run(4, {acts.back()}, {}, {4})[0];
    BlockUid flow =
        tape_->run(5, {loss, acts.back()}, {}, {out_bytes(options_.layers - 1, rows)})[0];
    for (int i = options_.layers - 1; i >= 0; --i) {
      const auto at = static_cast<std::size_t>(i);
      const BlockUid gradient = tape_->run(6, {flow, acts[at]}, {},
                                           {weight_bytes(static_cast<int>(index(i)))}, {rows})[0];
      if (gradients_[index(i)] == 0) {
        gradients_[index(i)] = gradient;
      } else {
        tape_->run(7, {gradient}, {gradients_[index(i)]});
        tape_->drop(gradient);
      }
      const Bytes bytes = i > 0 ? out_bytes(i - 1, rows) : rows * 10;
      const BlockUid next = tape_->run(8, {flow, weight(i), acts[at + 1]}, {}, {bytes})[0];
      tape_->drop(flow);
      tape_->drop(acts[at + 1]);
      flow = next;
    }
    tape_->drop(flow);
    tape_->drop(x);
    if (!options_.keep_losses) tape_->drop(loss);
  }

  void update() {
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      if (moments_[i] == 0) {
        moments_[i] = tape_->run(10, {}, {}, {weight_bytes(static_cast<int>(i))})[0];
      }
      tape_->run(11, {gradients_[i]}, {moments_[i]}, {}, {7});
      tape_->run(12, {moments_[i]}, {weights_[i]});
    }
    if (options_.keep_gradients) {
      for (const BlockUid gradient : gradients_) tape_->run(13, {}, {gradient});
    }
  }

  void release_gradients() {
    for (BlockUid& gradient : gradients_) {
      if (gradient != 0) tape_->drop(gradient);
      gradient = 0;
    }
  }

  Tape* tape_;
  Options options_;
  std::vector<BlockUid> weights_;
  std::vector<BlockUid> gradients_;
  std::vector<BlockUid> moments_;
  BlockUid batch_ = 0;
};

}  // namespace lms::testing
