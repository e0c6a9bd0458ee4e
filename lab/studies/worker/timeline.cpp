#include "lab/studies/worker/timeline.h"

#include <kineto/ActivityType.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>

namespace lms::studies {
namespace {

constexpr std::size_t kMostCopySpans = 2000;
constexpr std::size_t kMostGaps = 20;
constexpr std::size_t kMostName = 120;

struct Kernel {
  Interval span;
  std::string name;
};

std::vector<Gap> longest_gaps(std::vector<Kernel>& kernels) {
  std::ranges::sort(kernels, {}, &Kernel::span);
  std::vector<Gap> gaps;
  double end = kernels.empty() ? 0 : kernels.front().span.to;
  for (const Kernel& kernel : kernels) {
    if (kernel.span.from > end) {
      gaps.push_back({end, kernel.span.from - end, kernel.name.substr(0, kMostName)});
    }
    end = std::max(end, kernel.span.to);
  }
  std::ranges::stable_sort(gaps, std::ranges::greater(), &Gap::length);
  if (gaps.size() > kMostGaps) gaps.resize(kMostGaps);
  return gaps;
}

}  // namespace

std::vector<Interval> merged(std::vector<Interval> spans, std::size_t most) {
  std::ranges::sort(spans);
  const auto join = [&](double apart) {
    std::vector<Interval> joined;
    for (const Interval& span : spans) {
      if (joined.empty() || span.from - joined.back().to > apart) {
        joined.push_back(span);
      } else {
        joined.back().to = std::max(joined.back().to, span.to);
      }
    }
    spans = std::move(joined);
  };
  join(0);
  if (spans.size() <= most || most == 0) return spans;
  std::vector<double> apart;
  for (std::size_t i = 1; i < spans.size(); ++i) {
    apart.push_back(spans[i].from - spans[i - 1].to);
  }
  std::ranges::sort(apart);
  join(apart[apart.size() - most]);
  return spans;
}

std::optional<Timeline> profile_step(const std::function<void()>& step) {
  namespace impl = torch::profiler::impl;
  namespace profiler = torch::autograd::profiler;
  const impl::ProfilerConfig config(impl::ProfilerState::KINETO);
  const std::set<impl::ActivityType> activities = {impl::ActivityType::CUDA};
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  const auto begin = std::chrono::steady_clock::now();
  try {
    step();
  } catch (...) {
    profiler::disableProfiler();
    throw;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const auto result = profiler::disableProfiler();

  std::uint64_t origin = std::numeric_limits<std::uint64_t>::max();
  const auto kind_of = [](const profiler::KinetoEvent& event) {
    return static_cast<libkineto::ActivityType>(event.activityType());
  };
  const auto on_device = [&](const profiler::KinetoEvent& event) {
    const auto kind = kind_of(event);
    return event.deviceType() == c10::DeviceType::CUDA &&
           (kind == libkineto::ActivityType::CONCURRENT_KERNEL ||
            kind == libkineto::ActivityType::GPU_MEMCPY ||
            kind == libkineto::ActivityType::GPU_MEMSET);
  };
  for (const auto& event : result->events()) {
    if (on_device(event)) origin = std::min(origin, event.startNs());
  }
  if (origin == std::numeric_limits<std::uint64_t>::max()) return std::nullopt;

  Timeline timeline;
  timeline.step = took.count();
  std::vector<Kernel> kernels;
  for (const auto& event : result->events()) {
    if (!on_device(event)) continue;
    const double start = static_cast<double>(event.startNs() - origin) * 1e-9;
    const Interval span = {start, start + static_cast<double>(event.durationNs()) * 1e-9};
    const std::string name = event.name();
    if (name.find("DtoH") != std::string::npos &&
        kind_of(event) == libkineto::ActivityType::GPU_MEMCPY) {
      timeline.to_host.push_back(span);
    } else if (name.find("HtoD") != std::string::npos &&
               kind_of(event) == libkineto::ActivityType::GPU_MEMCPY) {
      timeline.to_device.push_back(span);
    } else {
      kernels.push_back({span, name});
      timeline.kernels.push_back(span);
    }
  }
  timeline.gaps = longest_gaps(kernels);
  timeline.kernels = merged(std::move(timeline.kernels), 0);
  timeline.to_host = merged(std::move(timeline.to_host), kMostCopySpans);
  timeline.to_device = merged(std::move(timeline.to_device), kMostCopySpans);
  return timeline;
}

}  // namespace lms::studies
