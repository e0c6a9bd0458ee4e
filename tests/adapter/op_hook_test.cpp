#include "adapters/torch/op_hook.h"

#include <ATen/ops/mm.h>
#include <torch/library.h>

#include "adapter/support.h"

namespace lms::torch {
namespace {

using testing::bytes_of;
using testing::find_operator;
using testing::ManagedCpu;
using testing::numbers;

bool is_wrapped(const c10::OperatorHandle& op) {
  return op.dumpState().find("LMS (Large Model Support)") != std::string::npos;
}

TEST(OpHook, WrapsAndUnwraps) {
  const auto mm = find_operator("aten::mm");
  const auto own = find_operator("lms::stats");
  ASSERT_FALSE(is_wrapped(mm));
  const std::string before = mm.dumpComputedTable();
  {
    const OpHook hook(c10::DeviceType::CPU);
    EXPECT_GT(hook.wrapped(), 1000U);
    EXPECT_TRUE(is_wrapped(mm));
    EXPECT_FALSE(is_wrapped(own));
    EXPECT_NE(mm.dumpComputedTable(), before);
  }
  EXPECT_FALSE(is_wrapped(mm));
  EXPECT_EQ(mm.dumpComputedTable(), before);
}

std::vector<std::string> some_results() {
  const at::Tensor a = numbers(64 * 64, 0.1).view({64, 64});
  const at::Tensor b = a.mm(a.t()).softmax(0);
  const at::Tensor c = b.cumsum(1).index_select(0, b.argmax(1));
  return {bytes_of(a), bytes_of(b), bytes_of(c)};
}

TEST(OpHook, ChangesNoResult) {
  const auto expected = some_results();
  {
    const ManagedCpu managed(kMiB, /*stress=*/true);
    EXPECT_EQ(some_results(), expected);
    EXPECT_GT(managed.count("evictions"), 3);
    EXPECT_GT(managed.count("page_ins"), 3);
  }
  EXPECT_EQ(some_results(), expected);
}

at::Tensor twice(const at::Tensor& x) {
  // Raw, as a kernel reads it: LMS must have brought the bytes.
  at::Tensor result = at::empty(x.sizes(), x.options());
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    result.mutable_data_ptr<float>()[i] = 2 * x.const_data_ptr<float>()[i];
  }
  return result;
}

TEST(OpHook, OperatorsRegisteredLaterAreWrapped) {
  ManagedCpu managed(kMiB);
  at::Tensor x = numbers(4096, 0.2);
  ::torch::Library library(::torch::Library::FRAGMENT, "lms_adapter_test", std::nullopt, __FILE__,
                           __LINE__);
  library.def("twice(Tensor x) -> Tensor");
  ::torch::Library kernels(::torch::Library::IMPL, "lms_adapter_test", c10::DispatchKey::CPU,
                           __FILE__, __LINE__);
  kernels.impl("twice", &twice);
  const auto op = find_operator("lms_adapter_test::twice");
  const std::string expected = bytes_of(x.mul(2));
  EXPECT_TRUE(is_wrapped(op)) << "another operator has run since";
  EXPECT_GT(managed.reclaim(), 0);
  const auto before = managed.count("page_ins");
  EXPECT_EQ(bytes_of(testing::call(op, {x}).front().toTensor()), expected);
  EXPECT_EQ(managed.count("page_ins"), before + 1);
}

}  // namespace
}  // namespace lms::torch
