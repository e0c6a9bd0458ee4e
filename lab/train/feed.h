#pragma once

#include <torch/torch.h>

#include <deque>
#include <memory>
#include <optional>

#include "lab/datasets/loader.h"
#include "lab/zoo/model.h"

namespace lms::train {

/// Pinned memory where the device is a GPU, the heap else.
std::shared_ptr<data::BatchMemory> batch_memory(const torch::Device& device);

/// A loader's batches on the device, one ahead: while the device computes on one, the next is
/// fetched, and its copy enqueued behind the computation, on the current stream.
class Feed {
 public:
  Feed(data::Loader& loader, zoo::Task task, const torch::Device& device);

  /// The next batch; nothing after the last.
  std::optional<zoo::Batch> take();
  /// Fetches the batch after that, if it has not been. To be called when work has been enqueued.
  void prefetch();

  /// Names of the samples of the batch that take() gave last.
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  /// Time that all fetches so far have waited for the workers.
  [[nodiscard]] double waited_ms() const { return waited_ms_; }

 private:
  struct Copying;

  data::Loader& loader_;
  zoo::Task task_;
  torch::Device device_;
  std::optional<zoo::Batch> next_;
  std::vector<std::string> next_names_;
  std::vector<std::string> names_;
  std::deque<std::shared_ptr<Copying>> copying_;  ///< host batches, until they have been copied
  double waited_ms_ = 0;
};

}  // namespace lms::train
