#include "bound/bound.h"

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "bound/linear_program.h"
#include "bound/lives.h"

namespace lms {
namespace {

using Column = LinearProgram::Column;
using Term = LinearProgram::Term;

/// The step, cut into stretches of operators of about the same time.
struct Bins {
  std::vector<int> of;          ///< each operator's bin
  std::vector<Moment> fullest;  ///< of each bin: the operator while which most bytes are alive
  std::vector<Bytes> live;      ///< of each bin: those bytes
  std::vector<double> ms;       ///< of each bin: the time of its operators

  [[nodiscard]] int count() const { return static_cast<int>(fullest.size()); }
};

Bins cut(const Trace& trace, const std::vector<Bytes>& live, double total_ms, int most) {
  Bins bins;
  double begin = 0;
  int last = -1;
  for (std::size_t i = 0; i < live.size(); ++i) {
    const double ms = trace.operators[i].ms;
    const double part = total_ms > 0 ? (begin + ms / 2) / total_ms : 0;
    const int wanted = std::min(most - 1, static_cast<int>(part * most));
    if (wanted > last) {
      last = wanted;
      bins.fullest.push_back(static_cast<Moment>(i));
      bins.live.push_back(live[i]);
      bins.ms.push_back(0);
    } else if (live[i] > bins.live.back()) {
      bins.fullest.back() = static_cast<Moment>(i);
      bins.live.back() = live[i];
    }
    bins.of.push_back(bins.count() - 1);
    bins.ms.back() += ms;
    begin += ms;
  }
  return bins;
}

/// A gap, in bins; those of the next step are numbered on.
struct BinnedGap {
  int first = 0;      ///< the first bin at whose fullest operator the block may be absent
  int last = 0;       ///< the last such bin
  int end = 0;        ///< the bin of the use that ends it; the block may come back until then
  bool back = false;  ///< whether it must come back
  double rate = -1;   ///< ms to recompute a byte; less than 0: that cannot be done

  auto operator<=>(const BinnedGap&) const = default;  // NOLINT(modernize-use-nullptr): not used
};

/// Versions that differ in nothing but their bytes: the program treats them as one.
struct Kind {
  int written = -1;  ///< bin; -1: copied out long ago
  std::vector<BinnedGap> gaps;

  auto operator<=>(const Kind&) const = default;  // NOLINT(modernize-use-nullptr): not used
};

Kind kind_of(const BoundVersion& version, const Bins& bins, Moment steps, bool recompute) {
  const auto bin = [&](Moment moment) {
    if (moment < 0) return 0;
    return bins.of[static_cast<std::size_t>(moment % steps)] +
           static_cast<int>(moment / steps) * bins.count();
  };
  Kind kind;
  if (version.written) kind.written = bin(*version.written);
  for (const BoundGap& gap : version.gaps) {
    BinnedGap binned;
    const int begin = bin(gap.begin);
    binned.end = bin(gap.ends_in_use ? gap.end : gap.end - 1);
    binned.back = gap.ends_in_use;
    bool any = false;
    for (int k = begin; k <= binned.end; ++k) {
      const Moment fullest =
          bins.fullest[static_cast<std::size_t>(k % bins.count())] + k / bins.count() * steps;
      if (fullest <= gap.begin || fullest >= gap.end) continue;
      if (!any) binned.first = k;
      binned.last = k;
      any = true;
    }
    if (!any) continue;
    if (recompute && version.recompute_ms) {
      binned.rate =
          gap.ends_in_use ? *version.recompute_ms / static_cast<double>(version.bytes) : 0;
    }
    kind.gaps.push_back(binned);
  }
  return kind;
}

/// The linear program. Bytes are counted in `unit_` and times in `tick_`, so that all numbers are
/// of a size that solvers like.
class Program {
 public:
  Program(const Bins& bins, const LinkModel& link, Bytes budget, double unit, double tick)
      : bins_(bins), unit_(unit), tick_(tick), lanes_(bins.fullest.size()) {
    for (const double ms : bins.ms) program_.column(1, ms / tick, kUnlimited);
    for (std::size_t k = 0; k < lanes_.size(); ++k) {
      lanes_[k].excess = static_cast<double>(bins.live[k] - budget) / unit;
    }
    out_rate_ = link.out_bytes_per_ms * tick / unit;
    in_rate_ = link.in_bytes_per_ms * tick / unit;
    // Two lanes that hinder each other much may do better one at a time.
    both_rate_ = std::max({2 * link.both_bytes_per_ms * tick / unit, out_rate_, in_rate_});
  }

