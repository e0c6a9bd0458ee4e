#include "plan/swap/scheduler.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace lms {
namespace {

/// How far past a copy out that cannot start yet to look for one that can.
constexpr int kLookPast = 16;

}  // namespace

Scheduler::Scheduler(const StepModel& model, const LinkModel& link, Bytes budget, int cut)
    : model_(model),
      budget_(budget),
      operators_(model.operators),
      cut_(cut),
      boundary_(cut == 0 ? 0 : model.operators - cut),
      in_rate_(link.in_bytes_per_ms),
      latency_(link.latency_ms),
      out_rate_(link.out_bytes_per_ms),
      host_(link.host),
      clock_(link),
      places_(model.gaps.size()) {
  const int n = operators_;
  if (!model.host_ms.empty() && !model.waits) {
    const double all = std::accumulate(model.host_ms.begin(), model.host_ms.end(), 0.0);
    // Where it takes nearly as long as the device, it is hardly ahead of it.
    constexpr double kAhead = 0.8;
    const double part = all / std::max(model.begins.back(), 1e-9);
    lead_ms_ =
        host_lead(all, model.host_ms.size()) * std::clamp((1 - part) / (1 - kAhead), 0.0, 1.0);
  }
  const auto rotated = [&](int op) { return ((op - cut) % n + n) % n; };
  for (int g = 0; g < static_cast<int>(model.gaps.size()); ++g) {
    const Gap& gap = this->gap(g);
    Place& place = this->place(g);
    // What begins at the cut is away there: it leaves at the end.
    const auto after_cut = [&](int op) { return rotated(op) == 0 ? n : rotated(op); };
    place.begin = after_cut(gap.begin);
    const int end = place.begin + gap.end - gap.begin;
    place.covers = end > n;
    place.need = place.covers ? end - n : end;
    place.ready = after_cut(model.versions[static_cast<std::size_t>(gap.version)].ready);
    const bool late = place.begin >= place.ready;
    if (!late) place.ready = 0;
    place.copy = 2 * gap.version + (late ? 1 : 0);
    place.copy_in_ms = latency_ + static_cast<double>(gap.bytes) / in_rate_;
  }
  by_begin_.resize(model.gaps.size());
  std::iota(by_begin_.begin(), by_begin_.end(), 0);
  by_need_ = by_begin_;
  std::ranges::stable_sort(by_begin_, {}, [&](int g) { return this->place(g).begin; });
  std::ranges::stable_sort(by_need_, {}, [&](int g) { return this->place(g).need; });
  for (int rank = 0; const int g : by_need_) this->place(g).rank = rank++;
  for (int r = 0; r <= n; ++r) {
    const int op = r + cut;
    begins_.push_back(op <= n ? model.begins[static_cast<std::size_t>(op)] -
                                    model.begins[static_cast<std::size_t>(cut)]
                              : model.begins.back() - model.begins[static_cast<std::size_t>(cut)] +
                                    model.begins[static_cast<std::size_t>(op - n)]);
  }
}

void Scheduler::prepare(const EvictionSet& evictions) {
  clock_.reset(lead_ms_);
  leavers_.clear();
  needers_.clear();
  for (const int g : by_begin_) {
    if (evictions.has(g)) leavers_.push_back(g);
  }
  copiers_ = leavers_;
  if (!tactics_.delays.empty()) {
    std::ranges::stable_sort(copiers_, {}, [&](int g) {
      return place(g).begin + tactics_.delays[static_cast<std::size_t>(g)];
    });
  }
  for (const int g : by_need_) {
    if (evictions.has(g)) needers_.push_back(g);
  }
  states_.assign(places_.size(), State::kHere);
  tickets_.resize(places_.size());
  copies_.resize(2 * model_.versions.size());
  for (std::size_t v = 0; v < model_.versions.size(); ++v) {
    copies_[2 * v] = copies_[2 * v + 1] = {.valid = model_.versions[v].clean};
  }
  room_ = evictions.room();
  std::ranges::rotate(room_, room_.begin() + cut_);
  device_ = model_.before[static_cast<std::size_t>(cut_)];
  away_.clear();
  for (const int g : needers_) {
    const Place& where = place(g);
    // One that leaves before the cut has a valid copy after it.
    if (where.copy % 2 == 1) copies_[static_cast<std::size_t>(where.copy - 1)].valid = true;
    if (!where.covers) continue;
    device_ -= gap(g).bytes;
    state(g) = State::kAway;
    if (gap(g).returns) away_.push_back(where.rank);
  }
  std::ranges::make_heap(away_, std::greater<>{});
  plan_arrivals();
  idle_.clear();
  started_.clear();
  events_.clear();
  reopen_copiers();
  next_leaver_ = next_needer_ = 0;
  blocked_gap_ = -1;
}

