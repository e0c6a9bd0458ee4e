#include "adapters/torch/replay/lineages_order.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <mutex>
#include <unordered_set>
#include <utility>

namespace lms::torch {
namespace {

/// Nobody takes so long from letting go of a tensor to the end of its storage.
constexpr std::chrono::seconds kMostWait{10};

bool is_here(const Origin& origin) { return origin.ghost || !origin.storage.expired(); }

}  // namespace

Lineages::Order::Order(Lineages& lineages, const std::shared_ptr<Origin>& goal)
    : lineages_(lineages) {
  std::vector<Step> looked_at;  // destroyed without the lock
  std::unique_lock lock(lineages_.mutex_);
  // What is neither here nor can be computed is dying in another thread, and kept in a moment.
  const auto is_dying = [&](const Step& ghost) {
    return !lineages_.known(*ghost.origin) && !lineages_.ghosts_.contains(ghost.origin->uid);
  };
  const auto none_is_dying = [&] {
    std::ranges::move(ghosts_, std::back_inserter(looked_at));
    looked_at.push_back({.reads = std::move(leaves_)});
    looked_at.push_back(std::move(goal_));
    ghosts_.clear();
    goal_ = step_of(goal);
    leaves_ = find_leaves(goal_, &ghosts_);
    return std::ranges::none_of(ghosts_, is_dying);
  };
  (void)lineages_.kept_.wait_for(lock, kMostWait, none_is_dying);
  for (const auto& leaf : leaves_) ++leaf->wanted;
  find_dropped();
  for (const Step& ghost : ghosts_) hold(ghost);
  hold(goal_);
}

Lineages::Order::~Order() {
  const Guard guard(lineages_.mutex_);
  for (const auto& leaf : leaves_) --leaf->wanted;
  for (const Step& step : dropped_) {
    for (const auto& leaf : step.reads) --leaf->wanted;
  }
}

Lineages::Step Lineages::Order::step_of(const std::shared_ptr<Origin>& origin) const {
  Step step{.origin = origin, .calls = origin->calls, .result = origin->result};
  std::unordered_set<const Origin*> met{origin.get()};
  for (const TensorSpec* spec : lineages_.specs_read(*origin)) {
    if (spec->origin && met.insert(spec->origin.get()).second) step.reads.push_back(spec->origin);
  }
  return step;
}

std::vector<std::shared_ptr<Origin>> Lineages::Order::find_leaves(const Step& step,
                                                                  std::vector<Step>* ghosts) const {
  struct Visit {
    Step step;
    std::size_t next = 0;
  };
  std::vector<std::shared_ptr<Origin>> leaves;
  std::unordered_set<const Origin*> met{step.origin.get()};
  std::vector<Visit> path;
  path.push_back({step});
  while (!path.empty()) {
    Visit& visit = path.back();
    if (visit.next < visit.step.reads.size()) {
      const auto origin = visit.step.reads[visit.next++];
      if (!met.insert(origin.get()).second) continue;
      if (is_here(*origin)) {
        leaves.push_back(origin);
      } else {
        path.push_back({step_of(origin)});
      }
      continue;
    }
    if (ghosts != nullptr && path.size() > 1) ghosts->push_back(std::move(visit.step));
    path.pop_back();
  }
  return leaves;
}

void Lineages::Order::find_dropped() {
  struct Visit {
    Step step;
    std::size_t next = 0;
  };
  std::unordered_set<const Origin*> met{goal_.origin.get()};
  std::vector<Visit> path;
  path.push_back({Step{.reads = leaves_}});
  while (!path.empty()) {
    Visit& visit = path.back();
    if (visit.next < visit.step.reads.size()) {
      const auto origin = visit.step.reads[visit.next++];
      if (!origin->dropped || !met.insert(origin.get()).second) continue;
      Step step = step_of(origin);
      step.dropped = origin->storage.lock();
      if (!step.dropped) continue;
      step.reads = find_leaves(step, nullptr);
      for (const auto& leaf : step.reads) ++leaf->wanted;
      path.push_back({std::move(step)});
      continue;
    }
    if (path.size() > 1) dropped_.push_back(std::move(visit.step));
    path.pop_back();
  }
}

void Lineages::Order::hold(const Step& step) {
  for (const auto& origin : step.reads) {
    Held& held = held_[origin.get()];
    ++held.readers;
    if (!held.storage) held.storage = origin->storage.lock();
    if (!held.storage) held.storage = origin->ghost;
  }
}

void Lineages::Order::let_go(const Step& step) {
  for (const auto& origin : step.reads) {
    if (Held& held = held_[origin.get()]; --held.readers == 0) held.storage.reset();
  }
}

void Lineages::Order::is_there(const Step& dropped) {
  const auto at = static_cast<std::size_t>(&dropped - dropped_.data());
  const auto leaves = std::move(dropped_[at].reads);  // destroyed without the lock
  const Guard guard(lineages_.mutex_);
  for (const auto& leaf : leaves) --leaf->wanted;
}

void Lineages::Order::put(const Step& ghost, Storage storage) {
  held_[ghost.origin.get()].storage = std::move(storage);
  let_go(ghost);
}

Lineages::Storage Lineages::Order::find(const Origin& origin) const {
  const auto found = held_.find(&origin);
  return found == held_.end() ? Storage() : found->second.storage;
}

}  // namespace lms::torch
