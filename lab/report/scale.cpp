#include "lab/report/scale.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace lms::report {
namespace {

/// The distance of at most `most` ticks over `range`.
double step_of(double range, int most) {
  const double raw = range / std::max(most - 1, 1);
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

bool is_range(double low, double high) {
  return std::isfinite(low) && std::isfinite(high) && high > low;
}

bool apart(const Span& a, double at_a, const Span& b, double at_b, double gap) {
  return std::fabs(at_a - at_b) >= (a.size + b.size) / 2 + gap;
}

}  // namespace

std::vector<double> nice_ticks(double low, double high, int most) {
  std::vector<double> ticks;
  if (!is_range(low, high)) return ticks;
  const double step = step_of(high - low, most);
  const double first = std::ceil(low / step - 1e-9);
  const double last = std::floor(high / step + 1e-9);
  for (double at = first; at <= last && ticks.size() < 100; ++at) ticks.push_back(at * step + 0.0);
  return ticks;
}

double nice_end(double low, double high, int most) {
  if (!is_range(low, high)) return high;
  const double step = step_of(high - low, most);
  return std::ceil(high / step - 1e-9) * step;
}

std::optional<std::vector<double>> spread(const std::vector<Span>& spans, double low, double high) {
  const double whole =
      std::accumulate(spans.begin(), spans.end(), 0.0,
                      [](double sum, const Span& span) { return sum + span.size; });
  if (whole > high - low + 1e-9) return std::nullopt;
  std::vector<std::size_t> order(spans.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return spans[i].wanted; });

  // With what lies before them taken off, centres need only not decrease: pool neighbours that do.
  struct Pool {
    double sum = 0;
    double count = 0;
    [[nodiscard]] double mean() const { return sum / count; }
  };
  std::vector<Pool> pools;
  double before = 0;
  for (const std::size_t i : order) {
    pools.push_back({spans[i].wanted - (before + spans[i].size / 2), 1});
    before += spans[i].size;
    while (pools.size() > 1 && pools[pools.size() - 2].mean() >= pools.back().mean()) {
      pools[pools.size() - 2].sum += pools.back().sum;
      pools[pools.size() - 2].count += pools.back().count;
      pools.pop_back();
    }
  }
  std::vector<double> centres(spans.size());
  before = 0;
  std::size_t next = 0;
  for (const Pool& pool : pools) {
    const double start = std::clamp(pool.mean(), low, std::max(low, high - whole));
    for (int i = 0; i < static_cast<int>(pool.count); ++i, ++next) {
      const Span& span = spans[order[next]];
      centres[order[next]] = start + before + span.size / 2;
      before += span.size;
    }
  }
  return centres;
}

std::vector<int> rows_of(const std::vector<Span>& spans, double gap) {
  std::vector<int> rows;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    int row = 0;
    const auto taken = [&] {
      for (std::size_t j = 0; j < i; ++j) {
        if (rows[j] == row && !apart(spans[i], spans[i].wanted, spans[j], spans[j].wanted, gap)) {
          return true;
        }
      }
      return false;
    };
    while (taken()) ++row;
    rows.push_back(row);
  }
  return rows;
}

std::vector<bool> thinned(const std::vector<Span>& spans, double gap) {
  std::vector<bool> shown;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    bool free = true;
    for (std::size_t j = 0; j < i && free; ++j) {
      free = !shown[j] || apart(spans[i], spans[i].wanted, spans[j], spans[j].wanted, gap);
    }
    shown.push_back(free);
  }
  return shown;
}

}  // namespace lms::report
