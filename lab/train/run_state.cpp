// What checkpoints and reports say of a run.

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "lab/train/csv_file.h"
#include "lab/train/trainer.h"

namespace lms::train {

using torch::Tensor;

std::vector<std::pair<std::string, Tensor>> named_tensors(const zoo::Model& model) {
  std::vector<std::pair<std::string, Tensor>> all;
  for (const auto& item : model.named_parameters()) all.emplace_back(item.key(), item.value());
  for (const auto& item : model.named_buffers()) all.emplace_back(item.key(), item.value());
  return all;
}

void load_tensor(const State& state, const std::string& name, const Tensor& to) {
  const torch::NoGradGuard no_grad;
  const Tensor& saved = state.tensor(name);
  if (saved.sizes() != to.sizes()) {
    throw StateError("the checkpoint's '" + name + "' is " + c10::str(saved.sizes()) +
                     ", but this run's is " + c10::str(to.sizes()));
  }
  to.copy_(saved);
}

void load_weights(zoo::Model& model, const State& state) {
  for (auto& [name, tensor] : named_tensors(model)) load_tensor(state, "model." + name, tensor);
}

Settings settings_of(const State& state) {
  Settings settings;
  try {
    const auto saved = nlohmann::json::parse(state.fact("settings"));
    for (const auto& [name, value] : saved.items()) {
      set_key(settings, name, value.get<std::string>(), "checkpoint");
    }
  } catch (const nlohmann::json::exception& error) {
    throw StateError(std::string("the checkpoint's settings cannot be read: ") + error.what());
  }
  return settings;
}

void check_same_run(const Settings& settings, const State& state) {
  const Settings saved = settings_of(state);
  std::string differing;
  const auto compare = [&](const std::string& name, const std::string& then,
                           const std::string& now) {
    if (then == now) return;
    differing += (differing.empty() ? "" : "; ") + name + " was '" + then + "', is '" + now + "'";
  };
  for (const Key& key : keys()) {
    if (key.fixed) compare(key.name, key.get(saved), key.get(settings));
  }
  if (saved.variants != settings.variants) differing += "; variants differ";
  if (saved.options != settings.options) differing += "; options differ";
  if (!differing.empty()) {
    throw BadSetting("resume: these settings belong to the run and cannot change: " + differing +
                     ". (init=CHECKPOINT begins another run from the weights)");
  }
}

std::string report_json(const Settings& settings, const Machine& machine,
                        const TrainResult& result) {
  nlohmann::ordered_json json;
  json["settings"] = changed_keys(settings);
  json["device"] = machine.name();
  json["lms"] = machine.managed();
  json["steps"] = result.steps;
  json["fingerprint"] = result.fingerprint;
  std::vector<double> losses;
  std::vector<std::string> hex;
  std::vector<double> ms;
  std::vector<double> waited;
  for (const StepRecord& record : result.records) {
    losses.push_back(record.loss);
    hex.push_back(hex_text(record.loss));
    ms.push_back(record.ms);
    waited.push_back(record.waited_ms);
  }
  json["loss"] = losses;
  json["loss_hex"] = hex;
  json["step_ms"] = ms;
  json["waited_ms"] = waited;
  json["first_step"] = result.records.empty() ? 0 : result.records.front().step;
  if (result.data_samples_per_s > 0) json["data_samples_per_s"] = result.data_samples_per_s;
  if (result.scores) {
    json["validation"] = {{"loss", result.scores->loss},
                          {"accuracy", result.scores->accuracy()},
                          {"mean_iou", result.scores->mean_iou()},
                          {"mean_dice", result.scores->mean_dice()}};
    json["best"] = result.best;
  }
  json["memory"] = {{"current", result.memory.current}, {"peak", result.memory.peak}};
  json["memory_stats"] = result.statistics;
  return json.dump(2) + "\n";
}

}  // namespace lms::train
