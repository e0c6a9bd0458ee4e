// Several operators over lists in one kernel, with a device whose kernels compute nothing.

#include "adapters/torch/fused/list_pass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"

namespace lms::torch {
namespace {

using Place = PassProgram::Place;
constexpr std::uint8_t kNone = PassProgram::kNone;

class RecordingKernels final : public Kernels {
 public:
  [[nodiscard]] int multiprocessors() const noexcept override { return count; }
  [[nodiscard]] Kernel make(const char* source, const char* name,
                            std::vector<std::string> options) override {
    if (fails) throw Error("no compiler");
    sources.push_back(std::string(name) + source);
    made.push_back(std::move(options));
    return reinterpret_cast<Kernel>(made.size());
  }
  [[nodiscard]] bool launch(Kernel kernel, unsigned blocks, unsigned /*threads*/,
                            void** arguments) override {
    if (refuses) return false;
    kernels.push_back(reinterpret_cast<std::size_t>(kernel));
    launched.push_back(blocks);
    std::memcpy(&first, arguments[0], sizeof(first));
    return true;
  }
  void clear(void* /*data*/, std::size_t /*bytes*/) override {}
  void read(void* /*to*/, const void* /*data*/, std::size_t /*bytes*/) override {}
  [[nodiscard]] float time(const std::function<void()>& /*queue*/) override { return 1; }

