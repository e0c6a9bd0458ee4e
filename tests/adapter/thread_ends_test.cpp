// Threads that end in the middle of an operator: by an exception, by pthread_exit(), cancelled.

#include <pthread.h>
#include <torch/library.h>

#include <thread>

#include "adapter/support.h"

namespace lms::torch {
namespace {

using testing::bytes_of;
using testing::call;
using testing::find_operator;
using testing::ManagedCpu;
using testing::numbers;

enum class End { kException, kExit, kCancelled };
End end_by = End::kException;

at::Tensor ends_its_thread(const at::Tensor& x) {
  const at::Tensor half = x.mul(2);  // something nested, which has pinned
  switch (end_by) {
    case End::kException:
      TORCH_CHECK(false, "an exception, for a test");
    case End::kExit:
      ::pthread_exit(nullptr);
    case End::kCancelled:
      ::pthread_cancel(::pthread_self());  // in effect from the next transfer on: an eviction's
  }
  return half;
}

}  // namespace
}  // namespace lms::torch

TORCH_LIBRARY(lms_thread_test, m) { m.def("ends_its_thread(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(lms_thread_test, CPU, m) {
  m.impl("ends_its_thread", &lms::torch::ends_its_thread);
}

namespace lms::torch {
namespace {

struct Work {
  at::Tensor x;
  bool came_back = false;
};

void* run(void* argument) {
  auto& work = *static_cast<Work*>(argument);
  try {
    (void)call(find_operator("lms_thread_test::ends_its_thread"), {work.x});
    work.came_back = true;
  } catch (const c10::Error&) {
    // The thread ends with it.
  }
  return nullptr;
}

TEST(ThreadEnds, InAnOperatorHoldsNothingAndLosesNothing) {
  constexpr std::int64_t kCount = 64 * 1024;
  const at::Tensor plain = numbers(kCount, 1);
  const std::string expected = bytes_of(plain);
  for (const bool stress : {false, true}) {
    for (const End end : {End::kException, End::kExit, End::kCancelled}) {
      if (end == End::kCancelled && !stress) continue;  // there is no eviction
      SCOPED_TRACE(static_cast<int>(end));
      end_by = end;
      ManagedCpu managed(64 * kMiB, stress);
      Work work{plain.clone()};
      const auto blocks = managed.stat("blocks.current");
      pthread_t thread{};
      ASSERT_EQ(::pthread_create(&thread, nullptr, &run, &work), 0);
      ASSERT_EQ(::pthread_join(thread, nullptr), 0);
      EXPECT_FALSE(work.came_back);
      EXPECT_EQ(managed.stat("pinned.bytes.current"), 0);
      EXPECT_EQ(managed.stat("blocks.current"), blocks) << "what it had made is gone";
      EXPECT_TRUE(bytes_of(work.x.mul(1)) == expected);
      managed.reclaim();
      EXPECT_TRUE(bytes_of(work.x) == expected);
    }
  }
}

}  // namespace
}  // namespace lms::torch
