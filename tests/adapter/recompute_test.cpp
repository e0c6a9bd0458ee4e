// What may be run again, under which settings, and what becomes of dropped bytes.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>
#include <c10/core/DefaultDtype.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "adapter/support.h"
#include "adapters/torch/operators/draws.h"
#include "adapters/torch/operators/numerics.h"
#include "adapters/torch/operators/op_info.h"
#include "adapters/torch/operators/repeatable.h"
#include "adapters/torch/replay/lineages.h"

namespace lms::torch {
namespace {

using testing::block_state;
using testing::bytes_of;
using testing::find_operator;
using testing::ManagedCpu;
using testing::numbers;

Rerun rule(const char* name, const char* overload = "") {
  return rerun_rule(find_operator(name, overload));
}

TEST(Repeatable, RulesOfOperators) {
  for (const char* name : {"aten::convolution", "aten::mm", "aten::relu", "aten::exp", "aten::gelu",
                           "aten::native_layer_norm", "aten::cat", "aten::_softmax",
                           "aten::_scaled_dot_product_flash_attention"}) {
    EXPECT_EQ(rule(name), Rerun::kSame) << name;
  }
  EXPECT_EQ(rule("aten::add_", "Tensor"), Rerun::kSame);
  EXPECT_EQ(rule("aten::relu_"), Rerun::kSame);
  EXPECT_EQ(rule("aten::copy_"), Rerun::kOverwrites);
  EXPECT_EQ(rule("aten::zero_"), Rerun::kOverwrites);
  EXPECT_EQ(rule("aten::native_batch_norm"), Rerun::kBatchNorm);
  EXPECT_EQ(rule("aten::native_dropout"), Rerun::kSame);
  EXPECT_EQ(rule("aten::normal_"), Rerun::kOverwrites);
  EXPECT_EQ(rule("aten::bernoulli_", "float"), Rerun::kOverwrites);
  // Filled by others, adding in any order, or writing what they are given.
  for (const char* name : {"aten::rand_like", "aten::empty_like", "aten::multinomial",
                           "aten::rrelu_with_noise_", "aten::index_add_",
                           "aten::embedding_dense_backward", "aten::resize_", "aten::_cudnn_rnn"}) {
    const auto op = c10::Dispatcher::singleton().findOp({name, ""});
    if (op) {
      EXPECT_EQ(rerun_rule(*op), Rerun::kNever) << name;
    }
  }
  EXPECT_EQ(rule("aten::add", "out"), Rerun::kNever);
  EXPECT_EQ(rule("aten::cat", "out"), Rerun::kNever);
  EXPECT_EQ(rule("aten::scatter_add"), Rerun::kNever);
}

TEST(Repeatable, ConvolutionsNotWhileAlgorithmsAreTried) {
  at::Context& context = at::globalContext();
  const auto convolution = describe(find_operator("aten::convolution"), c10::DispatchKey::CUDA);
  const auto product = describe(find_operator("aten::mm"), c10::DispatchKey::CUDA);
  const bool before = context.benchmarkCuDNN();
  context.setBenchmarkCuDNN(true);
  EXPECT_FALSE(repeatable_now(convolution));
  EXPECT_TRUE(repeatable_now(product));
  context.setBenchmarkCuDNN(false);
  EXPECT_TRUE(repeatable_now(convolution));
  context.setBenchmarkCuDNN(before);
}

TEST(Repeatable, NoConvolutionsAfterOneHasChangedItsAlgorithm) {
  const auto info = [](const char* name) {
    return describe(find_operator(name), c10::DispatchKey::CUDA);
  };
  const auto product = info("aten::mm");
  const auto convolution = info("aten::convolution");
  ChangedAlgorithms changed;
  const auto repeat = [&] {
    return std::vector{changed.repeat(product), changed.repeat(convolution),
                       changed.repeat(convolution, /*transposed=*/true)};
  };
  EXPECT_EQ(repeat(), (std::vector{true, true, true}));
  changed.add(info("aten::convolution_backward"));
  EXPECT_EQ(repeat(), (std::vector{true, true, false}));
  changed.add(convolution);
  EXPECT_EQ(repeat(), (std::vector{true, false, false}));
}

TEST(Numerics, HoldForAScopeAndAreAsBeforeAfterIt) {
  at::Context& context = at::globalContext();
  context.setFloat32MatmulPrecision("highest");
  const auto before = Numerics::now();
  ASSERT_TRUE(before);
  Numerics other = *before;
  other.cudnn = !other.cudnn;
  other.cudnn_benchmark = !other.cudnn_benchmark;
  other.cudnn_deterministic = !other.cudnn_deterministic;
  other.mkldnn = !other.mkldnn;
  other.mkldnn_deterministic = !other.mkldnn_deterministic;
  other.deterministic = !other.deterministic;
  other.default_type = c10::ScalarType::Double;
  other.matmul = at::Float32MatmulPrecision::MEDIUM;
  other.half_reduction = at::CuBLASReductionOption::DisallowReducedPrecisionAllowSplitK;
  other.bfloat_reduction = at::CuBLASReductionOption::DisallowReducedPrecisionDisallowSplitK;
  other.threads = other.threads == 1 ? 2 : 1;
  other.flash_3 = !other.flash_3;
  other.spared_processors = 4;
  // The newer names of the precisions follow the older one.
  context.setFloat32MatmulPrecision("medium");
  other.precisions = Numerics::now()->precisions;
  context.setFloat32MatmulPrecision("highest");
  ASSERT_EQ(Numerics::now(), before);
  {
    const NumericsScope scope(other);
    EXPECT_EQ(Numerics::now(), other);
    EXPECT_EQ(c10::get_default_dtype_as_scalartype(), c10::ScalarType::Double);
    EXPECT_EQ(at::get_num_threads(), other.threads);
    EXPECT_EQ(context.float32MatmulPrecision(), at::Float32MatmulPrecision::MEDIUM);
    const NumericsScope inner(*before);
    EXPECT_EQ(Numerics::now(), before);
  }
  EXPECT_EQ(Numerics::now(), before);
  { const NumericsScope nothing(*before); }
  EXPECT_EQ(Numerics::now(), before);
}

TEST(Draws, WhatDrawsWhere) {
  const auto info = [](const char* name, const char* overload = "") {
    return describe(find_operator(name, overload), c10::DispatchKey::CPU);
  };
  EXPECT_FALSE(info("aten::exp").random);
  EXPECT_TRUE(info("aten::native_dropout").random);
  EXPECT_EQ(info("aten::native_dropout").generator, OpInfo::kNoArgument);
  EXPECT_TRUE(info("aten::bernoulli_", "float").random);
  EXPECT_EQ(info("aten::bernoulli_", "float").generator, 2U);
  const auto attention = info("aten::_scaled_dot_product_flash_attention");
  std::vector<c10::IValue> arguments(attention.argument_count);
  ASSERT_NE(attention.dropout, OpInfo::kNoArgument);
  arguments[attention.dropout] = 0.0;
  EXPECT_FALSE(draws_of(attention, arguments, c10::kCPU)) << "without dropout";
  arguments[attention.dropout] = 0.1;
  EXPECT_TRUE(draws_of(attention, arguments, c10::kCPU));
}

TEST(Draws, AgainAndTheGeneratorNeverNotices) {
  at::manual_seed(7);
  (void)at::randn({15});  // leaves half a pair of normal numbers
  OpInfo info;
  info.random = true;
  const auto draws = draws_of(info, {}, c10::kCPU);
  ASSERT_TRUE(draws);
  const at::Tensor first = at::randn({33});
  const at::Tensor state = at::globalContext().defaultGenerator(c10::kCPU).get_state();
  for (int i = 0; i < 2; ++i) {
    const DrawAgain again(*draws, c10::kCPU);
    EXPECT_TRUE(at::equal(at::randn({33}), first));
  }
  EXPECT_TRUE(at::equal(at::globalContext().defaultGenerator(c10::kCPU).get_state(), state));
}

/// The state of a tensor's block.
BlockState state(const at::Tensor& tensor) {
  DeviceManager& manager = *active_manager(c10::kCPU);
  EngineLock lock = manager.engine().lock();
  return manager.find(lock, *tensor.storage().unsafeGetStorageImpl())->state;
}

at::Tensor made(double seed) { return numbers(4096, seed).mul(1); }

TEST(Recompute, DropsWhatItKnowsAndComputesItForItsNextUse) {
  const std::string expected = bytes_of(made(0.5).exp());
  const ManagedCpu managed(16 * kMiB, /*stress=*/true, /*drop=*/true);
  const at::Tensor x = made(0.5);
  const at::Tensor y = x.exp();
  EXPECT_EQ(state(x), BlockState::kDropped);
  EXPECT_EQ(state(y), BlockState::kDropped);
  const auto remakes = managed.count("remakes");
  EXPECT_EQ(bytes_of(y), expected);
  EXPECT_GE(managed.count("remakes"), remakes + 2) << "and what it is computed from";
  EXPECT_EQ(managed.stat("plan.failed"), 0);
}

TEST(Recompute, RandomNumbersAreDrawnAgain) {
  const auto run = [](const at::Generator& own, const auto& look) {
    at::manual_seed(3);
    const at::Tensor x = made(0.5);
    const auto [y, mask] = at::native_dropout(x, 0.3, true);
    const at::Tensor noise = at::empty({4096}, at::kFloat).normal_(0, 2, own);
    const at::Tensor kept = at::bernoulli(at::full({4096}, 0.25), own);
    at::Tensor changed = x.mul(2);
    changed.uniform_(-1, 1);
    changed.add_(noise);
    look(x, y, mask, noise, kept, changed);
    std::string bytes;
    for (const auto& tensor : {changed, y, kept, mask, noise, at::randn({100})}) {
      bytes += bytes_of(tensor);
    }
    return bytes;
  };
  at::Generator own = at::detail::createCPUGenerator(11);
  const std::string expected = run(own, [](const auto&...) {});
  own.set_current_seed(11);
  const ManagedCpu managed(16 * kMiB, /*stress=*/true, /*drop=*/true);
  EXPECT_EQ(run(own,
                [](const auto&... tensors) {
                  for (const auto& s : {state(tensors)...}) EXPECT_EQ(s, BlockState::kDropped);
                }),
            expected);
}

TEST(Recompute, BeforeAWriteWhatNeedsTheOldBytesIsComputed) {
  const std::string expected = bytes_of(made(0.5).exp());
  const ManagedCpu managed(16 * kMiB, /*stress=*/true, /*drop=*/true);
  at::Tensor x = made(0.5);
  const at::Tensor y = x.exp();
  ASSERT_EQ(state(y), BlockState::kDropped);
  x.add_(1);
  EXPECT_EQ(state(y), BlockState::kAbsent) << "it cannot be dropped again";
  EXPECT_EQ(bytes_of(y), expected);
  EXPECT_EQ(state(x), BlockState::kDropped) << "its lineage has grown";
}

TEST(Recompute, TheBytesOfTheDeadStayWhileSomethingNeedsThem) {
  const ManagedCpu managed(16 * kMiB, /*stress=*/true, /*drop=*/true);
  const auto before = managed.stat("blocks.current");
  std::string expected;
  {
    at::Tensor y;
    {
      // Filled through its pointer: nobody knows how it came about.
      const at::Tensor x = at::empty({4096}, at::kFloat);
      auto* data = x.mutable_data_ptr<float>();
      for (int i = 0; i < 4096; ++i) data[i] = 0.25F * static_cast<float>(i % 100);
      y = x.exp();
    }
    ASSERT_EQ(state(y), BlockState::kDropped);
    const at::Tensor again = at::arange(4096, at::kFloat).remainder(100).mul(0.25).exp();
    EXPECT_EQ(bytes_of(y), bytes_of(again));
  }
  EXPECT_EQ(managed.stat("blocks.current"), before) << "nobody needs them any more";
}

TEST(Recompute, WhatIsDroppedReturnsBeforeManagingEnds) {
  const std::string expected = bytes_of(at::cat({made(0.5), made(0.7)}));
  at::Tensor joined;
  {
    const ManagedCpu managed(16 * kMiB, /*stress=*/true, /*drop=*/true);
    joined = at::cat({made(0.5), made(0.7)});
    ASSERT_EQ(state(joined), BlockState::kDropped);
  }
  EXPECT_EQ(std::string(static_cast<const char*>(joined.const_data_ptr()), joined.nbytes()),
            expected);
}

/// The death of a tensor, told to go on: until then its storage is there no more, and LMS has not
/// heard of it.
struct SlowDeath {
  c10::DataPtr data;
  std::promise<void> begun;
  std::future<void> may_end;