  void add(const Kind& kind, double bytes) {
    const double size = bytes / unit_;
    if (kind.written < 0) {
      for (const BinnedGap& gap : kind.gaps) clean_gap(gap, size);
    } else if (kind.gaps.size() == 1) {
      only_gap(kind, size);
    } else {
      gaps_of_one_copy(kind, size);
    }
  }

  /// The least time of the step, in ms.
  std::optional<double> solve() {
    for (int k = 0; k < bins_.count(); ++k) close(k);
    const std::optional<double> ticks = minimum(program_);
    if (!ticks) return std::nullopt;
    return *ticks * tick_;
  }

 private:
  struct Lanes {
    std::vector<Term> out, in, absent, recomputed;
    double excess = 0;
  };

  Lanes& lanes(int bin) { return lanes_[static_cast<std::size_t>(bin % bins_.count())]; }

  Column copied_out(int bin) {
    const Column column = program_.column(0, 0, kUnlimited);
    lanes(bin).out.emplace_back(column, 1);
    return column;
  }
  Column paged_in(int bin) {
    const Column column = program_.column(0, 0, kUnlimited);
    lanes(bin).in.emplace_back(column, 1);
    return column;
  }
  Column absent(int bin, double size) {
    const Column column = program_.column(0, 0, size);
    lanes(bin).absent.emplace_back(column, 1);
    return column;
  }
  std::optional<Column> recomputed(const BinnedGap& gap, double size) {
    if (gap.rate < 0) return std::nullopt;
    const Column column = program_.column(0, 0, size);
    for (int k = gap.first; k <= gap.last; ++k) lanes(k).absent.emplace_back(column, 1);
    if (gap.rate > 0) lanes(gap.end).recomputed.emplace_back(column, gap.rate * unit_ / tick_);
    return column;
  }

  /// What is absent in the last bin comes back there or in the bin where it is used.
  void come_back(const BinnedGap& gap, Column absent_last) {
    if (!gap.back) return;
    std::vector<Term> terms = {{absent_last, -1}, {paged_in(gap.last), 1}};
    if (gap.end > gap.last) terms.emplace_back(paged_in(gap.end), 1);
    program_.row(0, kUnlimited, terms);
  }

  /// Contents that are below already: leaving is free.
  void clean_gap(const BinnedGap& gap, double size) {
    const auto again = recomputed(gap, size);
    Column before = 0;
    for (int k = gap.first; k <= gap.last; ++k) {
      const Column now = absent(k, size);
      if (k > gap.first) {
        program_.row(0, kUnlimited, {{paged_in(k - 1), 1}, {before, -1}, {now, 1}});
      }
      if (again) program_.row(-kUnlimited, size, {{now, 1}, {*again, 1}});
      before = now;
    }
    come_back(gap, before);
  }

  /// Contents with one gap: what is copied out in it is dropped at once, since coming back and
  /// leaving again within a gap gains nothing.
  void only_gap(const Kind& kind, double size) {
    const BinnedGap& gap = kind.gaps.front();
    std::vector<Term> all;
    std::vector<Term> terms;
    for (int k = kind.written; k < gap.first; ++k) terms.emplace_back(copied_out(k), 1);
    all = terms;
    Column before = 0;
    for (int k = gap.first; k <= gap.last; ++k) {
      terms.emplace_back(copied_out(k), 1);
      all.push_back(terms.back());
      if (k > gap.first) {
        terms.emplace_back(before, 1);
        terms.emplace_back(paged_in(k - 1), -1);
      }
      before = absent(k, size);
      terms.emplace_back(before, -1);
      program_.row(0, 0, terms);
      terms.clear();
    }
    come_back(gap, before);
    if (const auto again = recomputed(gap, size)) {
      all.emplace_back(*again, 1);
      program_.row(-kUnlimited, size, all);
    }
  }

