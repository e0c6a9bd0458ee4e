#pragma once

// Batches, made ahead of time by worker threads.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lab/datasets/dataset.h"

namespace lms::data {

/// Where batches lie. Thread-safe.
class BatchMemory {
 public:
  virtual ~BatchMemory() = default;
  /// At least `bytes` bytes, aligned for any type, released with the last copy of the pointer. What
  /// it throws is thrown by Loader::next().
  virtual std::shared_ptr<void> allocate(std::size_t bytes) = 0;
};

/// Of the process's heap.
std::shared_ptr<BatchMemory> heap_memory();

/// Samples of equal shape, one after the other.
template <typename T>
struct Stack {
  std::vector<std::int64_t> shape;  ///< N first
  std::shared_ptr<void> memory;
  [[nodiscard]] T* data() const { return static_cast<T*>(memory.get()); }
};

struct Batch {
  std::size_t epoch = 0;
  std::size_t index = 0;  ///< within its epoch
  std::vector<std::string> names;
  Stack<float> input;
  Stack<std::uint8_t> target;  ///< where a sample's target is {1}, one of {N}
  std::vector<Stack<std::uint8_t>> extras;
};

struct LoaderOptions {
  std::size_t batch = 1;
  std::size_t workers = 2;  ///< at least 1
  std::size_t ahead = 3;    ///< batches that may lie ready or in work, at least 1
  bool shuffle = true;      ///< in an order of its own every epoch
  bool drop_last = true;    ///< leaves out an epoch's last batch where it is not full
  std::uint64_t seed = 0;
  std::size_t epochs = 0;                         ///< 0: without end
  std::shared_ptr<BatchMemory> memory = nullptr;  ///< null: heap_memory()
};

/// What the pipeline has done so far.
struct LoaderStatistics {
  std::size_t batches = 0;        ///< delivered
  double seconds_waited = 0;      ///< by next(), for batches that were not ready
  double seconds_in_workers = 0;  ///< in getting samples and laying them into batches, all workers
};

/// Goes through a data set epoch by epoch, and prepares the next epoch during the last one's end.
///
/// What a batch holds is a function of (data set, seed, epoch, index) alone: whatever the workers,
/// and wherever the loader was started. One thread calls next(); the destructor waits for the
/// samples that are being made, not for batches.
class Loader {
 public:
  /// Starts at batch `batch` of epoch `epoch` (which may be one past its epoch's last). Throws
  /// DataError where not one batch can be made, BadSetting for options that make no sense.
  Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options, std::size_t epoch = 0,
         std::size_t batch = 0);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next batch, nothing after the last epoch. An exception of a worker is thrown in place of
  /// the batch that it belongs to, of several that of the first sample; the call after that gives
  /// the batch that follows. Samples whose shapes differ are a DataError.
  std::optional<Batch> next();

  [[nodiscard]] LoaderStatistics statistics() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lms::data
