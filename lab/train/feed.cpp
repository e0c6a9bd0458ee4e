#include "lab/train/feed.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>

namespace lms::train {
namespace {

class PinnedMemory : public data::BatchMemory {
 public:
  std::shared_ptr<void> allocate(std::size_t bytes) override {
    // PyTorch's pinned allocator keeps what it has pinned for the next batches.
    const torch::Tensor memory = torch::empty({static_cast<std::int64_t>(bytes)},
                                              torch::dtype(torch::kUInt8).pinned_memory(true));
    return {memory.data_ptr(), [memory](void*) {}};
  }
};

template <typename T>
torch::Tensor wrap(const data::Stack<T>& stack, torch::ScalarType type) {
  return torch::from_blob(
      stack.memory.get(), stack.shape, [memory = stack.memory](void*) {}, torch::dtype(type));
}

}  // namespace

std::shared_ptr<data::BatchMemory> batch_memory(const torch::Device& device) {
  if (device.is_cuda()) return std::make_shared<PinnedMemory>();
  return data::heap_memory();
}

struct Feed::Copying {
  data::Batch host;
  c10::Event done;
};

Feed::Feed(data::Loader& loader, zoo::Task task, const torch::Device& device)
    : loader_(loader), task_(task), device_(device) {}

void Feed::prefetch() {
  if (next_) return;
  const auto begin = std::chrono::steady_clock::now();
  std::optional<data::Batch> host = loader_.next();
  waited_ms_ +=
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  if (!host) return;
  const auto send = [&](const torch::Tensor& tensor) {
    return tensor.to(device_, /*non_blocking=*/true);
  };
  zoo::Batch batch;
  batch.input = send(wrap(host->input, torch::kFloat32));
  batch.target = send(wrap(host->target, torch::kUInt8));
  if (task_ == zoo::Task::kClassification) batch.target = batch.target.to(torch::kInt64);
  for (const auto& extra : host->extras) batch.extras.push_back(send(wrap(extra, torch::kUInt8)));
  next_names_ = host->names;
  next_ = std::move(batch);
  if (!device_.is_cuda()) return;
  while (!copying_.empty() && copying_.front()->done.query()) copying_.pop_front();
  copying_.push_back(std::make_shared<Copying>(
      Copying{std::move(*host), c10::Event(device_.type(), c10::EventFlag::PYTORCH_DEFAULT)}));
  copying_.back()->done.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

std::optional<zoo::Batch> Feed::take() {
  prefetch();
  std::optional<zoo::Batch> batch = std::move(next_);
  next_.reset();
  names_ = std::move(next_names_);
  return batch;
}

}  // namespace lms::train
