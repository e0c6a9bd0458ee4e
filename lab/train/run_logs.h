#pragma once

#include <cstdint>
#include <optional>

#include "lab/train/csv_file.h"
#include "lab/train/event_file.h"
#include "lab/train/machine.h"
#include "lab/train/metrics.h"
#include "lab/train/run_folder.h"

namespace lms::train {

struct StepRecord {
  std::int64_t step = 0;  ///< counted from 1
  double loss = 0;
  double rate = 0;
  double ms = 0;         ///< on the device, from the step's begin to the next one's batch
  double waited_ms = 0;  ///< in which the host waited for batches
};

/// What a run leaves to be plotted: steps.csv, validation.csv, and TensorBoard's events. Not
/// thread-safe; throws lms::Error where a file cannot be written.
class RunLogs {
 public:
  /// Of a run that goes on: what it has taken back is taken out of the logs, too.
  struct Resumed {
    std::int64_t step;
    std::int64_t validated;
  };

  RunLogs(const RunFolder& folder, bool tensorboard, const std::optional<Resumed>& resumed);

  void step(const StepRecord& record, double epoch, const Memory& memory);
  /// Reaches the disk at once.
  void validation(std::int64_t step, const Scores& scores);
  void flush();

 private:
  CsvFile steps_;
  CsvFile validations_;
  std::optional<EventFile> events_;
};

}  // namespace lms::train
