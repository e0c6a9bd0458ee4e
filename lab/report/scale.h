#pragma once

#include <optional>
#include <vector>

namespace lms::report {

/// Maps [low, high] to [from, to], in a straight line.
struct Scale {
  double low = 0;
  double high = 1;
  double from = 0;
  double to = 1;

  [[nodiscard]] double operator()(double value) const {
    return high > low ? from + (value - low) / (high - low) * (to - from) : from;
  }
};

/// Multiples of 1, 2 or 5 times a power of ten within [low, high], `most` at most (but at
/// least two where two fit). Empty for an empty or infinite range.
std::vector<double> nice_ticks(double low, double high, int most);

/// The least such multiple, at the distance of `nice_ticks`, that is not below `high`: where an
/// axis from `low` ends well.
double nice_end(double low, double high, int most);

/// Something that wants to be centred at `wanted` and takes `size`.
struct Span {
  double wanted = 0;
  double size = 0;
};

/// Centres for `spans`, in their order, so that none overlaps another and all lie within
/// [low, high], as near to where they want to be as that allows (least squares). Nothing where they
/// do not all fit.
std::optional<std::vector<double>> spread(const std::vector<Span>& spans, double low, double high);

/// Which row each of `spans` goes to, so that no two in a row are closer than `gap`; first come,
/// lowest row.
std::vector<int> rows_of(const std::vector<Span>& spans, double gap);

/// Which of `spans` can be shown without any two being closer than `gap`: earlier ones first.
std::vector<bool> thinned(const std::vector<Span>& spans, double gap);

}  // namespace lms::report
