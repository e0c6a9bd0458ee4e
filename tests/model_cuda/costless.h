#pragma once

#include <cstddef>
#include <vector>

#include "model_cuda/schedule.h"

namespace model {

/// With MODEL_CUDA=costless in the environment nothing runs, whatever is launched or copied: what
/// remains is the host's work. (Copies of a few bytes are made: programs read numbers.)
bool costless() noexcept;

/// How far the streams of a costless run are, in ms, as its events tell it: each kernel takes as
/// long, each copy as long as its bytes.
class Times {
 public:
  static constexpr double kKernel = 0.02;
  static constexpr double kBytesInMs = 50e6;
  static constexpr std::size_t kFewBytes = 64;

  double& of(StreamId stream) {
    if (stream >= now_.size()) now_.resize(stream + 1);
    return now_[stream];
  }

 private:
  std::vector<double> now_;
};

}  // namespace model
