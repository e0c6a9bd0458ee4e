#include "sim/programs.h"

#include <algorithm>
#include <deque>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace lms {
namespace {

using Ids = std::vector<TraceBlockId>;

class Random {
 public:
  explicit Random(std::uint64_t seed) : random_(seed) {}
  /// In [0, below).
  int upto(int below) {
    return static_cast<int>(random_() % static_cast<std::uint64_t>(std::max(below, 1)));
  }
  bool chance(double p) { return upto(1000000) < static_cast<int>(p * 1000000); }

 private:
  std::mt19937_64 random_;
};

/// One step after the other, of a step that was recorded.
class Repeater {
 public:
  Repeater(const Trace& step, const Edits& edits, std::uint64_t seed)
      : step_(step), edits_(edits), random_(seed), now_(step.blocks.size()) {
    for (std::size_t id = 0; id < now_.size(); ++id) {
      if (!step.blocks[id].born_in_step) now_[id] = builder_.existing(step.blocks[id].bytes);
    }
  }

  Trace run(int steps) {
    for (int i = 0; i < steps; ++i) run_step();
    return builder_.build();
  }

 private:
  void run_step() {
    const double factor = edits_.lengths ? (1 + random_.upto(8)) / 8.0 : 1;
    std::vector<bool> alive(now_.size());
    for (std::size_t id = 0; id < now_.size(); ++id) alive[id] = !step_.blocks[id].born_in_step;
    const Ids before = now_;
    for (const TraceOperator& op : step_.operators) {
      run_operator(op, factor, alive);
      if (edits_.bursts > 0 && random_.chance(edits_.bursts)) burst();
    }
    for (std::size_t id = 0; id < now_.size(); ++id) {
      const auto from = step_.blocks[id].carried_from;
      if (from == kNoBlock) continue;
      now_[id] = now_[static_cast<std::size_t>(from)];
    }
  }

  [[nodiscard]] Ids of(const Ids& ids) const {
    Ids result;
    for (const TraceBlockId id : ids) result.push_back(now_[id]);
    return result;
  }

  void run_operator(const TraceOperator& op, double factor, std::vector<bool>& alive) {
    const auto scaled = [&](Bytes bytes) {
      return std::max<Bytes>(512, static_cast<Bytes>(static_cast<double>(bytes) * factor));
    };
    builder_.run(op.name, of(op.reads), of(op.writes), op.ms * factor, scaled(op.workspace));
    for (const TraceBlockId id : op.allocs) {
      now_[id] = builder_.result(scaled(step_.blocks[id].bytes));
      alive[id] = true;
    }
    for (const TraceBlockId id : op.frees) {
      builder_.dies(now_[id]);
      alive[id] = false;
    }
  }

  void burst() {
    const int count = 1 + random_.upto(edits_.most_in_burst);
    const int kind = random_.upto(4);
    Ids made;
    for (int i = 0; i < count; ++i) {
      builder_.run("burst " + std::to_string(random_.upto(3) + 3 * kind), made, {}, 0.005);
      for (const TraceBlockId id : std::exchange(made, {})) builder_.dies(id);
      made = {builder_.result(kMiB * (1 + random_.upto(4)))};
    }
    builder_.run("end of burst", made, {}, 0.005);
    for (const TraceBlockId id : made) builder_.dies(id);
  }

  const Trace& step_;
  const Edits edits_;
  Random random_;
  TraceBuilder builder_;
  Ids now_;
};

/// A stack of layers, and what trains it.
class Model {
 public:
  Model(TraceBuilder& builder, const Layers& size, int experts = 1)
      : builder_(builder), size_(size) {
    for (int i = 0; i < size.layers; ++i) {
      Ids of_layer;
      for (int k = 0; k < experts; ++k) of_layer.push_back(builder.existing(size.weight / experts));
      weights.push_back(of_layer);
      moments.push_back(builder.existing(2 * size.weight));
      gradients.push_back(builder.existing(size.weight));
    }
  }

  /// Operators take about as long as on a fast GPU: by their bytes.
  [[nodiscard]] static double time(Bytes bytes) { return 0.01 + static_cast<double>(bytes) / 1e8; }

  struct Saved {
    int layer;
    Ids activations;
    Ids experts;
  };

  void forward(int layer, const Ids& used, std::vector<Saved>& saved, bool trains) {
    Saved mine = {layer, {}, used};
    for (int k = 0; k < size_.saved; ++k) {
      Ids reads = {x_};
      if (k % 2 == 0) reads.insert(reads.end(), used.begin(), used.end());
      builder_.run(k % 2 == 0 ? "matmul" : "act", reads, {},
                   time(size_.activation) * (k % 2 == 0 ? 4 : 1));
      const TraceBlockId out = builder_.result(size_.activation);
      if (!trains) builder_.dies(x_);
      if (trains) mine.activations.push_back(x_);
      x_ = out;
    }
    saved.push_back(std::move(mine));
  }

  void backward(Saved saved) {
    while (!saved.activations.empty()) {
      const TraceBlockId input = saved.activations.back();
      saved.activations.pop_back();
      const bool product = saved.activations.size() % 2 == 0;
      Ids reads = {x_, input};
      if (product) reads.insert(reads.end(), saved.experts.begin(), saved.experts.end());
      builder_.run(product ? "matmul backward" : "act backward", reads, {},
                   time(size_.activation) * (product ? 4 : 1));
      const TraceBlockId out = builder_.result(size_.activation);
      builder_.dies(x_);
      builder_.dies(input);
      x_ = out;
      if (!product) continue;
      const auto gradient = gradients[static_cast<std::size_t>(saved.layer)];
      builder_.run("accumulate", {x_, gradient}, {gradient}, time(size_.weight));
    }
  }

