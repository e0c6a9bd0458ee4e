#pragma once

// The one list of the fields of records: what is written goes by it, and what is read.

#include "lab/records/record.h"

namespace lms::records {

/// What else is known of a field than its type.
enum class Rule {
  kNone,
  kIfKnown,    ///< text that is left out while it is empty
  kAboveZero,  ///< 0 is as absent
  kAnyNumber,  ///< of a list: what is not finite is null
};

/// Calls `visit(name, value)`, or `visit(name, value, rule)`, for each field, in the order of
/// files; "link.to_host_rate" is `to_host_rate` in an object `link`.
template <typename Record, typename Visitor>
void each_field_of_record(Record& record, Visitor&& visit) {
  visit("study", record.study);
  visit("series", record.series);
  visit("model", record.model);
  visit("batch", record.batch);
  visit("sides", record.sides);
  visit("classes", record.classes);
  visit("precision", record.precision);
  visit("method", record.method);
  visit("cap", record.cap, Rule::kAboveZero);
  visit("settings", record.settings);
  visit("limit", record.limit, Rule::kAboveZero);
  visit("link_emulated", record.link, Rule::kIfKnown);
  visit("outcome", record.outcome);
  visit("message", record.message);
  visit("need", record.need);
  visit("samples.unit", record.unit);
  visit("samples.per_step", record.per_step);
  visit("warmup", record.warmup);
  visit("steps", record.steps);
  visit("rate.mean", record.rate_mean);
  visit("rate.median", record.rate_median);
  visit("rate.spread", record.rate_spread);
  visit("losses", record.losses, Rule::kAnyNumber);
  visit("weights", record.weights, Rule::kIfKnown);
  visit("bytes.to_host", record.bytes_to_host);
  visit("bytes.to_device", record.bytes_to_device);
  visit("link.to_host_rate", record.to_host_rate);
  visit("link.to_device_rate", record.to_device_rate);
  visit("link.to_host_use", record.to_host_use);
  visit("link.to_device_use", record.to_device_use);
  visit("gpu_busy", record.gpu_busy);
  visit("timeline", record.timeline);
  visit("allocations", record.allocations);
  visit("peak.allocated", record.peak_allocated);
  visit("peak.reserved", record.peak_reserved);
  visit("peak.host", record.peak_host);
  visit("largest_operator", record.largest_operator);
  visit("bound", record.bound);
  visit("predicted", record.predicted);
  visit("stats", record.stats);
  visit("machine", record.machine);
  visit("commit", record.commit);
  visit("date", record.date);
  visit("wall", record.wall);
  visit("trace", record.trace, Rule::kIfKnown);
  visit("partial", record.partial);
}

/// The same of a search.
template <typename Boundary, typename Visitor>
void each_field_of_boundary(Boundary& boundary, Visitor&& visit) {
  visit("study", boundary.study);
  visit("series", boundary.series);
  visit("model", boundary.model);
  visit("method", boundary.method);
  visit("cap", boundary.cap, Rule::kAboveZero);
  visit("over", boundary.over);
  visit("largest_ok", boundary.largest_ok);
  visit("smallest_failed", boundary.smallest_failed);
  visit("why", boundary.why, Rule::kIfKnown);
}

}  // namespace lms::records
