#include "model_cuda/schedule.h"

#include <algorithm>

namespace model {

void Schedule::merge(Clock& into, const Clock& from) {
  for (const auto& [stream, number] : from) into[stream] = std::max(into[stream], number);
}

PointPtr Schedule::next(StreamId stream) {
  Stream& mine = streams_[stream];
  merge(mine.clock, host_);  // what the host knows to be done comes before what it queues
  auto point = std::make_shared<Point>();
  point->stream = stream;
  point->number = ++mine.clock[stream];
  point->before = mine.clock;
  return point;
}

void Schedule::check(StreamId stream, const Clock& before, const Touch& touch, const char* what) {
  const char* const end = touch.begin + touch.size;
  for (const Access& other : accesses_) {
    if (other.stream == stream || (!touch.writes && !other.touch.writes)) continue;
    if (other.touch.begin >= end || touch.begin >= other.touch.begin + other.touch.size) continue;
    const auto known = before.find(other.stream);
    if (known != before.end() && known->second >= other.number) continue;
    races_.push_back(std::string(what) + (touch.writes ? " writes" : " reads") + " on stream " +
                     std::to_string(stream) + " what " + other.what +
                     (other.touch.writes ? " writes" : " reads") + " on stream " +
                     std::to_string(other.stream));
  }
}

void Schedule::add(StreamId stream, std::vector<Touch> touches, std::function<void()> work,
                   const char* what) {
  PointPtr point = next(stream);
  for (const Touch& touch : touches) check(stream, point->before, touch, what);
  // What everybody has waited for can race with nobody: the host has.
  std::erase_if(accesses_, [&](const Access& old) {
    const auto known = host_.find(old.stream);
    return known != host_.end() && known->second >= old.number;
  });
  for (const Touch& touch : touches) accesses_.push_back({stream, point->number, touch, what});
  streams_[stream].queue.push_back({std::move(point), nullptr, std::move(work)});
}

PointPtr Schedule::record(StreamId stream) {
  PointPtr point = next(stream);
  streams_[stream].queue.push_back({point, nullptr, nullptr});
  return point;
}

void Schedule::wait(StreamId stream, const PointPtr& point) {
  merge(streams_[stream].clock, point->before);
  streams_[stream].queue.push_back({next(stream), point, nullptr});
}

void Schedule::run_until(const PointPtr& point) {
  while (!point->done) {
    Stream& stream = streams_.at(point->stream);
    Operation first = std::move(stream.queue.front());
    stream.queue.pop_front();
    if (first.waits_for) run_until(first.waits_for);
    if (first.work) first.work();
    first.point->done = true;
  }
}

void Schedule::finish(const PointPtr& point) {
  run_until(point);
  learn(point);
}

void Schedule::finish(StreamId stream) { finish(record(stream)); }

void Schedule::finish_all() {
  // The latest streams, which are the lanes as a rule, come last.
  std::vector<StreamId> all;
  for (const auto& [stream, state] : streams_) all.push_back(stream);
  for (const StreamId stream : all) finish(stream);
}

bool Schedule::idle(StreamId stream) {
  if (!streams_[stream].queue.empty()) return false;
  merge(host_, streams_[stream].clock);
  return true;
}

void Schedule::forget(const char* begin, std::size_t size) {
  std::erase_if(accesses_, [&](const Access& old) {
    return old.touch.begin < begin + size && begin < old.touch.begin + old.touch.size;
  });
}

}  // namespace model