void Scheduler::plan_arrivals() {
  latest_.resize(places_.size());
  double latest = std::numeric_limits<double>::infinity();
  for (std::size_t i = needers_.size(); i-- > 0;) {
    const int g = needers_[i];
    if (!gap(g).returns) continue;
    const Place& where = place(g);
    latest = std::min(latest, begins_[static_cast<std::size_t>(where.need)]) - where.copy_in_ms;
    latest_[static_cast<std::size_t>(g)] = latest;
  }
}

double Scheduler::run(const EvictionSet& evictions, const Tactics& tactics) {
  tactics_ = tactics;
  prepare(evictions);
  for (at_ = 0; at_ < operators_; ++at_) {
    now_ = operator_at(at_);
    if (now_ == 0) {
      cross_boundary();
    } else {
      run_operator();
    }
  }
  finish();
  // In the long run the host's lead is no help.
  return std::max(clock_.now(), clock_.issued());
}

void Scheduler::run_operator() {
  const auto op = static_cast<std::size_t>(now_);
  const double ms = model_.ms[op];
  begin_gaps();
  end_gaps();
  double arrivals = 0;
  for (const int g : due_) {
    if (state(g) != State::kHere) arrivals = clock_.in_backlog() + place(g).copy_in_ms;
  }
  feed_out(arrivals + ms);
  for (const int g : due_) {
    if (state(g) != State::kAway) continue;
    make_room(gap(g).bytes);
    start_in(g);
  }
  if (device_ + model_.taken[op] > budget_) feed_in(clock_.out_backlog());
  make_room(model_.taken[op]);
  feed_in(ms);
  for (const int g : due_) {
    if (state(g) == State::kArriving) clock_.wait_in(tickets_[static_cast<std::size_t>(g)]);
    state(g) = State::kHere;
  }
  feed_out(ms);
  feed_in(ms);
  if (!model_.host_ms.empty()) clock_.issue(model_.host_ms[op]);
  clock_.compute(ms);
  if (!model_.host_waits.empty() && model_.host_waits[op] != 0) clock_.host_waits();
  device_ += model_.born[op] - model_.freed[op];
}

void Scheduler::begin_gaps() {
  for (; next_leaver_ < leavers_.size(); ++next_leaver_) {
    const int g = leavers_[next_leaver_];
    if (place(g).begin > at_) break;
    state(g) = State::kHere;
    idle_.push_back(g);
  }
}

/// Notes in due_ the gaps whose blocks are wanted now.
void Scheduler::end_gaps() {
  due_.clear();
  for (; next_needer_ < needers_.size(); ++next_needer_) {
    const int g = needers_[next_needer_];
    if (place(g).need > at_) break;
    if (state(g) == State::kHere) {
      std::erase(idle_, g);
    } else if (!gap(g).returns) {
      device_ += gap(g).bytes;  // it died below, and was taken off as if it had been here
    } else {
      due_.push_back(g);
    }
  }
}

/// One step ends and the next begins: nothing may be on its way out.
void Scheduler::cross_boundary() {
  begin_gaps();
  end_gaps();
  for (std::size_t i = idle_.size(); i-- > 0;) {
    if (i < idle_.size() && copy_of(idle_[i]).event != kNoEvent) leave(idle_[i]);
  }
  while (!started_.empty()) forget(started_.back());
  bring_due();
  make_room(model_.taken.front());
  device_ += model_.born.front() - model_.freed.front();
  turn_ = events_.size();
  reopen_copiers();
}

