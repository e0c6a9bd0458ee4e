// Rules of kernels of LMS's own, with a device whose kernels compute nothing.

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "adapter/support.h"
#include "adapters/torch/fused/prices.h"
#include "adapters/torch/fused/rule.h"
#include "base/error.h"

namespace lms::torch {
namespace {

using testing::find_operator;

class FakeKernels final : public Kernels {
 public:
  [[nodiscard]] int multiprocessors() const noexcept override { return count; }
  [[nodiscard]] Kernel make(const char* /*source*/, const char* name,
                            std::vector<std::string> options) override {
    if (fails) throw Error("no compiler");
    made.push_back(name + (" " + options.back()));
    return reinterpret_cast<Kernel>(made.size());
  }
  [[nodiscard]] bool launch(Kernel /*kernel*/, unsigned blocks, unsigned /*threads*/,
                            void** arguments) override {
    launched = blocks;
    result = *static_cast<void**>(arguments[2]);
    return true;
  }
  void clear(void* /*data*/, std::size_t /*bytes*/) override {}
  void read(void* /*to*/, const void* /*data*/, std::size_t /*bytes*/) override {}
  [[nodiscard]] float time(const std::function<void()>& queue) override {
    queue();
    return 1;
  }

  int count = 132;
  bool fails = false;
  std::vector<std::string> made;
  unsigned launched = 0;
  void* result = nullptr;
};

struct Device {
  [[nodiscard]] FusedRule& rule_of(const char* name) const {
    return *rules.at(fused_role(name).rule);
  }
  [[nodiscard]] ReplayCost price(const char* name, const c10::Stack& arguments) const {
    OpInfo info;
    info.argument_count = static_cast<std::uint32_t>(arguments.size());
    return rule_of(name).price(fused_role(name).role, info, arguments);
  }
  /// Float [2, 8] converted to bfloat16.
  static std::shared_ptr<const Call> conversion() {
    auto call = std::make_shared<Call>();
    call->op = find_operator("aten::_to_copy");
    TensorSpec& spec = call->tensors.emplace_back();
    spec.source = TensorSpec::Source::kOrigin;
    spec.type = c10::scalarTypeToTypeMeta(c10::kFloat);
    spec.keys = c10::DispatchKeySet(c10::DispatchKey::CPU);
    spec.sizes = {2, 8};
    spec.strides = {8, 1};
    call->arguments.resize(7);
    call->arguments[0].kind = Call::Argument::Kind::kTensor;
    call->arguments[0].tensors = {0};
    call->arguments[1].value = static_cast<int>(c10::kBFloat16);
    return call;
  }
  [[nodiscard]] std::optional<FusedRun> find(const std::shared_ptr<const Call>& call) const {
    return rule_of("aten::_to_copy").find({&call, 1}, [](const TensorSpec&) {
      return std::shared_ptr<const Call>();
    });
  }

  FakeKernels kernels;
  std::vector<std::unique_ptr<FusedRule>> rules = make_fused_rules(c10::kCPU, kernels);
};

TEST(FusedRules, OperatorsHaveTheirRuleAndRole) {
  const FusedRole norm = fused_role("aten::native_batch_norm");
  const FusedRole relu = fused_role("aten::relu_");
  EXPECT_EQ(norm.rule, relu.rule);
  EXPECT_NE(norm.role, relu.role);
  EXPECT_NE(fused_role("aten::mul.Tensor").rule, norm.rule);
  for (const char* name : {"aten::mul.Scalar", "aten::mul", "aten::relu", "aten::add.out"}) {
    EXPECT_EQ(fused_role(name).rule, FusedRole::kNoRule) << name;
  }
}

TEST(FusedRules, Prices) {
  Device device;
  const at::Tensor x = at::zeros({2, 3, 8});
  const at::Tensor row = at::zeros({8});
  const at::Tensor narrow = x.to(c10::kBFloat16);
  const ReplayCost as_it_is;
  EXPECT_EQ(device.price("aten::native_batch_norm", {x}),
            (ReplayCost{.alone = prices::kNormFromStatistics, .place = 1}));
  EXPECT_EQ(device.price("aten::add_.Tensor", {x, x, 1}),
            (ReplayCost{.joined = prices::kNormOtherOperand, .place = 2, .operands = 1}));
  for (const char* relu : {"aten::relu_", "aten::leaky_relu_"}) {
    EXPECT_EQ(device.price(relu, {x}), (ReplayCost{.joined = prices::kNormRelu, .place = 3}));
  }
  EXPECT_EQ(device.price("aten::cudnn_batch_norm", {x}), as_it_is) << "not tried out";
  EXPECT_EQ(device.price("aten::mul.Tensor", {x, row}),
            (ReplayCost{.alone = prices::kProduct, .fold = Fold::kProduct}));
  EXPECT_EQ(device.price("aten::mul.Tensor", {x, x}), as_it_is);
  EXPECT_EQ(device.price("aten::add.Tensor", {x, narrow, 1}), ReplayCost{.alone = prices::kSum});
  EXPECT_EQ(device.price("aten::add.Tensor", {x, narrow, 2}), as_it_is);
  const c10::IValue none;
  const c10::IValue to_half = static_cast<int>(c10::kHalf);
  EXPECT_EQ(device.price("aten::_to_copy", {x, to_half, none, none, none, false, none}),
            ReplayCost{.fold = Fold::kConversion});
}

TEST(FusedRules, WithoutKernelsOperatorsCostWhatTheyAre) {
  Device device;
  device.kernels.count = 0;
  const at::Tensor x = at::zeros({2, 3, 8});
  EXPECT_EQ(device.price("aten::mul.Tensor", {x, at::zeros({8})}), ReplayCost{});
  EXPECT_EQ(device.price("aten::relu_", {x}), ReplayCost{});
  // PyTorch's own kernel for the saved statistics.
  EXPECT_EQ(device.price("aten::native_batch_norm", {x}).alone, prices::kNormFromStatistics);
  EXPECT_FALSE(device.find(Device::conversion()));
}

TEST(FusedRules, AKernelIsMadeOnceAndGetsItsAddresses) {
  Device device;
  const auto call = Device::conversion();
  alignas(16) char input[64];
  alignas(16) char result[32];
  for (int i = 0; i < 2; ++i) {
    const auto run = device.find(call);
    ASSERT_TRUE(run);
    EXPECT_EQ(run->calls, 1U);
    EXPECT_EQ(run->bytes, 32);
    EXPECT_EQ(run->reads, (std::vector<const TensorSpec*>{&call->tensors[0], nullptr}));
    EXPECT_TRUE(run->launch(std::vector<const void*>{input, nullptr}, result));
  }
  EXPECT_EQ(device.kernels.made.size(), 1U);
  EXPECT_EQ(device.kernels.launched, 1U);
  EXPECT_EQ(device.kernels.result, result);
}

TEST(FusedRules, AfterOneFailureThereAreNone) {
  Device device;
  device.kernels.fails = true;
  char memory[64] = {};
  const auto call = Device::conversion();
  EXPECT_EQ(device.rule_of("aten::_to_copy").failures(), 0);
  EXPECT_FALSE(device.find(call)->launch(std::vector<const void*>{memory, nullptr}, memory));
  EXPECT_EQ(device.rule_of("aten::_to_copy").failures(), 1);
  EXPECT_FALSE(device.find(call));
  EXPECT_EQ(device.rule_of("aten::relu_").failures(), 0) << "another rule's kernels are others";
}

}  // namespace
}  // namespace lms::torch
