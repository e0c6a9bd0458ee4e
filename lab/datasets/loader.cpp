#include "lab/datasets/loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <numeric>
#include <thread>

#include "lab/datasets/random.h"

namespace lms::data {
namespace {

using Clock = std::chrono::steady_clock;
using Shape = std::vector<std::int64_t>;

class HeapMemory : public BatchMemory {
 public:
  std::shared_ptr<void> allocate(std::size_t bytes) override {
    constexpr std::align_val_t kAlignment{64};
    return {::operator new(std::max<std::size_t>(1, bytes), kAlignment),
            [](void* memory) { ::operator delete(memory, kAlignment); }};
  }
};

/// What has to be equal in all samples of a batch.
struct Shapes {
  Shape input;
  Shape target;
  std::vector<Shape> extras;
  bool operator==(const Shapes&) const = default;

  static Shapes of(const Sample& sample) {
    Shapes shapes{sample.input.shape, sample.target.shape, {}};
    for (const Array<std::uint8_t>& extra : sample.extras) shapes.extras.push_back(extra.shape);
    return shapes;
  }
  [[nodiscard]] std::string text() const {
    std::string all = "input " + side_text(input) + ", target " + side_text(target);
    for (const Shape& extra : extras) all += ", extra " + side_text(extra);
    return all;
  }

 private:
  static std::string side_text(const Shape& shape) {
    std::string text;
    for (const std::int64_t side : shape) text += (text.empty() ? "" : "x") + std::to_string(side);
    return text;
  }
};

template <typename T>
void stack_up(Stack<T>& stack, const Shape& shape, std::size_t count, BatchMemory& memory) {
  stack.shape = {static_cast<std::int64_t>(count)};
  // A single number is no axis of its own: N classes are {N}.
  if (shape != Shape{1}) stack.shape.insert(stack.shape.end(), shape.begin(), shape.end());
  const auto values =
      std::accumulate(stack.shape.begin(), stack.shape.end(), std::int64_t{1}, std::multiplies<>());
  stack.memory = memory.allocate(static_cast<std::size_t>(values) * sizeof(T));
}

template <typename T>
void lay(Stack<T>& stack, const Array<T>& array, std::size_t item) {
  if (array.values.empty()) return;
  std::memcpy(stack.data() + item * array.values.size(), array.values.data(),
              array.values.size() * sizeof(T));
}

template <typename T>
void check_values(const Array<T>& array, const char* what) {
  const auto values =
      std::accumulate(array.shape.begin(), array.shape.end(), std::int64_t{1}, std::multiplies<>());
  if (static_cast<std::int64_t>(array.values.size()) == values) return;
  throw DataError(std::string(what) + " has " + std::to_string(array.values.size()) +
                  " values; its shape has " + std::to_string(values));
}

/// One batch in work.
struct Slot {
  Batch batch;
  std::vector<std::size_t> indices;
  std::vector<Shapes> shapes;              // of the samples that were made
  std::vector<std::exception_ptr> errors;  // of those that were not
  std::mutex shaping;                      // the first sample that is made lays out the memory
  bool shaped = false;
  Shapes shape;  // for which it is laid out
  std::size_t taken = 0;
  std::size_t done = 0;
};

}  // namespace

std::shared_ptr<BatchMemory> heap_memory() { return std::make_shared<HeapMemory>(); }

class Loader::Impl {
 public:
  Impl(std::shared_ptr<const Dataset> dataset, LoaderOptions options, std::size_t epoch,
       std::size_t batch)
      : dataset_(std::move(dataset)), options_(std::move(options)), epoch_(epoch), batch_(batch) {
    if (options_.batch == 0 || options_.workers == 0 || options_.ahead == 0) {
      throw BadSetting("Loader: batch, workers and ahead are to be at least 1");
    }
    if (!options_.memory) options_.memory = heap_memory();
    const std::size_t size = dataset_->size();
    per_epoch_ =
        options_.drop_last ? size / options_.batch : (size + options_.batch - 1) / options_.batch;
    if (per_epoch_ == 0) {
      throw DataError("the data set has " + std::to_string(size) +
                      " samples, fewer than one batch of " + std::to_string(options_.batch));
    }
    if (batch_ > per_epoch_) {
      throw BadSetting("Loader: there is no batch " + std::to_string(batch_) + "; an epoch has " +
                       std::to_string(per_epoch_));
    }
    threads_.reserve(options_.workers);
    try {
      for (std::size_t i = 0; i < options_.workers; ++i) threads_.emplace_back([this] { work(); });
    } catch (...) {
      stop();
      throw;
    }
  }

