#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace model {

using StreamId = std::uint32_t;
/// Of each stream, how much of its work comes before.
using Clock = std::map<StreamId, std::uint64_t>;

/// A point in a stream's work.
struct Point {
  StreamId stream;
  std::uint64_t number;
  Clock before;  ///< all that is ordered before it, itself included
  bool done = false;
};
using PointPtr = std::shared_ptr<Point>;

/// Bytes that an operation reads or writes.
struct Touch {
  const char* begin;
  std::size_t size;
  bool writes;
};

/// A device's streams as CUDA promises them, and no more: work runs when the host waits for it, as
/// late as it may. Two operations of which neither is ordered after the other, and which touch the
/// same bytes, are a race if one of them writes, however they happen to run.
///
/// Not thread-safe.
class Schedule {
 public:
  /// Queues work.
  void add(StreamId stream, std::vector<Touch> touches, std::function<void()> work,
           const char* what);
  PointPtr record(StreamId stream);
  void wait(StreamId stream, const PointPtr& point);
  /// The host waits: runs what must have run.
  void finish(StreamId stream);
  void finish(const PointPtr& point);
  void finish_all();
  [[nodiscard]] bool idle(StreamId stream);
  /// The host has learnt that the point is done.
  void learn(const PointPtr& point) { merge(host_, point->before); }
  /// Nobody may use the bytes any more; what comes there later is other memory.
  void forget(const char* begin, std::size_t size);
  [[nodiscard]] const std::vector<std::string>& races() const { return races_; }
  void clear_races() { races_.clear(); }

 private:
  struct Operation {
    PointPtr point;
    PointPtr waits_for;  ///< null: none
    std::function<void()> work;
  };
  struct Stream {
    std::deque<Operation> queue;
    Clock clock;
  };
  struct Access {
    StreamId stream;
    std::uint64_t number;
    Touch touch;
    const char* what;
  };

  static void merge(Clock& into, const Clock& from);
  PointPtr next(StreamId stream);
  void run_until(const PointPtr& point);
  void check(StreamId stream, const Clock& before, const Touch& touch, const char* what);

  std::map<StreamId, Stream> streams_;
  Clock host_;
  std::vector<Access> accesses_;
  std::vector<std::string> races_;
};

}  // namespace model
