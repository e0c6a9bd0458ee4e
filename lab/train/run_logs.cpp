#include "lab/train/run_logs.h"

#include <array>
#include <chrono>
#include <cstdio>
#include <string>

namespace lms::train {
namespace {

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

RunLogs::RunLogs(const RunFolder& folder, bool tensorboard, const std::optional<Resumed>& resumed)
    : steps_(
          folder.file("steps.csv"),
          {"step", "epoch", "loss", "loss_hex", "lr", "ms", "waited_ms", "memory", "memory_peak"},
          resumed ? resumed->step : -1),
      validations_(folder.file("validation.csv"),
                   {"step", "loss", "accuracy", "mean_iou", "mean_dice"},
                   resumed ? resumed->validated : -1) {
  if (!tensorboard) return;
  const double now = unix_time();
  std::array<char, 64> name = {};
  std::snprintf(name.data(), name.size(), "events.out.tfevents.%010lld.lms",
                static_cast<long long>(now));
  events_.emplace(folder.file(name.data()), now, resumed ? resumed->step + 1 : -1);
}

void RunLogs::step(const StepRecord& record, double epoch, const Memory& memory) {
  steps_.row(record.step,
             {number_text(epoch), number_text(record.loss), hex_text(record.loss),
              number_text(record.rate), number_text(record.ms), number_text(record.waited_ms),
              std::to_string(memory.current), std::to_string(memory.peak)});
  if (events_) {
    events_->scalars(record.step, unix_time(),
                     {{"train/loss", static_cast<float>(record.loss)},
                      {"train/lr", static_cast<float>(record.rate)},
                      {"train/step_ms", static_cast<float>(record.ms)},
                      {"train/memory_gib", static_cast<float>(memory.current) / (1 << 30)}});
  }
}

void RunLogs::validation(std::int64_t step, const Scores& scores) {
  validations_.row(step, {number_text(scores.loss), number_text(scores.accuracy()),
                          number_text(scores.mean_iou()), number_text(scores.mean_dice())});
  validations_.flush();
  if (events_) {
    events_->scalars(step, unix_time(),
                     {{"val/loss", static_cast<float>(scores.loss)},
                      {"val/accuracy", static_cast<float>(scores.accuracy())},
                      {"val/mean_iou", static_cast<float>(scores.mean_iou())},
                      {"val/mean_dice", static_cast<float>(scores.mean_dice())}});
    events_->flush();
  }
}

void RunLogs::flush() {
  steps_.flush();
  if (events_) events_->flush();
}

}  // namespace lms::train
