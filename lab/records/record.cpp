#include "lab/records/record.h"

#include <algorithm>
#include <cmath>

namespace lms::records {
namespace {

std::optional<double> median(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

bool Record::too_large() const {
  return outcome == Outcome::kOom || outcome == Outcome::kHost || outcome == Outcome::kTimeout;
}

bool Record::operator_too_large() const {
  const auto most = limit ? limit : cap;
  if (outcome != Outcome::kOom || !method.starts_with("lms") || !need || !most) return false;
  return std::max(need->bytes, need->least_limit.value_or(0)) > *most;
}

bool Record::link_too_slow() const {
  const auto wanted = link_rate(link);
  if (!wanted || !to_host_rate || !to_device_rate) return false;
  return std::min(*to_host_rate, *to_device_rate) < 0.99 * *wanted;
}

std::optional<double> Record::amount() const {
  if (sides.empty()) return std::nullopt;
  double amount = batch.value_or(1);
  for (const double side : sides) amount *= side;
  return amount > 0 ? std::optional(amount) : std::nullopt;
}

std::optional<double> Record::side() const {
  if (sides.empty()) return std::nullopt;
  if (std::ranges::all_of(sides, [&](double side) { return side == sides[0]; })) return sides[0];
  double product = 1;
  for (const double side : sides) product *= side;
  return std::pow(product, 1.0 / static_cast<double>(sides.size()));
}

std::optional<double> Record::rate() const {
  for (const auto& rate : {rate_median, rate_mean}) {
    if (rate && *rate > 0) return rate;
  }
  const auto seconds = median(steps);
  if (seconds && *seconds > 0 && per_step) return *per_step / *seconds;
  return std::nullopt;
}

std::optional<double> Record::step() const {
  if (const auto seconds = median(steps)) return seconds;
  const auto per_second = rate();
  if (per_second && per_step) return *per_step / *per_second;
  return std::nullopt;
}

std::string Record::of_machine(const std::string& fact) const {
  const auto found = machine.find(fact);
  return found == machine.end() ? "" : found->second;
}

std::optional<double> Record::host_limit() const {
  const auto found = stats.find("host_limit");
  const bool known = found != stats.end() && found->second > 0;
  return known ? std::optional(static_cast<double>(found->second)) : std::nullopt;
}

void Record::conclude() {
  const double samples = per_step.value_or(0);
  std::vector<double> rates;
  double seconds = 0;
  for (const double step : steps) {
    if (step <= 0) continue;
    rates.push_back(samples / step);
    seconds += step;
  }
  if (rates.empty()) return;
  // The mean of the rates would weigh the fast steps more than the slow ones.
  rate_mean = samples * static_cast<double>(rates.size()) / seconds;
  rate_median = median(rates);
  const auto [least, most] = std::ranges::minmax(rates);
  rate_spread = *rate_median > 0 ? (most - least) / *rate_median : 0;
  const double step = *median(steps);
  const auto use = [&](const std::optional<double>& bytes, const std::optional<double>& rate) {
    const bool known = bytes && rate && *rate > 0 && step > 0;
    return known ? std::optional(*bytes / step / *rate) : std::nullopt;
  };
  to_host_use = use(bytes_to_host, to_host_rate);
  to_device_use = use(bytes_to_device, to_device_rate);
}

std::optional<double> link_rate(const std::string& link) {
  if (link == "pcie3") return 12e9;
  if (link == "pcie4") return 25e9;
  if (link == "nvlink2") return 71.4e9;
  return std::nullopt;
}

}  // namespace lms::records
