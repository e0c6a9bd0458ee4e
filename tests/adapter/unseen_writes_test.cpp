// Writers that no hook sees: C++ that takes a tensor by another road than an operator, and writes
// through its pointer.

#include <ATen/ops/exp.h>
#include <ATen/ops/rand_like.h>

#include "adapter/support.h"

namespace lms::torch {
namespace {

using testing::bytes_of;
using testing::ManagedCpu;
using testing::numbers;

constexpr std::int64_t kCount = 64 * 1024;

c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  return *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

/// An extension's kernel: doubles all elements, and tells nobody.
void double_unseen(const at::Tensor& tensor) {
  auto* const data = static_cast<float*>(storage_of(tensor)._mutable_data_ptr_no_checks().get());
  for (std::int64_t i = 0; i < tensor.numel(); ++i) data[i] *= 2;
}

void use(const at::Tensor& tensor) { (void)tensor.add(0); }

bool same(const at::Tensor& a, const at::Tensor& b) { return bytes_of(a) == bytes_of(b); }

std::string state_of(const at::Tensor& tensor) {
  DeviceManager& manager = *active_manager(c10::kCPU);
  EngineLock lock = manager.engine().lock();
  const Block* const block = manager.find(lock, storage_of(tensor));
  if (block == nullptr) return "unmanaged";
  if (block->state == BlockState::kAbsent) return "absent";
  if (block->state == BlockState::kDropped) return "dropped";
  return block->copy_valid ? "clean" : "dirty";
}

TEST(UnseenWrites, ToACleanBlockAreNotLost) {
  const at::Tensor plain = numbers(kCount, 1);
  ManagedCpu managed(64 * kMiB);
  const at::Tensor x = plain.clone();
  use(x);
  managed.reclaim();
  use(x);
  ASSERT_EQ(state_of(x), "clean");
  managed.reclaim();
  ASSERT_EQ(managed.count("evictions.clean"), 1) << "a clean block leaves without a copy";
  for (int round = 0; round < 3; ++round) {
    use(x);
    ASSERT_EQ(state_of(x), "clean");
    double_unseen(x);
    double_unseen(plain);
    const auto out = managed.count("bytes_out");
    managed.reclaim();
    ASSERT_EQ(state_of(x), "absent");
    EXPECT_EQ(managed.count("bytes_out"), out + static_cast<Bytes>(x.nbytes()));
    EXPECT_TRUE(same(x, plain)) << round;
  }
  EXPECT_EQ(managed.count("evictions.clean"), 1) << "the others were copied";
}

TEST(UnseenWrites, ToAnAbsentBlockComeBack) {
  const at::Tensor plain = numbers(kCount, 1);
  ManagedCpu managed(64 * kMiB);
  const at::Tensor x = plain.clone();
  use(x);
  managed.reclaim();
  ASSERT_EQ(state_of(x), "absent");
  double_unseen(x);
  double_unseen(plain);
  EXPECT_TRUE(same(x, plain));
  managed.reclaim();
  EXPECT_TRUE(same(x, plain));
}

TEST(UnseenWrites, ToWhatIsComputedAgainAreAnError) {
  // The lineage knows nothing of the write, and the bytes are gone: no result is right.
  for (const bool of_its_input : {false, true}) {
    ManagedCpu managed(64 * kMiB, /*stress=*/true, /*drop=*/true);
    const at::Tensor x = at::rand_like(numbers(kCount, 1));  // which has no lineage
    const at::Tensor y = at::exp(x);
    if (of_its_input) {
      use(y);
      ASSERT_EQ(state_of(y), "dropped");
      ASSERT_EQ(state_of(x), "absent");
      double_unseen(x);
    } else {
      Engine& engine = active_manager(c10::kCPU)->engine();
      EngineLock lock = engine.lock();
      Block& block = *active_manager(c10::kCPU)->find(lock, storage_of(y));
      ASSERT_TRUE(engine.rematerialise(lock, block)) << "as planned, ahead of its use";
      double_unseen(y);
      ASSERT_TRUE(engine.drop(lock, block));
    }
    try {
      use(y);
      ADD_FAILURE() << "wrong bytes were given out";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("torch.ops.lms.access"), std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace lms::torch
