#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "trace/trace.h"

namespace lms::testing {

/// A training step of a 3-D U-Net as a trace, made up: 192^3 voxels, four levels of 32 to 256
/// channels, two convolutions (each with normalisation and a rectifier in place) a level and
/// direction, bf16, 192 ms in all. Few and large blocks: the largest is an
/// eighth of the peak.
class Unet {
 public:
  static Trace trace() { return Unet().make(); }

 private:
  static constexpr int kLevels = 4;
  static constexpr double kBytesPerMs = 4e9;
  struct Convolution {
    TraceBlockId in, weight, out, normed;
    int level, from, to;
  };

  static Bytes bytes(int level, int channels) {
    const Bytes side = 192 >> level;
    return side * side * side * channels * 2;
  }
  static int channels(int level) { return 32 << level; }
  static double touch(Bytes amount) { return static_cast<double>(amount) / kBytesPerMs; }
  static double work(const Convolution& c) {
    return static_cast<double>(bytes(c.level, c.from)) * c.to * 1.6e-9;
  }

  TraceBlockId run(const char* name, std::vector<TraceBlockId> reads, double ms, Bytes result,
                   Bytes workspace = 0) {
    builder_.run(name, std::move(reads), {}, ms, workspace);
    return builder_.result(result);
  }

  TraceBlockId convolve(TraceBlockId in, int level, int from, int to) {
    Convolution c{in, weights_.at(next_weight_++), 0, 0, level, from, to};
    const Bytes size = bytes(level, to);
    c.out = run("conv", {in, c.weight}, work(c), size, 128 * kMiB);
    c.normed = run("norm", {c.out}, touch(3 * size), size);
    builder_.run("relu_", {}, {c.normed}, touch(2 * size));
    done_.push_back(c);
    return c.normed;
  }

  /// Gives the gradient of the convolution's input, and ends what nobody needs any more.
  TraceBlockId back(const Convolution& c, TraceBlockId gradient, bool ends_input) {
    const Bytes size = bytes(c.level, c.to);
    const auto relu = run("relu_backward", {c.normed, gradient}, touch(3 * size), size);
    builder_.dies(gradient);
    builder_.dies(c.normed);
    const auto norm = run("norm_backward", {c.out, relu}, touch(4 * size), size);
    builder_.dies(relu);
    builder_.dies(c.out);
    const auto in = run("conv_backward", {c.in, c.weight, norm}, 2 * work(c),
                        bytes(c.level, c.from), 64 * kMiB);
    builder_.dies(norm);
    gradients_.push_back(builder_.result(weight_bytes(c.from, c.to)));
    if (ends_input) builder_.dies(c.in);
    return in;
  }

  static Bytes weight_bytes(int from, int to) { return Bytes{27} * from * to * 4; }

  Trace make() {
    const auto input = builder_.existing(bytes(0, 4));
    int from = 4;
    std::vector<std::array<int, 2>> shapes;
    for (int level = 0; level < kLevels; ++level) {
      shapes.push_back({from, channels(level)});
      shapes.push_back({channels(level), channels(level)});
      from = channels(level);
    }
    for (int level = kLevels - 2; level >= 0; --level) {
      shapes.push_back({2 * channels(level), channels(level)});
      shapes.push_back({channels(level), channels(level)});
    }
    for (const auto& shape : shapes) {
      weights_.push_back(builder_.existing(weight_bytes(shape[0], shape[1])));
    }

    TraceBlockId x = input;
    for (int level = 0; level < kLevels; ++level) {
      if (level > 0) {
        x = run("pool", {x}, touch(bytes(level - 1, channels(level - 1))),
                bytes(level, channels(level - 1)));
      }
      x = convolve(x, level, level > 0 ? channels(level - 1) : 4, channels(level));
      x = convolve(x, level, channels(level), channels(level));
      if (level < kLevels - 1) skips_.push_back(x);
    }
    for (int level = kLevels - 2; level >= 0; --level) {
      const int width = channels(level);
      const auto up =
          run("upsample_conv", {x}, touch(8 * bytes(level, width)), bytes(level, width));
      const auto skip = skips_.at(static_cast<std::size_t>(level));
      x = run("cat", {up, skip}, touch(4 * bytes(level, width)), bytes(level, 2 * width));
      builder_.dies(up);
      x = convolve(x, level, 2 * width, width);
      x = convolve(x, level, width, width);
    }
    backward(run("loss_backward", {x}, touch(bytes(0, 32)), bytes(0, 32)));
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      const auto gradient = gradients_.at(gradients_.size() - 1 - i);
      builder_.run("sgd", {gradient}, {weights_[i]}, 0.01);
      builder_.dies(gradient);
    }
    Trace trace = builder_.build();
    double sum = 0;
    for (const TraceOperator& op : trace.operators) sum += op.ms;
    for (TraceOperator& op : trace.operators) op.ms *= 192 / sum;
    return trace;
  }

  void backward(TraceBlockId gradient) {
    std::array<TraceBlockId, kLevels> skip_gradients{};
    for (int level = 0; level < kLevels - 1; ++level) {
      const int width = channels(level);
      gradient = back(pop(), gradient, false);
      const auto cat = back(pop(), gradient, true);
      const auto up =
          run("cat_backward", {cat}, touch(4 * bytes(level, width)), bytes(level, width));
      skip_gradients.at(static_cast<std::size_t>(level)) = builder_.result(bytes(level, width));
      builder_.dies(cat);
      gradient = run("upsample_conv_backward", {done_.back().normed, up},
                     touch(16 * bytes(level, width)), bytes(level + 1, 2 * width), 64 * kMiB);
      builder_.dies(up);
    }
    for (int level = kLevels - 1; level >= 0; --level) {
      if (level < kLevels - 1) {
        const auto pooled = gradient;
        const auto skip = skips_.at(static_cast<std::size_t>(level));
        const auto extra = skip_gradients.at(static_cast<std::size_t>(level));
        gradient = run("pool_backward", {skip, pooled}, touch(2 * bytes(level, channels(level))),
                       bytes(level, channels(level)));
        builder_.dies(pooled);
        builder_.run("add_", {extra}, {gradient}, touch(3 * bytes(level, channels(level))));
        builder_.dies(extra);
      }
      gradient = back(pop(), gradient, false);
      gradient = back(pop(), gradient, level > 0);
    }
    builder_.dies(gradient);
  }

  Convolution pop() {
    const Convolution last = done_.back();
    done_.pop_back();
    return last;
  }

  TraceBuilder builder_;
  std::vector<TraceBlockId> weights_;
  std::vector<TraceBlockId> gradients_;
  std::vector<TraceBlockId> skips_;
  std::vector<Convolution> done_;
  std::size_t next_weight_ = 0;
};

}  // namespace lms::testing