  int count = 132;
  bool fails = false;
  bool refuses = false;
  std::vector<std::string> sources;
  std::vector<std::vector<std::string>> made;
  std::vector<std::size_t> kernels;
  std::vector<unsigned> launched;
  std::array<void*, PassKernels::kMostAddresses> first{};  ///< addresses of the first position
};

/// a = a + 2 · b, then a = a / sqrt(a).
PassProgram program(c10::ScalarType type = c10::kFloat) {
  return {.type = type,
          .steps = {{StepKind::kAdd, 0, 0, 1, kNone, 0, false},
                    {StepKind::kSqrt, 2, 0, kNone, kNone, kNone, false},
                    {StepKind::kDiv, 0, 0, 2, kNone, kNone, false}},
          .registers = {Place::kWritten, Place::kRead, Place::kMade},
          .numbers = 1};
}

/// Of lists that lie at multiples of `offset` bytes beside a good place.
std::vector<PassPosition> positions(std::size_t count, std::uint64_t elements,
                                    std::uintptr_t offset = 0) {
  std::vector<PassPosition> all(count);
  for (std::size_t k = 0; k < count; ++k) {
    all[k] = {.addresses = {reinterpret_cast<void*>((k + 1) * 4096 + offset),
                            reinterpret_cast<void*>((k + 1) * 1048576)},
              .elements = elements,
              .numbers = {2.0}};
  }
  return all;
}

TEST(ListPass, OneLaunchForManyPositions) {
  RecordingKernels device;
  PassKernels kernels(device);
  const auto all = positions(10, 4096);
  EXPECT_TRUE(kernels.run(program(), all));
  EXPECT_EQ(device.launched, (std::vector<unsigned>{10}));
  EXPECT_EQ(device.first[0], all[0].addresses[0]);
  EXPECT_EQ(device.first[1], all[0].addresses[1]);
  EXPECT_TRUE(kernels.run(program(), positions(60, 4097 * 4)));
  EXPECT_EQ(device.launched, (std::vector<unsigned>{10, 24 * 5, 24 * 5, 12 * 5}));
  EXPECT_EQ(device.made.size(), 1U) << "the kernel is there";
}

TEST(ListPass, VectorsWhereAllIsAligned) {
  RecordingKernels device;
  PassKernels kernels(device);
  const auto has = [&](const char* option) {
    return std::ranges::find(device.made.back(), option) != device.made.back().end();
  };
  EXPECT_TRUE(kernels.run(program(), positions(1, 64)));
  EXPECT_TRUE(has("-DLANES=4"));
  EXPECT_TRUE(kernels.run(program(), positions(1, 63)));
  EXPECT_TRUE(has("-DLANES=1"));
  EXPECT_TRUE(kernels.run(program(), positions(1, 64, 4)));
  EXPECT_EQ(device.kernels, (std::vector<std::size_t>{1, 2, 2}));
  EXPECT_TRUE(kernels.run(program(c10::kHalf), positions(1, 64)));
  EXPECT_TRUE(has("-DLANES=8") && has("-DTYPE=1"));
  EXPECT_TRUE(kernels.run(program(c10::kBFloat16), positions(1, 64)));
  EXPECT_TRUE(has("-DLANES=8") && has("-DTYPE=0"));
  EXPECT_EQ(device.made.size(), 4U);
}

TEST(ListPass, WhatIsMadeLiesNowhere) {
  const std::string source = PassKernels::source_of(program());
  EXPECT_NE(source.find("r0 = rounded(add(r0, r1, n0));"), std::string::npos);
  EXPECT_NE(source.find("r2 = rounded(__fsqrt_rn(r0));"), std::string::npos);
  EXPECT_NE(source.find("r0 = rounded(__fdiv_rn(r0, r2));"), std::string::npos);
  EXPECT_NE(source.find("(p0)[i] = w0;"), std::string::npos);
  EXPECT_EQ(source.find("p2"), std::string::npos);
  EXPECT_EQ(source.find("(p1)[i] = "), std::string::npos) << "read alone";
}

TEST(ListPass, OneNumberInMemoryForAll) {
  PassProgram scaled = program();
  scaled.steps = {{StepKind::kMul, 0, 0, 1, kNone, kNone, false}};
  scaled.registers = {Place::kWritten, Place::kOne};
  scaled.numbers = 0;
  const std::string source = PassKernels::source_of(scaled);
  EXPECT_NE(source.find("const float r1 = widened(*p1);"), std::string::npos);
  RecordingKernels device;
  PassKernels kernels(device);
  auto all = positions(1, 64);
  all[0].addresses[1] = reinterpret_cast<void*>(4);  // it need not be aligned
  EXPECT_TRUE(kernels.run(scaled, all));
  EXPECT_NE(std::ranges::find(device.made.back(), "-DLANES=4"), device.made.back().end());
}

TEST(ListPass, WithoutACompilerThereAreNone) {
  RecordingKernels device;
  device.fails = true;
  PassKernels kernels(device);
  EXPECT_TRUE(kernels.available());
  EXPECT_FALSE(kernels.run(program(), positions(1, 64)));
  EXPECT_FALSE(kernels.available());
  device.count = 0;
  EXPECT_FALSE(PassKernels(device).available());
}

TEST(ListPass, ARefusedLaunchIsNoPass) {
  RecordingKernels device;
  device.refuses = true;
  PassKernels kernels(device);
  EXPECT_FALSE(kernels.run(program(), positions(1, 64)));
  EXPECT_FALSE(kernels.available());
}

TEST(ListPass, TriedOutOnce) {
  RecordingKernels device;
  PassKernels kernels(device);
  int tried = 0;
  const auto trial = [&](bool same) {
    return [&tried, same] {
      ++tried;
      return same;
    };
  };
  EXPECT_THROW((void)kernels.may_run(program(), []() -> bool { throw Error("no room"); }), Error);
  EXPECT_TRUE(kernels.may_run(program(), trial(true))) << "nothing was known";
  EXPECT_TRUE(kernels.may_run(program(), trial(false)));
  EXPECT_FALSE(kernels.may_run(program(c10::kHalf), trial(false)));
  EXPECT_FALSE(kernels.may_run(program(c10::kHalf), trial(true)));
  EXPECT_EQ(tried, 2);
}

TEST(ListPass, StepsByName) {
  EXPECT_EQ(pass_step("aten::_foreach_mul_.Scalar").kind, StepKind::kMul);
  EXPECT_EQ(pass_step("aten::_foreach_sqrt").kind, StepKind::kSqrt);
  EXPECT_EQ(pass_step("aten::_foreach_sqrt_").kind, StepKind::kSqrt);
  EXPECT_EQ(pass_step("aten::_foreach_addcdiv_.ScalarList").lists, 3);
  EXPECT_EQ(pass_step("aten::_foreach_add.List").number, 2);
  EXPECT_EQ(pass_step("aten::_foreach_mul_.Tensor").tensor, 1);
  for (const char* const name :
       {"aten::_foreach_exp_", "aten::_foreach_add_.Tensor", "aten::_foreach_lerp_.List",
        "aten::_foreach_addcmul_.Tensor", "aten::_foreach_add", "aten::mul_.Scalar",
        "aten::_fused_adamw_", "aten::_foreach_s", "aten::_foreach_"}) {
    EXPECT_EQ(pass_step(name).kind, StepKind::kNone) << name;
  }
}

}  // namespace
}  // namespace lms::torch