void Scheduler::finish() {
  now_ = cut_;
  begin_gaps();
  for (std::size_t i = idle_.size(); i-- > 0;) {
    if (i < idle_.size() && place(idle_[i]).covers) leave(idle_[i]);
  }
  end_gaps();
  bring_due();
  while (!started_.empty()) forget(started_.back());
}

/// The blocks of due_ are there.
void Scheduler::bring_due() {
  for (const int g : due_) {
    if (state(g) == State::kAway) {
      make_room(gap(g).bytes);
      start_in(g);
    }
  }
  for (const int g : due_) {
    clock_.wait_in(tickets_[static_cast<std::size_t>(g)]);
    state(g) = State::kHere;
  }
}

/// A copy that nobody has finished: its start is taken back.
void Scheduler::forget(int copy) {
  Copy& what = copies_[static_cast<std::size_t>(copy)];
  events_[static_cast<std::size_t>(what.event)].cancelled = true;
  what.event = kNoEvent;
  std::erase(started_, copy);
}

void Scheduler::reopen_copiers() {
  skip_.resize(copiers_.size());
  std::iota(skip_.begin(), skip_.end(), std::size_t{0});
}

/// The first at or after `i` that may still want a copy out.
std::size_t Scheduler::open_copier(std::size_t i) {
  while (i < copiers_.size() && skip_[i] > i) {
    const std::size_t next = skip_[i];
    if (next < copiers_.size()) skip_[i] = skip_[next];
    i = next;
  }
  return i;
}

void Scheduler::feed_out(double horizon) {
  horizon += tactics_.store_ms;
  double backlog = clock_.out_backlog();
  int passed = 0;
  for (std::size_t i = open_copier(0); i < copiers_.size() && backlog < horizon;
       i = open_copier(i + 1)) {
    const int g = copiers_[i];
    const Place& where = place(g);
    const Copy& copy = copy_of(g);
    const bool over = !where.covers && where.need <= at_;
    if (over || copy.valid || copy.event != kNoEvent) {
      skip_[i] = i + 1;
      continue;
    }
    if (where.ready > at_ || (at_ < boundary_ && where.begin > boundary_)) {
      if (++passed > kLookPast) return;
      continue;
    }
    const double takes = latency_ + static_cast<double>(gap(g).bytes) / out_rate_;
    if (at_ < boundary_) {
      // Nothing may be under way when the step ends.
      const double left =
          begins_[static_cast<std::size_t>(boundary_)] - begins_[static_cast<std::size_t>(at_)];
      if (backlog + takes > left + clock_.in_backlog()) return;
    }
    start_out(g);
    skip_[i] = i + 1;
    backlog += takes;
  }
}

bool Scheduler::room_until(int need, Bytes bytes) {
  for (int r = at_; r < need; ++r) {
    if (room_[static_cast<std::size_t>(r)] < bytes) {
      blocked_until_ = r;
      return false;
    }
  }
  return true;
}

void Scheduler::feed_in(double horizon) {
  horizon += tactics_.store_ms;
  const Bytes taken = model_.taken[static_cast<std::size_t>(now_)];
  while (!away_.empty() && clock_.in_backlog() < horizon) {
    const int g = by_need_[static_cast<std::size_t>(away_.front())];
    const Place& where = place(g);
    // It came in when it was due, and may have left again, over the cut.
    if (state(g) != State::kAway || where.need <= at_) {
      std::ranges::pop_heap(away_, std::greater<>{});
      away_.pop_back();
      continue;
    }
    // The next chance comes after this operator.
    if (begins_[static_cast<std::size_t>(at_) + 1] <
        latest_[static_cast<std::size_t>(g)] - tactics_.lead_ms) {
      return;
    }
    const Bytes bytes = gap(g).bytes;
    if (g == blocked_gap_ && at_ <= blocked_until_) return;
    if (!room_until(where.need, bytes)) {
      blocked_gap_ = g;
      return;
    }
    if (!make_free_room(bytes + taken, where.need)) return;
    for (int r = at_; r < where.need; ++r) room_[static_cast<std::size_t>(r)] -= bytes;
    start_in(g);
  }
}

