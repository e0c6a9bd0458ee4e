// What convolutions make, foreseen without Python's meta kernels.

#include <ATen/ops/randn.h>

#include <numeric>

#include "adapter/support.h"
#include "adapters/torch/operators/results.h"

namespace lms::torch {
namespace {

using testing::call;
using testing::find_operator;

using Sizes = std::vector<std::int64_t>;

struct SomeConvolution {
  Sizes input;
  Sizes weight;
  Sizes stride;
  Sizes padding;
  Sizes dilation;
  bool transposed = false;
  Sizes more = {0};
  std::int64_t groups = 1;
};

/// `wanted`: a bit for each; some kernels of the CPU make others as well.
std::vector<Bytes> bytes_made(const c10::Stack& results, unsigned wanted) {
  std::vector<Bytes> bytes;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (((wanted >> i) & 1U) == 0) continue;
    bytes.push_back(static_cast<Bytes>(results[i].toTensor().storage().nbytes()));
  }
  return bytes;
}

TEST(ConvolutionResults, AreWhatTheKernelsMake) {
  const std::vector<SomeConvolution> all = {
      {{2, 4, 9, 7}, {6, 4, 3, 3}, {1, 1}, {1, 1}, {1, 1}},
      {{2, 4, 9, 7}, {6, 4, 3, 3}, {2}, {1}, {1}},
      {{1, 4, 9, 8, 7}, {6, 4, 3, 2, 1}, {2, 1, 3}, {1, 0, 0}, {1, 2, 1}},
      {{3, 4, 11}, {6, 4, 3}, {2}, {0}, {3}},
      {{2, 4, 9, 7}, {8, 2, 3, 3}, {1, 2}, {1, 1}, {2, 1}, false, {0, 0}, 2},
      {{2, 4, 9, 7}, {4, 3, 3, 2}, {2, 3}, {1, 0}, {1, 2}, true, {1, 2}, 2},
      {{1, 4, 5, 6, 7}, {4, 6, 2, 2, 2}, {2}, {0}, {1}, true},
  };
  const auto forward = find_operator("aten::convolution");
  const auto backward = find_operator("aten::convolution_backward");
  for (const SomeConvolution& one : all) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor input = at::randn(one.input).to(type);
      const at::Tensor weight = at::randn(one.weight).to(type);
      c10::Stack arguments{input,        weight,         c10::IValue(), one.stride, one.padding,
                           one.dilation, one.transposed, one.more,      one.groups};
      const c10::Stack made = call(forward, arguments);
      EXPECT_EQ(result_bytes(forward, arguments, at::kCPU), bytes_made(made, 1)) << input.sizes();
      const at::Tensor gradient = at::randn(made[0].toTensor().sizes()).to(type);
      const Sizes biases{gradient.size(1)};
      for (unsigned mask = 1; mask < 8; ++mask) {
        c10::List<bool> wanted;
        for (unsigned bit = 0; bit < 3; ++bit) wanted.push_back(((mask >> bit) & 1U) != 0);
        arguments = {gradient,     input,          weight,   biases,     one.stride, one.padding,
                     one.dilation, one.transposed, one.more, one.groups, wanted};
        EXPECT_EQ(result_bytes(backward, arguments, at::kCPU),
                  bytes_made(call(backward, arguments), mask))
            << input.sizes() << " mask " << mask;
      }
    }
  }
}

TEST(ConvolutionResults, NothingIsForeseenOfWhatDoesNotGoTogether) {
  const auto forward = find_operator("aten::convolution");
  const at::Tensor input = at::randn({1, 4, 2, 2});
  const at::Tensor weight = at::randn({6, 4, 5, 5});
  const Sizes one{1, 1};
  const Sizes none{0, 0};
  for (const Sizes& stride : {one, Sizes{4, 4}}) {
    const c10::Stack arguments{input, weight, c10::IValue(), stride, none, one, false, none, 1};
    EXPECT_TRUE(result_bytes(forward, arguments, at::kCPU).empty());
  }
}

}  // namespace
}  // namespace lms::torch
