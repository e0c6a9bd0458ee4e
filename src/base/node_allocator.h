#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <unordered_map>
#include <utility>

namespace lms {

/// Pieces of memory of one size that nobody uses now. Not thread-safe.
class FreeNodes {
 public:
  FreeNodes() = default;
  ~FreeNodes() {
    while (first_ != nullptr) ::operator delete(std::exchange(first_, first_->next));
  }
  FreeNodes(const FreeNodes&) = delete;
  FreeNodes& operator=(const FreeNodes&) = delete;

  /// One of `size` bytes, as ::operator new gives them; made if there is none.
  void* take(std::size_t size) {
    if (size != size_ || first_ == nullptr) return ::operator new(size);
    return std::exchange(first_, first_->next);
  }
  /// Takes back what take(size) gave. The first size that comes back is the one that is kept.
  void give(void* memory, std::size_t size) noexcept {
    if (size_ == 0 && size >= sizeof(Node)) size_ = size;
    if (size != size_) {
      ::operator delete(memory);
      return;
    }
    first_ = ::new (memory) Node{first_};
  }

 private:
  struct Node {
    Node* next;
  };
  Node* first_ = nullptr;
  std::size_t size_ = 0;
};

/// Likewise for several threads. Nobody waits, as in a forked child nobody might let go: who finds
/// another there goes to the heap.
class SharedFreeNodes {
 public:
  void* take(std::size_t size) {
    const Hold hold(taken_);
    return hold.holds ? nodes_.take(size) : ::operator new(size);
  }
  void give(void* memory, std::size_t size) noexcept {
    const Hold hold(taken_);
    if (hold.holds) {
      nodes_.give(memory, size);
    } else {
      ::operator delete(memory);
    }
  }

 private:
  struct Hold {
    explicit Hold(std::atomic_flag& flag)
        : taken(flag), holds(!flag.test_and_set(std::memory_order_acquire)) {}
    ~Hold() {
      if (holds) taken.clear(std::memory_order_release);
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    std::atomic_flag& taken;
    const bool holds;
  };
  std::atomic_flag taken_;
  FreeNodes nodes_;
};

/// Gives the nodes of one container memory that others of them have had: what grows and shrinks all
/// the time then takes nothing from the heap. The container never gives any back before its end.
/// Whoever guards the container guards this as well; a copy of it has an allocator of its own.
template <typename T>
class NodeAllocator {
 public:
  using value_type = T;
  // NOLINTBEGIN(readability-identifier-naming): the standard's names
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;
  // NOLINTEND(readability-identifier-naming)
  static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);

  NodeAllocator() : free_(std::make_shared<FreeNodes>()) {}
  template <typename U>
  NodeAllocator(const NodeAllocator<U>& other) noexcept : free_(other.free_) {}

  // NOLINTBEGIN(bugprone-sizeof-expression): of nodes, whatever they are
  [[nodiscard]] T* allocate(std::size_t count) {
    if (count == 1) return static_cast<T*>(free_->take(sizeof(T)));
    return static_cast<T*>(::operator new(count * sizeof(T)));
  }
  void deallocate(T* memory, std::size_t count) noexcept {
    if (count == 1) {
      free_->give(memory, sizeof(T));
    } else {
      ::operator delete(memory);
    }
  }
  // NOLINTEND(bugprone-sizeof-expression)
  [[nodiscard]] NodeAllocator select_on_container_copy_construction() const { return {}; }

  template <typename U>
  bool operator==(const NodeAllocator<U>& other) const noexcept {
    return free_ == other.free_;
  }

 private:
  template <typename U>
  friend class NodeAllocator;

  std::shared_ptr<FreeNodes> free_;
};

template <typename Key, typename Value>
using PooledMap = std::unordered_map<Key, Value, std::hash<Key>, std::equal_to<Key>,
                                     NodeAllocator<std::pair<const Key, Value>>>;

}  // namespace lms
