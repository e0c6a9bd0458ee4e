#pragma once

#include <cstdint>
#include <functional>

#include "trace/trace.h"

namespace lms {

/// Streams of many steps that do not repeat, as one trace. Random, by the seed alone.

/// What a step has of its own, drawn for each one.
struct Edits {
  bool lengths = false;  ///< what is born in it is of one of eight sizes, and takes as long
  double bursts = 0;     ///< of operators: after so many comes a burst of others, on small tensors
  int most_in_burst = 32;  ///< operators of a burst
};
/// The step `steps` times over, each with other edits.
Trace repeated_with(const Trace& step, int steps, const Edits& edits, std::uint64_t seed);

/// Training loops over a stack of layers. Sizes are in bytes, as if of one layer of a transformer.
struct Layers {
  int layers = 12;
  Bytes weight = 12 << 20;
  Bytes activation = 8 << 20;
  int saved = 4;  ///< activations of a layer that its backward wants
};
/// Each layer is left out of a step at random.
Trace random_depth(const Layers& size, int steps, double kept, std::uint64_t seed);
/// Of a layer's weights, which are of experts, a step uses some at random, each on a part of the
/// activations.
Trace experts(const Layers& size, int steps, int of, std::uint64_t seed);
/// A random number of samples is drawn before each training step, token by token, with a cache that
/// grows.
Trace sample_and_train(const Layers& size, int steps, std::uint64_t seed);
/// Of steps of several models, or phases, each next one is drawn at random.
Trace phases(const Layers& size, int steps, int kinds, std::uint64_t seed);
/// Forward and backward several times for each change of the weights, and vectors as large as all
/// weights together, a history of which is gone through (L-BFGS).
Trace line_search(const Layers& size, int steps, std::uint64_t seed);

}  // namespace lms