  /// Contents with several gaps: one copy out serves them all.
  void gaps_of_one_copy(const Kind& kind, double size) {
    std::vector<Column> copied;  // by the end of each bin since it was written
    for (int k = kind.written; k <= kind.gaps.back().last; ++k) {
      const Column now = program_.column(0, 0, size);
      lanes(k).out.emplace_back(now, 1);
      if (!copied.empty()) {
        lanes(k).out.emplace_back(copied.back(), -1);
        program_.row(0, kUnlimited, {{now, 1}, {copied.back(), -1}});
      }
      copied.push_back(now);
    }
    for (const BinnedGap& gap : kind.gaps) {
      const auto again = recomputed(gap, size);
      Column before = 0;
      for (int k = gap.first; k <= gap.last; ++k) {
        const Column now = absent(k, size);
        program_.row(0, kUnlimited,
                     {{copied[static_cast<std::size_t>(k - kind.written)], 1}, {now, -1}});
        if (k > gap.first) {
          program_.row(0, kUnlimited, {{paged_in(k - 1), 1}, {before, -1}, {now, 1}});
        }
        if (again) program_.row(-kUnlimited, size, {{now, 1}, {*again, 1}});
        before = now;
      }
      come_back(gap, before);
    }
  }

  /// The rows of one bin.
  void close(int bin) {
    Lanes& own = lanes(bin);
    const Column time = bin;
    program_.row(own.excess, kUnlimited, own.absent);
    if (!own.recomputed.empty()) {
      std::vector<Term> terms = {{time, 1}};
      for (const auto& [column, rate] : own.recomputed) terms.emplace_back(column, -rate);
      program_.row(bins_.ms[static_cast<std::size_t>(bin)] / tick_, kUnlimited, terms);
    }
    std::vector<Term> both = own.out;
    both.insert(both.end(), own.in.begin(), own.in.end());
    const auto within = [&](std::vector<Term>& terms, double rate) {
      if (terms.empty()) return;
      terms.emplace_back(time, -rate);
      program_.row(-kUnlimited, 0, terms);
    };
    within(own.out, out_rate_);
    within(own.in, in_rate_);
    within(both, both_rate_);
  }

  const Bins& bins_;
  const double unit_;
  const double tick_;
  double out_rate_ = 0;
  double in_rate_ = 0;
  double both_rate_ = 0;
  LinearProgram program_;
  std::vector<Lanes> lanes_;
};

/// Most bytes that must be on the device at one time, whatever leaves it.
Bytes floor_of(const Trace& trace) {
  const std::vector<Bytes> least = trace.least_bytes();
  return least.empty() ? 0 : std::ranges::max(least);
}

}  // namespace

Bound bound(const Trace& trace, Bytes budget, const LinkModel& link, const BoundOptions& options) {
  if (options.bins < 1) throw BadSetting("bound(): bins must be at least 1");
  if (!(link.out_bytes_per_ms > 0) || !(link.in_bytes_per_ms > 0) ||
      !(link.both_bytes_per_ms > 0)) {
    throw BadSetting("bound(): the rates of the link must be more than 0");
  }
  const Trace split = split_lists(trace);
  if (floor_of(split) > budget) return {};
  double total_ms = 0;
  for (const TraceOperator& op : split.operators) total_ms += op.ms;
  Bound result{.feasible = true, .step_ms = total_ms};
  const std::vector<Bytes> live = split.live_bytes();
  const Bytes peak = live.empty() ? 0 : std::ranges::max(live);
  if (peak <= budget) return result;

  const Bins bins = cut(split, live, total_ms, options.bins);
  std::map<Kind, double> kinds;
  for (const BoundVersion& version : find_versions(split)) {
    Kind kind = kind_of(version, bins, static_cast<Moment>(live.size()), options.recompute);
    if (!kind.gaps.empty()) kinds[std::move(kind)] += static_cast<double>(version.bytes);
  }
  constexpr double kLargest = 50;
  Program program(bins, link, budget, static_cast<double>(peak) / kLargest,
                  total_ms > 0 ? total_ms / bins.count() : 1);
  for (const auto& [kind, bytes] : kinds) program.add(kind, bytes);
  const std::optional<double> step_ms = program.solve();
  if (!step_ms) return {};
  result.step_ms = std::max(total_ms, *step_ms);
  result.overhead = total_ms > 0 ? result.step_ms / total_ms - 1 : 0;
  return result;
}

}  // namespace lms
