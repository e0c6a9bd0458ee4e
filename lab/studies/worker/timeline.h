#pragma once

#include <functional>
#include <optional>

#include "lab/records/record.h"

namespace lms::studies {

using records::Gap;
using records::Interval;
using records::Timeline;

/// Runs `step`, which ends when the device is idle, under PyTorch's profiler, and tells what the
/// device did when. Nothing where the profiler sees no device.
std::optional<Timeline> profile_step(const std::function<void()>& step);

/// Spans in any order, merged where they touch; then the closest ones, until there are `most`.
std::vector<Interval> merged(std::vector<Interval> spans, std::size_t most);

}  // namespace lms::studies
