#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>

namespace lms {

/// Short lists, one for each number of an ascending row, that are forgotten in that order: only
/// the newest grows. A list keeps its address from when the next one is begun until it is
/// forgotten. Not thread-safe.
template <typename T>
class RunPool {
 public:
  /// The list of `number` begins; the one before it is closed.
  void begin(std::uint64_t number) {
    number_ = number;
    size_ = 0;
    if (!chunks_.empty()) chunks_.back().last = std::max(chunks_.back().last, number);
  }
  /// Appends to the newest list, which it returns as it then is.
  std::span<T> push(const T& item) {
    if (chunks_.empty() || chunks_.back().used == chunks_.back().capacity) grow();
    Chunk& chunk = chunks_.back();
    chunk.items[chunk.used++] = item;
    ++size_;
    return {&chunk.items[chunk.used - size_], size_};
  }
  /// The newest list begins anew.
  void restart() { size_ = 0; }
  /// The lists up to that of `number` are needed no more.
  void forget(std::uint64_t number) {
    while (chunks_.size() > 1 && chunks_.front().last <= number) {
      if (chunks_.front().capacity == kChunk) spare_ = std::move(chunks_.front().items);
      chunks_.pop_front();
    }
  }
  void clear() {
    chunks_.clear();
    size_ = 0;
  }

 private:
  static constexpr std::size_t kChunk = 4096;
  struct Chunk {
    std::unique_ptr<T[]> items;
    std::size_t capacity;
    std::size_t used;
    std::uint64_t last;  ///< number of the newest list in it
  };

  /// A list lies in one chunk: the newest one moves on with what it has.
  void grow() {
    const std::size_t capacity = std::max(kChunk, 2 * size_);
    Chunk chunk{nullptr, capacity, size_, number_};
    if (capacity == kChunk && spare_) {
      chunk.items = std::move(spare_);
    } else {
      chunk.items = std::make_unique_for_overwrite<T[]>(capacity);
    }
    if (size_ > 0) {
      const Chunk& from = chunks_.back();
      std::copy_n(&from.items[from.used - size_], size_, chunk.items.get());
    }
    chunks_.push_back(std::move(chunk));
  }

  std::deque<Chunk> chunks_;
  std::unique_ptr<T[]> spare_;
  std::uint64_t number_ = 0;
  std::size_t size_ = 0;  ///< of the newest list
};

}  // namespace lms
