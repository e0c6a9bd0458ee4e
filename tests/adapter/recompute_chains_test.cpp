// Long chains of what has been dropped or has died: how much memory, and stack, they take.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <pthread.h>

#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "adapter/support.h"
#include "adapters/torch/operators/op_info.h"
#include "adapters/torch/replay/lineages.h"

namespace lms::torch {
namespace {

using testing::block_state;
using testing::bytes_of;
using testing::call;
using testing::find_operator;
using testing::ManagedCpu;
using testing::numbers;

constexpr std::int64_t kLinkElements = 4096;
constexpr Bytes kBlock = kLinkElements * 4;

DeviceManager& manager() { return *active_manager(c10::kCPU); }

/// Records what it runs, as an operator that a plan wants to run again.
class Recorded {
 public:
  explicit Recorded(const char* name, const char* overload = "")
      : op_(find_operator(name, overload)),
        info_(describe(op_, c10::DispatchKey::CPU)),
        kernel_(op_.getComputedKernelForDispatchKey(c10::DispatchKey::CPU)) {}

  at::Tensor operator()(const std::vector<c10::IValue>& arguments) const {
    constexpr std::uint32_t kMostDepth = 4096;
    const c10::DispatchKeySet keys(c10::DispatchKey::CPU);
    auto draft = manager().lineages().prepare(info_, kernel_, op_, keys, arguments);
    const auto results = call(op_, arguments);
    if (draft) manager().lineages().commit(std::move(*draft), results, 0, kMostDepth);
    return results.front().toTensor();
  }

 private:
  c10::OperatorHandle op_;
  OpInfo info_;
  c10::SafeKernelFunction kernel_;
};

bool drop(const at::Tensor& tensor) {
  EngineLock lock = manager().engine().lock();
  Block* const block = manager().find(lock, *tensor.storage().unsafeGetStorageImpl());
  return block != nullptr && manager().engine().drop(lock, *block);
}

/// Runs `work` in a thread that has little stack.
void on_a_small_stack(const std::function<void()>& work) {
  constexpr std::size_t kStack = 512 * 1024;
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, kStack), 0);
  pthread_t thread{};
  const auto run = [](void* context) -> void* {
    const at::NoGradGuard no_grad;
    (*static_cast<const std::function<void()>*>(context))();
    return nullptr;
  };
  ASSERT_EQ(
      pthread_create(&thread, &attributes, run, const_cast<void*>(static_cast<const void*>(&work))),
      0);
  pthread_attr_destroy(&attributes);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
}

std::string sines(int links) {
  at::Tensor y = numbers(kLinkElements, 0.5);
  for (int i = 0; i < links; ++i) y = y.sin();
  return bytes_of(y);
}

TEST(RecomputeChains, ALongChainOfDroppedBlocksTakesTwoOfThemAtOnce) {
  constexpr int kLinks = 1500;
  const std::string expected = sines(kLinks);
  const Recorded sine("aten::sin");
  const ManagedCpu managed(2 * kBlock, /*stress=*/false, /*drop=*/false, /*plan=*/false);
  on_a_small_stack([&] {
    std::vector<at::Tensor> chain = {numbers(kLinkElements, 0.5)};
    for (int i = 0; i < kLinks; ++i) {
      chain.push_back(sine({chain.back()}));
      ASSERT_TRUE(i == 0 || drop(chain[static_cast<std::size_t>(i)])) << i;
    }
    ASSERT_TRUE(drop(chain.back()));
    const auto remakes = managed.count("remakes");
    EXPECT_EQ(bytes_of(chain.back()), expected);
    EXPECT_EQ(managed.count("remakes"), remakes + kLinks) << "each once";
    EXPECT_LE(managed.stat("device.bytes.peak"), 2 * kBlock);
    EXPECT_EQ(block_state(chain[kLinks / 2]), BlockState::kAbsent) << "computed, and evicted";
  });
}

TEST(RecomputeChains, ALongChainOfTheDeadTakesTwoOfThemAtOnce) {
  constexpr int kLinks = 1500;
  const std::string expected = sines(kLinks);
  const Recorded sine("aten::sin");
  const ManagedCpu managed(2 * kBlock, /*stress=*/false, /*drop=*/false, /*plan=*/false);
  on_a_small_stack([&] {
    const auto blocks = managed.stat("blocks.current");
    const at::Tensor x = numbers(kLinkElements, 0.5);
    at::Tensor y = x;
    for (int i = 0; i < kLinks; ++i) y = sine({y});
    ASSERT_TRUE(drop(y));
    EXPECT_EQ(bytes_of(y), expected);
    EXPECT_LE(managed.stat("device.bytes.peak"), 2 * kBlock);
    EXPECT_EQ(managed.stat("blocks.current"), blocks + 2) << "x and y";
    ASSERT_TRUE(drop(y));
  });
}