  void start() {
    builder_.run("input", {}, {}, 0.05);
    x_ = builder_.result(size_.activation);
  }
  void finish() {
    builder_.run("end", {x_}, {}, 0.02);
    builder_.dies(x_);
  }

  void optimizer() {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      Ids all = weights[i];
      all.push_back(moments[i]);
      Ids reads = all;
      reads.push_back(gradients[i]);
      builder_.run("adam", reads, all, time(3 * size_.weight));
    }
  }

  std::vector<Ids> weights;
  Ids moments;
  Ids gradients;

 private:
  TraceBuilder& builder_;
  const Layers size_;
  TraceBlockId x_ = 0;
};

void train(Model& model, const std::vector<std::pair<int, Ids>>& layers) {
  std::vector<Model::Saved> saved;
  model.start();
  for (const auto& [layer, used] : layers) model.forward(layer, used, saved, true);
  while (!saved.empty()) {
    model.backward(std::move(saved.back()));
    saved.pop_back();
  }
  model.finish();
}

std::vector<std::pair<int, Ids>> all_of(const Model& model) {
  std::vector<std::pair<int, Ids>> layers;
  for (std::size_t i = 0; i < model.weights.size(); ++i) {
    layers.emplace_back(static_cast<int>(i), model.weights[i]);
  }
  return layers;
}

}  // namespace

Trace repeated_with(const Trace& step, int steps, const Edits& edits, std::uint64_t seed) {
  return Repeater(step, edits, seed).run(steps);
}

Trace random_depth(const Layers& size, int steps, double kept, std::uint64_t seed) {
  TraceBuilder builder;
  Random random(seed);
  Model model(builder, size);
  for (int i = 0; i < steps; ++i) {
    auto layers = all_of(model);
    std::erase_if(layers, [&](const auto&) { return !random.chance(kept); });
    train(model, layers);
    model.optimizer();
  }
  return builder.build();
}

Trace experts(const Layers& size, int steps, int of, std::uint64_t seed) {
  TraceBuilder builder;
  Random random(seed);
  Model model(builder, size, of);
  for (int i = 0; i < steps; ++i) {
    auto layers = all_of(model);
    for (auto& [layer, used] : layers) {
      while (used.size() > 2) {
        used.erase(used.begin() + random.upto(static_cast<int>(used.size())));
      }
    }
    train(model, layers);
    model.optimizer();
  }
  return builder.build();
}

Trace sample_and_train(const Layers& size, int steps, std::uint64_t seed) {
  TraceBuilder builder;
  Random random(seed);
  Model model(builder, size);
  for (int i = 0; i < steps; ++i) {
    const int tokens = 4 + random.upto(12);
    std::deque<TraceBlockId> cache;
    for (int t = 0; t < tokens; ++t) {
      builder.run("token", {}, {}, 0.02);
      TraceBlockId x = builder.result(kMiB);
      for (std::size_t layer = 0; layer < model.weights.size(); ++layer) {
        Ids reads = model.weights[layer];
        reads.push_back(x);
        if (t > 0) reads.push_back(cache.front());
        builder.run("decode", reads, {}, 0.05 + Model::time(size.weight));
        const TraceBlockId out = builder.result(kMiB);
        cache.push_back(builder.result(kMiB * (t + 1)));
        builder.dies(std::exchange(x, out));
        if (t == 0) continue;
        builder.dies(cache.front());
        cache.pop_front();
      }
      builder.run("sample", {x}, {}, 0.02);
      builder.dies(x);
    }
    builder.run("drop cache", {}, {}, 0.01);
    for (const TraceBlockId id : cache) builder.dies(id);
    train(model, all_of(model));
    model.optimizer();
  }
  return builder.build();
}

Trace phases(const Layers& size, int steps, int kinds, std::uint64_t seed) {
  TraceBuilder builder;
  Random random(seed);
  std::vector<Model> models;
  for (int k = 0; k < kinds; ++k) {
    Layers one = size;
    one.layers = std::max(1, size.layers / kinds);
    one.activation = size.activation * (k + 2) / 2;
    models.emplace_back(builder, one);
  }
  for (int i = 0; i < steps; ++i) {
    Model& model = models[static_cast<std::size_t>(random.upto(kinds))];
    train(model, all_of(model));
    model.optimizer();
  }
  return builder.build();
}

Trace line_search(const Layers& size, int steps, std::uint64_t seed) {
  TraceBuilder builder;
  Random random(seed);
  Model model(builder, size);
  const Bytes all = size.weight * size.layers;
  std::deque<TraceBlockId> history;
  const TraceBlockId direction = builder.existing(all);
  for (int i = 0; i < steps; ++i) {
    const int evaluations = 1 + random.upto(4);
    for (int k = 0; k < evaluations; ++k) {
      for (const Ids& of_layer : model.weights) {
        Ids reads = of_layer;
        reads.push_back(direction);
        builder.run("add direction", reads, of_layer, Model::time(size.weight));
      }
      train(model, all_of(model));
    }
    builder.run("difference", model.gradients, {}, Model::time(all));
    history.push_back(builder.result(all));
    if (history.size() > 6) {
      builder.dies(history.front());
      history.pop_front();
    }
    for (auto one = history.rbegin(); one != history.rend(); ++one) {
      builder.run("dot", {*one, direction}, {}, Model::time(2 * all));
      builder.run("add", {*one, direction}, {direction}, Model::time(2 * all));
    }
    for (const TraceBlockId one : history) {
      builder.run("dot", {one, direction}, {}, Model::time(2 * all));
      builder.run("add", {one, direction}, {direction}, Model::time(2 * all));
    }
  }
  return builder.build();
}

}  // namespace lms
