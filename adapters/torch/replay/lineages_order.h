#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

#include "adapters/torch/replay/lineages.h"

namespace lms::torch {

/// What has to be there before a lineage can run, in an order in which each needs only those before
/// it. Made and used by one thread; takes Lineages' lock. While it lives, what it still needs is
/// not dropped.
///
/// What is dropped comes first, one block after the other: each is an ordinary block when it is
/// there, which may be evicted until it is read. Then come the ghosts without bytes that only this
/// lineage reads: they are blocks likewise, made for it alone, and go after their last reader. So a
/// long chain takes no more memory at once than one of its operators does, and no deep stack.
class Lineages::Order {
 public:
  Order(Lineages& lineages, const std::shared_ptr<Origin>& goal);
  ~Order();
  Order(const Order&) = delete;
  Order& operator=(const Order&) = delete;

  [[nodiscard]] const std::vector<Step>& dropped() const { return dropped_; }
  [[nodiscard]] const std::vector<Step>& ghosts() const { return ghosts_; }
  [[nodiscard]] const Step& goal() const { return goal_; }

  /// A dropped one is there.
  void is_there(const Step& dropped);
  /// A ghost's bytes, until everything that reads them is made.
  void put(const Step& ghost, Storage storage);
  /// The bytes of what a ghost or the goal reads; null: it was not there when this began.
  [[nodiscard]] Storage find(const Origin& origin) const;

 private:
  struct Held {
    Storage storage;
    std::size_t readers = 0;
  };
  Step step_of(const std::shared_ptr<Origin>& origin) const;
  /// What can be read as it is, or is dropped, and makes up `step` with nothing but `ghosts` in
  /// between, which come in order.
  std::vector<std::shared_ptr<Origin>> find_leaves(const Step& step,
                                                   std::vector<Step>* ghosts) const;
  void find_dropped();
  void hold(const Step& step);
  void let_go(const Step& step);

  Lineages& lineages_;
  Step goal_;
  std::vector<Step> ghosts_;
  std::vector<Step> dropped_;                    ///< `reads` are their leaves
  std::vector<std::shared_ptr<Origin>> leaves_;  ///< of the goal
  std::unordered_map<const Origin*, Held> held_;
};

}  // namespace lms::torch