TEST(RecomputeChains, BeforeAWriteALongChainOfTheDeadIsComputed) {
  constexpr int kLinks = 1500;
  const std::string expected = sines(kLinks);
  const Recorded sine("aten::sin");
  const ManagedCpu managed(2 * kBlock, /*stress=*/false, /*drop=*/false, /*plan=*/false);
  on_a_small_stack([&] {
    at::Tensor x = numbers(kLinkElements, 0.5);
    at::Tensor y = x;
    for (int i = 0; i < kLinks; ++i) y = sine({y});
    ASSERT_TRUE(drop(y));
    x.add_(1);
    EXPECT_NE(block_state(y), BlockState::kDropped);
    EXPECT_FALSE(drop(y)) << "what it came from is gone";
    EXPECT_EQ(bytes_of(y), expected);
    // And with nothing dropped: all lineages are forgotten.
    at::Tensor z = x;
    for (int i = 0; i < kLinks; ++i) z = sine({z});
    x.add_(1);
    EXPECT_FALSE(drop(z));
  });
}

/// Every second one is also read by the last: what is shared is made once, and stays for it.
TEST(RecomputeChains, WhatTwoNeedIsComputedOnce) {
  constexpr int kLinks = 40;
  const Recorded sine("aten::sin");
  const Recorded sum("aten::add", "Tensor");
  const auto chain = [&](const auto& link, const auto& join) {
    at::Tensor x = numbers(kLinkElements, 0.25), early, y = x;
    for (int i = 0; i < kLinks; ++i) {
      y = i == 0 || i % 4 != 0 ? link(y) : join(y, early);
      if (i % 4 == 1) early = y;
    }
    return std::pair{x, y};
  };
  const std::string expected =
      bytes_of(chain([](const at::Tensor& y) { return y.sin(); },
                     [](const at::Tensor& y, const at::Tensor& other) { return y.add(other); })
                   .second);
  const ManagedCpu managed(3 * kBlock, /*stress=*/false, /*drop=*/false, /*plan=*/false);
  std::vector<at::Tensor> all;
  const auto keep = [&](at::Tensor made) { return all.emplace_back(std::move(made)); };
  const auto [x, y] = chain([&](const at::Tensor& one) { return keep(sine({one})); },
                            [&](const at::Tensor& one, const at::Tensor& two) {
                              return keep(sum({one, two, 1}));
                            });
  for (const at::Tensor& tensor : all) {
    ASSERT_TRUE(drop(tensor) || block_state(tensor) == BlockState::kAbsent);
  }
  const auto remakes = managed.count("remakes");
  EXPECT_EQ(bytes_of(y), expected);
  EXPECT_LE(managed.count("remakes"), remakes + kLinks);
  EXPECT_LE(managed.stat("device.bytes.peak"), 3 * kBlock);
}

/// The first call's own operators read its input; when the second runs, that may have left.
TEST(RecomputeChains, ACallHoldsNothingWhenTheNextOneRuns) {
  using Places = std::vector<std::int64_t>;
  const auto second = [] { return numbers(kLinkElements, 0.25); };
  const std::string expected =
      bytes_of(numbers(kLinkElements, 0.5).roll(Places{1}, Places{0}).add_(second()));
  const Recorded roll("aten::roll");
  const Recorded add("aten::add_", "Tensor");
  const ManagedCpu managed(2 * kBlock, /*stress=*/false, /*drop=*/false, /*plan=*/false);
  const at::Tensor x = numbers(kLinkElements, 0.5);
  const at::Tensor z = second();
  const at::Tensor y = roll({x, Places{1}, Places{0}});
  add({y, z, 1});
  ASSERT_TRUE(drop(y));
  EXPECT_EQ(bytes_of(y), expected);
  EXPECT_LE(managed.stat("device.bytes.peak"), 2 * kBlock);
}

/// What is larger than all it is computed from needs no more than its own place.
TEST(RecomputeChains, AResultTakesItsOwnPlaceAndNoOther) {
  const std::string expected = bytes_of(numbers(1, 0.5).repeat({kLinkElements}));
  const Recorded repeat("aten::repeat");
  const ManagedCpu managed(kBlock, /*stress=*/false, /*drop=*/false, /*plan=*/false);
  const at::Tensor y = repeat({numbers(1, 0.5), std::vector<std::int64_t>{kLinkElements}});
  ASSERT_TRUE(drop(y));
  const auto remakes = managed.count("remakes");
  EXPECT_NE(y.sum().item<float>(), 0);
  EXPECT_EQ(managed.count("remakes"), remakes + 1);
  EXPECT_LE(managed.stat("device.bytes.peak"), kBlock);
  access(y);
  EXPECT_EQ(std::string(static_cast<const char*>(y.const_data_ptr()), y.nbytes()), expected);
}

}  // namespace
}  // namespace lms::torch