  ~Impl() { stop(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::optional<Batch> next() {
    std::unique_lock lock(mutex_);
    const auto ready = [&] {
      return slots_.empty() ? ended() || failure_
                            : slots_.front()->done == slots_.front()->indices.size();
    };
    if (!ready()) {
      const Clock::time_point begin = Clock::now();
      made_.wait(lock, ready);
      statistics_.seconds_waited += std::chrono::duration<double>(Clock::now() - begin).count();
    }
    if (slots_.empty() && failure_) std::rethrow_exception(failure_);
    if (slots_.empty()) return std::nullopt;
    const std::shared_ptr<Slot> slot = slots_.front();
    slots_.pop_front();
    room_.notify_all();
    ++statistics_.batches;
    lock.unlock();
    check(*slot);
    return std::move(slot->batch);
  }

  [[nodiscard]] LoaderStatistics statistics() const {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }

 private:
  [[nodiscard]] bool ended() const {
    return options_.epochs != 0 &&
           (epoch_ >= options_.epochs || (epoch_ + 1 == options_.epochs && batch_ >= per_epoch_));
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    room_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  /// The lock is held. Null where nothing can be taken now.
  std::shared_ptr<Slot> slot_with_work() {
    if (!slots_.empty() && slots_.back()->taken < slots_.back()->indices.size()) {
      return slots_.back();
    }
    if (slots_.size() >= options_.ahead || ended()) return nullptr;
    if (batch_ >= per_epoch_) {
      ++epoch_;
      batch_ = 0;
    }
    if (ordered_epoch_ != epoch_) {
      order_.resize(dataset_->size());
      if (options_.shuffle) {
        order_ = permutation(dataset_->size(), mixed(options_.seed, epoch_));
      } else {
        std::iota(order_.begin(), order_.end(), std::size_t{0});
      }
      ordered_epoch_ = epoch_;
    }
    auto slot = std::make_shared<Slot>();
    slot->batch.epoch = epoch_;
    slot->batch.index = batch_;
    const std::size_t begin = batch_ * options_.batch;
    const std::size_t end = std::min(begin + options_.batch, order_.size());
    slot->indices.assign(order_.begin() + static_cast<std::ptrdiff_t>(begin),
                         order_.begin() + static_cast<std::ptrdiff_t>(end));
    slot->batch.names.resize(slot->indices.size());
    slot->shapes.resize(slot->indices.size());
    slot->errors.resize(slot->indices.size());
    slots_.push_back(slot);
    ++batch_;
    return slot;
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      std::shared_ptr<Slot> slot;
      room_.wait(lock, [&] {
        if (stopping_) return true;
        try {
          slot = slot_with_work();
        } catch (...) {  // there is no memory for the order of an epoch
          failure_ = std::current_exception();
          stopping_ = true;
          made_.notify_all();
        }
        return stopping_ || slot != nullptr;
      });
      if (stopping_) return;
      const std::size_t item = slot->taken++;
      lock.unlock();
      const Clock::time_point begin = Clock::now();
      try {
        make(*slot, item);
      } catch (...) {
        slot->errors[item] = std::current_exception();
      }
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      lock.lock();
      statistics_.seconds_in_workers += seconds;
      if (++slot->done == slot->indices.size()) made_.notify_all();
    }
  }

  void make(Slot& slot, std::size_t item) const {
    const std::size_t index = slot.indices[item];
    const std::uint64_t seed = mixed(mixed(options_.seed, slot.batch.epoch), index);
    const Sample sample = dataset_->get(index, seed);
    check_values(sample.input, "the input");
    check_values(sample.target, "the target");
    for (const Array<std::uint8_t>& extra : sample.extras) check_values(extra, "an extra");
    slot.batch.names[item] = sample.name;
    slot.shapes[item] = Shapes::of(sample);
    shape(slot, slot.shapes[item]);
    if (slot.shapes[item] != slot.shape) return;  // check() says so, whoever came first
    lay(slot.batch.input, sample.input, item);
    lay(slot.batch.target, sample.target, item);
    for (std::size_t i = 0; i < sample.extras.size(); ++i) {
      lay(slot.batch.extras[i], sample.extras[i], item);
    }
  }

  /// Throws what allocate() throws; the next sample then tries again.
  void shape(Slot& slot, const Shapes& shapes) const {
    const std::lock_guard lock(slot.shaping);
    if (slot.shaped) return;
    const std::size_t count = slot.indices.size();
    BatchMemory& memory = *options_.memory;
    slot.batch.extras.resize(shapes.extras.size());
    stack_up(slot.batch.input, shapes.input, count, memory);
    stack_up(slot.batch.target, shapes.target, count, memory);
    for (std::size_t i = 0; i < shapes.extras.size(); ++i) {
      stack_up(slot.batch.extras[i], shapes.extras[i], count, memory);
    }
    slot.shape = shapes;
    slot.shaped = true;
  }

  /// All samples are made: throws for the first that has failed, or is of another shape.
  static void check(const Slot& slot) {
    for (std::size_t item = 0; item < slot.indices.size(); ++item) {
      if (slot.errors[item]) std::rethrow_exception(slot.errors[item]);
      if (slot.shapes[item] == slot.shapes[0]) continue;
      throw DataError("samples of one batch differ in shape: " + slot.batch.names[0] + " has " +
                      slot.shapes[0].text() + ", but " + slot.batch.names[item] + " has " +
                      slot.shapes[item].text() + "; crop or resize them, or take batches of 1");
    }
  }

  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  std::size_t per_epoch_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable room_;  // for workers: there may be something to take
  std::condition_variable made_;  // for next(): a batch is complete
  bool stopping_ = false;
  std::exception_ptr failure_;  // after the slots that there are, nothing can be made
  std::size_t epoch_;           // of the batch that is begun next
  std::size_t batch_;
  std::vector<std::size_t> order_;
  std::optional<std::size_t> ordered_epoch_;
  std::deque<std::shared_ptr<Slot>> slots_;  // in order; work is taken from the last
  LoaderStatistics statistics_;
  std::vector<std::thread> threads_;
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options, std::size_t epoch,
               std::size_t batch)
    : impl_(std::make_unique<Impl>(std::move(dataset), std::move(options), epoch, batch)) {}

Loader::~Loader() = default;

std::optional<Batch> Loader::next() { return impl_->next(); }

LoaderStatistics Loader::statistics() const { return impl_->statistics(); }

}  // namespace lms::data
