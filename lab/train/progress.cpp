#include "lab/train/progress.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "base/bytes.h"

namespace lms::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBetweenBars{100};
constexpr std::chrono::seconds kBetweenLines{30};
constexpr std::int64_t kBarWidth = 20;

}  // namespace

std::string duration_text(double seconds) {
  const auto whole = std::llround(std::max(0.0, seconds));
  std::array<char, 40> text = {};
  if (whole >= 3600) {
    std::snprintf(text.data(), text.size(), "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60,
                  whole % 60);
  } else {
    std::snprintf(text.data(), text.size(), "%lld:%02lld", whole / 60, whole % 60);
  }
  return text.data();
}

std::string progress_text(const ProgressFacts& facts) {
  std::array<char, 256> text = {};
  std::snprintf(text.data(), text.size(),
                "step %lld/%lld  epoch %.2f  loss %.4f  lr %.3g  %.3g/s  %.3g %s  %s  ETA %s",
                static_cast<long long>(facts.step), static_cast<long long>(facts.steps),
                facts.epoch, facts.loss, facts.rate, facts.samples_per_s, facts.mega_per_s,
                facts.mega_unit, format_bytes(facts.memory).c_str(),
                duration_text(facts.seconds_left).c_str());
  return text.data();
}

Progress::Progress(std::FILE* to, const std::string& mode) : to_(to), mode_(Mode::kLines) {
  if (mode == "bar") mode_ = Mode::kBar;
  if (mode == "quiet") mode_ = Mode::kQuiet;
  if (mode == "auto" && ::isatty(::fileno(to)) == 1) mode_ = Mode::kBar;
}

Progress::~Progress() {
  if (drawn_) std::fputs("\n", to_);
}

void Progress::clear() {
  if (drawn_) std::fputs("\r\x1b[K", to_);
  drawn_ = false;
}

void Progress::update(const ProgressFacts& facts) {
  if (mode_ == Mode::kQuiet) return;
  const auto now = Clock::now();
  const bool last = facts.step >= facts.steps;
  const bool bar = mode_ == Mode::kBar;
  if (any_ && !last && now - last_ < (bar ? Clock::duration(kBetweenBars) : kBetweenLines)) return;
  any_ = true;
  last_ = now;
  if (!bar) {
    std::fprintf(to_, "%s\n", progress_text(facts).c_str());
    std::fflush(to_);
    return;
  }
  const std::int64_t done = std::clamp<std::int64_t>(
      facts.step * kBarWidth / std::max<std::int64_t>(facts.steps, 1), 0, kBarWidth);
  clear();
  std::fprintf(to_, "[%s%s] %s", std::string(static_cast<std::size_t>(done), '#').c_str(),
               std::string(static_cast<std::size_t>(kBarWidth - done), ' ').c_str(),
               progress_text(facts).c_str());
  drawn_ = true;
  std::fflush(to_);
}

void Progress::message(const std::string& text) {
  if (mode_ != Mode::kQuiet) note(text);
}

void Progress::note(const std::string& text) {
  clear();
  std::fprintf(to_, "%s\n", text.c_str());
  std::fflush(to_);
}

}  // namespace lms::train
