#include "plan/timing/measured.h"

#include <algorithm>

namespace lms {
namespace {

/// Smaller copies are left out.
constexpr Bytes kLeastCopy = 8 * kMiB;
/// A rate of fewer bytes than this is not believed.
constexpr Bytes kLeastEvidence = 64 * kMiB;
/// Parts of a copy's time during which the other lane may be busy, for it to count as alone, and
/// must be, for it to count as beside others.
constexpr double kAlone = 0.05;
constexpr double kBeside = 0.9;
/// 0.5 GB/s to 2 TB/s: what is outside is no link, but a mistake of measuring.
constexpr double kSlowest = 0.5e6;
constexpr double kFastest = 2e9;

struct Span {
  double begin_ms;
  double end_ms;
};

/// When one lane was busy: spans that are disjoint and ascending.
std::vector<Span> busy_spans(std::span<const MeasuredCopy> copies, bool out) {
  std::vector<Span> spans;
  for (const MeasuredCopy& copy : copies) {
    if (copy.out == out && copy.end_ms > copy.begin_ms) {
      spans.push_back({copy.begin_ms, copy.end_ms});
    }
  }
  std::ranges::sort(spans, {}, &Span::begin_ms);
  std::vector<Span> merged;
  for (const Span& span : spans) {
    if (!merged.empty() && span.begin_ms <= merged.back().end_ms) {
      merged.back().end_ms = std::max(merged.back().end_ms, span.end_ms);
    } else {
      merged.push_back(span);
    }
  }
  return merged;
}

/// Time of `copy` in which the spans were busy, as a part of the whole.
double overlap(const MeasuredCopy& copy, const std::vector<Span>& spans) {
  double ms = 0;
  auto span = std::ranges::upper_bound(spans, copy.begin_ms, {}, &Span::end_ms);
  for (; span != spans.end() && span->begin_ms < copy.end_ms; ++span) {
    ms += std::min(span->end_ms, copy.end_ms) - std::max(span->begin_ms, copy.begin_ms);
  }
  return ms / (copy.end_ms - copy.begin_ms);
}

/// Rates of copies, with the bytes that each of them speaks for.
class Evidence {
 public:
  void add(double rate, Bytes bytes) {
    rates_.push_back({rate, bytes});
    bytes_ += bytes;
  }

  /// The rate of the copy in the middle, or `fallback` if there is too little.
  [[nodiscard]] double rate(double fallback) {
    if (bytes_ < kLeastEvidence) return fallback;
    std::ranges::sort(rates_, {}, &Rate::bytes_per_ms);
    Bytes below = 0;
    for (const Rate& rate : rates_) {
      below += rate.bytes;
      if (2 * below >= bytes_) return rate.bytes_per_ms;
    }
    return fallback;
  }

 private:
  struct Rate {
    double bytes_per_ms;
    Bytes bytes;
  };
  std::vector<Rate> rates_;
  Bytes bytes_ = 0;
};

}  // namespace

LinkModel measured_link(std::span<const MeasuredCopy> copies, const LinkModel& fallback) {
  const std::vector<Span> out_spans = busy_spans(copies, true);
  const std::vector<Span> in_spans = busy_spans(copies, false);
  Evidence out;
  Evidence in;
  Evidence both;
  for (const MeasuredCopy& copy : copies) {
    const double ms = copy.end_ms - copy.begin_ms;
    if (copy.bytes < kLeastCopy || ms <= 0) continue;
    const double rate =
        static_cast<double>(copy.bytes) / std::max(ms - fallback.latency_ms, ms / 2);
    if (rate < kSlowest || rate > kFastest) continue;
    const double beside = overlap(copy, copy.out ? in_spans : out_spans);
    if (beside <= kAlone) (copy.out ? out : in).add(rate, copy.bytes);
    if (beside >= kBeside) both.add(rate, copy.bytes);
  }
  LinkModel link = fallback;
  link.out_bytes_per_ms = out.rate(fallback.out_bytes_per_ms);
  link.in_bytes_per_ms = in.rate(fallback.in_bytes_per_ms);
  const auto slower = [](const LinkModel& of) {
    return std::min(of.out_bytes_per_ms, of.in_bytes_per_ms);
  };
  const double unseen = fallback.both_bytes_per_ms * (slower(link) / slower(fallback));
  link.both_bytes_per_ms = std::min(both.rate(unseen), slower(link));
  return link;
}

}  // namespace lms
