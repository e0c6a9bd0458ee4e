#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "lab/train/machine.h"
#include "lab/train/metrics.h"
#include "lab/train/parts.h"
#include "lab/train/run_logs.h"
#include "lab/train/settings.h"
#include "lab/train/state_file.h"

namespace lms::train {

struct TrainResult {
  std::int64_t steps = 0;           ///< taken in all, with those before resuming
  int signal = 0;                   ///< that ended the run, or 0
  std::vector<StepRecord> records;  ///< of the steps of this process
  std::optional<Scores> scores;     ///< of the last validation
  double best = 0;
  std::string fingerprint;  ///< of weights and buffers
  Memory memory;            ///< at the end of the last step
  std::map<std::string, std::int64_t> statistics;
  double data_samples_per_s = 0;  ///< of the loader alone, where measured
};

/// Trains, validates, logs and saves, as the settings say. Signals (see signals.h) end it after the
/// step in flight, with all saved. `start`: the state to go on from, as RunFolder::newest() gives
/// it.
///
/// Throws DataError, StateError, BadSetting; lms::Error where the loss is no longer finite.
TrainResult train(const Settings& settings, const Machine& machine, const Parts& parts,
                  const std::optional<State>& start, std::FILE* err);

/// The settings that a checkpoint was made with, over the defaults.
Settings settings_of(const State& state);
/// Throws BadSetting naming the keys that make `settings` another run than the checkpoint's.
void check_same_run(const Settings& settings, const State& state);
/// Copies a checkpoint's tensor into one of the same shape, else throws StateError.
void load_tensor(const State& state, const std::string& name, const torch::Tensor& to);
/// Copies the weights and buffers of a checkpoint into a model. Throws StateError naming what is
/// missing or of another shape. Tensors that the model does not have are left.
void load_weights(zoo::Model& model, const State& state);
/// Parameters and buffers with their names.
std::vector<std::pair<std::string, torch::Tensor>> named_tensors(const zoo::Model& model);

/// The report of --report: settings, losses (also in hexadecimal), times, memory, fingerprint.
std::string report_json(const Settings& settings, const Machine& machine,
                        const TrainResult& result);

}  // namespace lms::train