void Scheduler::tell(Action action, int g) {
  // Before the model's operator 0 is after the trace's last.
  const int before = now_ == 0 ? operators_ - 2 : now_ - 1;
  events_.push_back({before, action, gap(g).block});
}

void Scheduler::start_out(int g) {
  Copy& copy = copy_of(g);
  issue(host_.copy_ms);
  copy.ticket = clock_.start_out(gap(g).bytes);
  copy.event = static_cast<std::int32_t>(events_.size());
  started_.push_back(place(g).copy);
  tell(Action::kStartOut, g);
}

void Scheduler::start_in(int g) {
  tell(Action::kStartIn, g);
  issue(host_.copy_ms);
  tickets_[static_cast<std::size_t>(g)] = clock_.start_in(gap(g).bytes);
  device_ += gap(g).bytes;
  state(g) = State::kArriving;
}

void Scheduler::leave(int g) {
  Copy& copy = copy_of(g);
  if (copy.event == kNoEvent) {
    if (copy.valid) {
      tell(Action::kStartOut, g);
    } else {
      start_out(g);
    }
  }
  if (copy.event != kNoEvent) {
    clock_.wait_out(copy.ticket);
    copy.event = kNoEvent;
    std::erase(started_, place(g).copy);
  }
  copy.valid = true;
  issue(host_.leave_ms);
  tell(Action::kFinishOut, g);
  device_ -= gap(g).bytes;
  state(g) = State::kAway;
  std::erase(idle_, g);
  if (!gap(g).returns || place(g).covers) return;
  away_.push_back(place(g).rank);
  std::ranges::push_heap(away_, std::greater<>{});
}

/// The idle block wanted last among those that can go at once, and later than `need`; or -1.
int Scheduler::free_victim(int need) {
  int best = -1;
  int best_until = need;
  for (const int g : idle_) {
    const Copy& copy = copy_of(g);
    const bool at_once = copy.valid || (copy.event != kNoEvent && clock_.out_done(copy.ticket));
    if (!at_once) continue;
    const int until = gap(g).returns ? this->until(g) : std::numeric_limits<int>::max();
    if (until > best_until) {
      best = g;
      best_until = until;
    }
  }
  return best;
}

int Scheduler::victim() {
  const int at_once = free_victim(-1);
  if (at_once >= 0) return at_once;
  int best = -1;
  auto best_ticket = std::numeric_limits<std::uint32_t>::max();
  for (const int g : idle_) {
    const Copy& copy = copy_of(g);
    if (copy.event != kNoEvent && copy.ticket < best_ticket) {
      best = g;
      best_ticket = copy.ticket;
    }
  }
  if (best >= 0 || idle_.empty()) return best;
  return *std::ranges::min_element(idle_, {}, [&](int g) { return place(g).begin; });
}

void Scheduler::make_room(Bytes bytes) {
  while (device_ + bytes > budget_) {
    const int g = victim();
    if (g < 0) return;
    leave(g);
  }
}

bool Scheduler::make_free_room(Bytes bytes, int need) {
  while (device_ + bytes > budget_) {
    const int g = free_victim(need);
    if (g < 0) return false;
    leave(g);
  }
  return true;
}

Plan Scheduler::plan() const {
  Plan plan;
  const auto add = [&](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) {
      const Event& event = events_[i];
      if (event.cancelled) continue;
      plan.directives.push_back(
          {static_cast<std::size_t>(event.before), event.action, event.block});
    }
  };
  add(turn_, events_.size());
  add(0, turn_);
  // What comes in before it leaves was away when the step began.
  std::vector<bool> seen(model_.blocks);
  for (const Directive& directive : plan.directives) {
    if (seen[directive.block]) continue;
    seen[directive.block] = true;
    if (directive.action == Action::kStartIn) plan.absent_at_start.push_back(directive.block);
  }
  std::ranges::sort(plan.absent_at_start);
  return plan;
}

}  // namespace lms