  static void end(void* context) {
    const std::unique_ptr<SlowDeath> death(static_cast<SlowDeath*>(context));
    death->begun.set_value();
    death->may_end.wait_for(std::chrono::milliseconds(200));
  }
};

/// What reads it is computed again meanwhile, in another thread.
TEST(Recompute, WhatIsDyingInAnotherThreadIsWaitedFor) {
  const auto make = [](at::Tensor& mask) {
    const at::Tensor u = at::sigmoid(numbers(4096, 1));
    mask = u.gt(0.5);
    return u.masked_fill_(mask, 0.25);
  };
  at::Tensor mask;
  const std::string expected = bytes_of(make(mask));
  const ManagedCpu managed(kMiB, /*stress=*/true, /*drop=*/true, /*plan=*/false);
  const at::Tensor u = make(mask);
  ASSERT_EQ(block_state(u), BlockState::kDropped);
  ASSERT_EQ(block_state(mask), BlockState::kAbsent) << "it could be computed again, too";

  std::promise<void> told;
  c10::StorageImpl& storage = *mask.storage().unsafeGetStorageImpl();
  auto death = std::make_unique<SlowDeath>();
  death->may_end = told.get_future();
  const auto begun = death->begun.get_future();
  void* const data = storage.mutable_data_ptr().get();
  death->data = storage.set_data_ptr({nullptr, c10::kCPU});
  storage.set_data_ptr_noswap({data, death.release(), &SlowDeath::end, c10::kCPU});

  std::thread other([&] { mask.reset(); });
  begun.wait();
  std::string found;
  EXPECT_NO_THROW(found = bytes_of(u));
  EXPECT_TRUE(found == expected);
  told.set_value();
  other.join();
}

}  // namespace
}  // namespace lms::torch
