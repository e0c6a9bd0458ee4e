#include "lab/train/trainer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <deque>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "lab/datasets/loader.h"
#include "lab/train/csv_file.h"
#include "lab/train/evaluate.h"
#include "lab/train/feed.h"
#include "lab/train/journal.h"
#include "lab/train/optimizer.h"
#include "lab/train/progress.h"
#include "lab/train/run_folder.h"
#include "lab/train/run_logs.h"
#include "lab/train/schedule.h"
#include "lab/train/signals.h"

namespace lms::train {
namespace {

using torch::Tensor;
using Clock = std::chrono::steady_clock;

constexpr double kFirstScale = 65536;
constexpr int kRecentSteps = 50;  ///< that the rate is taken over

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// How batches, steps and epochs relate. Steps take batches as they come, across epochs.
struct Lengths {
  std::int64_t batches = 0;  ///< an epoch
  std::int64_t accumulate = 1;
  std::int64_t steps = 0;

  Lengths(const Settings& settings, const data::Dataset& dataset)
      : accumulate(settings.accumulate) {
    const auto samples = static_cast<std::int64_t>(dataset.size());
    batches = samples / settings.batch;
    if (!settings.drop_last && samples % settings.batch != 0) ++batches;
    if (batches == 0) {
      throw BadSetting("batch: the data set has " + std::to_string(samples) +
                       " samples, too few for a batch of " + std::to_string(settings.batch) +
                       "; a smaller batch, or drop_last=false");
    }
    steps = settings.steps > 0 ? settings.steps
                               : std::max<std::int64_t>(settings.epochs * batches / accumulate, 1);
  }
  [[nodiscard]] double epoch(std::int64_t step) const {
    return static_cast<double>(step * accumulate) / static_cast<double>(batches);
  }
  [[nodiscard]] std::int64_t steps_per_epoch() const {
    return std::max<std::int64_t>(batches / accumulate, 1);
  }
};

ScheduleOptions schedule_options(const Settings& settings, const Lengths& lengths) {
  ScheduleOptions options;
  options.kind = settings.schedule;
  options.exponent = settings.exponent;
  options.least = settings.min_lr;
  options.warmup = settings.warmup;
  options.warmup_from = settings.warmup_from;
  options.per_epoch = settings.schedule_per == "epoch";
  options.total_steps = lengths.steps;
  options.steps_per_epoch = lengths.steps_per_epoch();
  options.patience = settings.patience;
  options.plateau_factor = settings.plateau_factor;
  return options;
}

LossScaler make_scaler(const Settings& settings, const torch::Device& device) {
  if (settings.precision != "fp16") return {};
  const bool dynamic = settings.loss_scale == "dynamic";
  return {device, dynamic ? kFirstScale : std::stod(settings.loss_scale), dynamic};
}

double loader_rate(const Settings& settings, const Parts& parts, data::LoaderOptions options) {
  options.epochs = 0;
  data::Loader loader(parts.train, options);
  loader.next();  // the workers have started
  const auto begin = Clock::now();
  for (std::int64_t i = 0; i < settings.measure_data; ++i) loader.next();
  return static_cast<double>(settings.measure_data * settings.batch) / seconds_since(begin);
}

std::string score_text(double score) {
  std::array<char, 32> text = {};
  std::snprintf(text.data(), text.size(), "%.4f", score);
  return text.data();
}

/// Saved under facts, exactly.
double read_exact(const State& state, const std::string& name) {
  return std::strtod(state.fact(name).c_str(), nullptr);
}

class Trainer {
 public:
  Trainer(const Settings& settings, const Machine& machine, const Parts& parts,
          const std::optional<State>& start, std::FILE* err)
      : settings_(settings),
        machine_(machine),
        parts_(parts),
        model_(*parts.model),
        lengths_(settings, *parts.train),
        schedule_(schedule_options(settings, lengths_)),
        options_(optimizer_options(settings, settings.batch * settings.accumulate)),
        folder_(settings.out, settings.keep),
        progress_(err, settings.progress) {
    model_.to(machine.device());
    model_.train();
    optimizer_.emplace(options_, model_.parameter_groups());
    scaler_ = make_scaler(settings, machine.device());
    if (start) {
      restore(*start);
    } else {
      // Before the old run goes: they may be its own.
      if (!settings.init.empty()) load_weights(model_, load_state(settings.init));
      folder_.clear();
    }
    logs_.emplace(folder_, settings.tensorboard,
                  start ? std::optional(RunLogs::Resumed{step_, validated_}) : std::nullopt);
  }

  TrainResult run() {
    TrainResult result;
    data::LoaderOptions options = loader_options();
    if (settings_.measure_data > 0) {
      result.data_samples_per_s = loader_rate(settings_, parts_, options);
    }
    const Signals signals;
    const std::int64_t at = step_ * lengths_.accumulate;
    data::Loader loader(parts_.train, options, static_cast<std::size_t>(at / lengths_.batches),
                        static_cast<std::size_t>(at % lengths_.batches));
    Feed feed(loader, model_.task(), machine_.device());
    if (settings_.journal > 0 && step_ < lengths_.steps) {
      journal_.emplace(folder_.journal(), state());
    }
    saved_step_ = step_;
    begun_ = saved_time_ = Clock::now();
    progress_.message(begin_text());
    if (parts_.val && parts_.val_is_train) {
      progress_.message(
          "validation is on the data of the training: its scores say nothing of other "
          "data (val_data, or the option part)");
    }

    if (step_ > 0) validate_if_due();
    while (step_ < lengths_.steps && Signals::stop() == 0) {
      take_step(feed);
      ++step_;
      const bool last = step_ == lengths_.steps;
      const bool journaled = journal_ && (step_ % settings_.journal == 0 || last);
      if (step_ % settings_.log_every == 0 || last || journaled || validation_due()) read_losses();
      if (journaled) journal_->write(state());
      if (last) finish_statistics(result);
      validate_if_due();
      if (Signals::take_wish() || checkpoint_due()) save(false);
    }
    read_losses();
    if (step_ < lengths_.steps || result.statistics.empty()) finish_statistics(result);
    result.steps = step_;
    result.signal = Signals::stop();
    if (saved_step_ != step_) save(false);
    if (result.signal != 0) {
      progress_.note("lms train: stopped after step " + std::to_string(step_) + "; saved. " +
                     "To go on: --resume true --out " + settings_.out);
    } else {
      save_trace();
    }
    result.records = std::move(records_);
    result.scores = scores_;
    result.best = best_;
    result.fingerprint = fingerprint(named_tensors(model_));
    if (result.signal == 0) {
      progress_.message(std::to_string(step_) + " steps, " + duration_text(seconds_since(begun_)) +
                        (has_best_ ? ", best score " + score_text(best_) : "") + "; weights " +
                        result.fingerprint + ", in " + settings_.out);
    }
    return result;
  }

 private:
  [[nodiscard]] data::LoaderOptions loader_options() const {
    data::LoaderOptions options;
    options.batch = static_cast<std::size_t>(settings_.batch);
    options.workers = static_cast<std::size_t>(settings_.workers);
    options.ahead = static_cast<std::size_t>(settings_.prefetch);
    options.drop_last = settings_.drop_last;
    options.seed = static_cast<std::uint64_t>(settings_.seed);
    options.memory = batch_memory(machine_.device());
    return options;
  }

  [[nodiscard]] std::string begin_text() const {
    std::int64_t weights = 0;
    for (const Tensor& each : model_.parameters()) weights += each.numel();
    return settings_.model + ", " + std::to_string(weights) + " parameters, on " + machine_.name() +
           (machine_.managed() ? " with LMS" : "") + "; " + std::to_string(parts_.train->size()) +
           " samples, " + std::to_string(lengths_.steps) + " steps" +
           (step_ > 0 ? ", from step " + std::to_string(step_) : "") + "; in " + settings_.out;
  }

  void take_step(Feed& feed) {
    Pending pending{step_ + 1, {}, 0, 0, Stopwatch(machine_.device())};
    const double waited_before = feed.waited_ms();
    pending.watch.start();
    const double factor = schedule_.factor(step_);
    pending.rate = options_.lr * factor;
    Tensor loss_sum;
    for (std::int64_t i = 0; i < lengths_.accumulate; ++i) {
      std::optional<zoo::Batch> batch = feed.take();
      if (!batch) throw Error("the loader ended early");
      sizes_ = batch->input.sizes().vec();
      Tensor loss;
      {
        const Autocast autocast(machine_);
        loss = model_.loss(model_.forward(batch->input), *batch);
      }
      if (lengths_.accumulate > 1) loss = loss / static_cast<double>(lengths_.accumulate);
      scaler_.scaled(loss).backward();
      loss = loss.detach();
      loss_sum = loss_sum.defined() ? loss_sum + loss : loss;
      batch.reset();
      // The last batch of a step is followed by the first of the next.
      if (i + 1 < lengths_.accumulate) feed.prefetch();
    }
    const auto gradients = optimizer_->gradients();
    const Tensor found_inf = scaler_.unscale(gradients);
    if (settings_.clip > 0) clip_norm(gradients, settings_.clip);
    optimizer_->step(factor, found_inf);
    scaler_.update();
    optimizer_->zero_grad();
    machine_.end_step();
    // Copied in every step, so that reading it later runs no operator: steps stay alike, as plans
    // want.
    pending.host =
        torch::empty({}, torch::dtype(torch::kFloat32).pinned_memory(machine_.device().is_cuda()));
    pending.host.copy_(loss_sum, /*non_blocking=*/true);
    // The wait for the next batch is a part of the step: what starves it is to be seen.
    if (step_ + 1 < lengths_.steps) feed.prefetch();
    pending.watch.stop();
    pending.waited_ms = feed.waited_ms() - waited_before;
    pending_.push_back(std::move(pending));
  }

  /// Waits for the device.
  void read_losses() {
    if (pending_.empty()) return;
    const Memory memory = machine_.memory();
    for (const Pending& each : pending_) {
      StepRecord record;
      record.step = each.step;
      record.rate = each.rate;
      record.ms = each.watch.milliseconds();  // waits until the loss is there
      record.loss = *each.host.const_data_ptr<float>();
      record.waited_ms = each.waited_ms;
      log(record, memory);
      if (!std::isfinite(record.loss) && !scaler_.active()) {
        logs_->flush();
        throw Error("the loss is not finite at step " + std::to_string(record.step) +
                    "; a lower lr, warmup or clip may help. The last checkpoint is of step " +
                    std::to_string(saved_step_));
      }
    }
    pending_.clear();
    logs_->flush();
    show(memory);
  }

  void log(const StepRecord& record, const Memory& memory) {
    recent_.push_back(record.ms);
    if (recent_.size() > kRecentSteps) recent_.pop_front();
    records_.push_back(record);
    logs_->step(record, lengths_.epoch(record.step), memory);
  }

  void show(const Memory& memory) {
    if (records_.empty()) return;
    double ms = 0;
    for (const double each : recent_) ms += each;
    ms /= static_cast<double>(recent_.size());
    double cells = 1;
    for (std::size_t i = 2; i < sizes_.size(); ++i) cells *= static_cast<double>(sizes_[i]);
    ProgressFacts facts;
    facts.step = records_.back().step;
    facts.steps = lengths_.steps;
    facts.epoch = lengths_.epoch(facts.step);
    facts.loss = records_.back().loss;
    facts.rate = records_.back().rate;
    facts.samples_per_s =
        static_cast<double>(settings_.batch * lengths_.accumulate) * 1000 / std::max(ms, 1e-6);
    facts.mega_per_s = facts.samples_per_s * cells / 1e6;
    facts.mega_unit = model_.task() == zoo::Task::kVolumes ? "MV/s" : "MP/s";
    facts.memory = memory.current;
    // By the clock, so that validations and checkpoints count.
    facts.seconds_left = seconds_since(begun_) / static_cast<double>(records_.size()) *
                         static_cast<double>(lengths_.steps - facts.step);
    progress_.update(facts);
  }

  [[nodiscard]] bool validation_due() const {
    if (!parts_.val || settings_.val_every < 0 || step_ <= validated_) return false;
    if (step_ == lengths_.steps) return true;
    if (settings_.val_every == 0) return false;
    const auto count = [&](std::int64_t step) {
      return std::floor(lengths_.epoch(step) / settings_.val_every + 1e-9);
    };
    return count(step_) > count(step_ - 1);
  }

  void validate_if_due() {
    if (!validation_due()) return;
    const auto scores =
        evaluate(model_, parts_.val, settings_, machine_, [] { return Signals::stop() != 0; });
    if (!scores) return;  // it is due again when the run goes on
    scores_ = *scores;
    validated_ = step_;
    schedule_.observe(scores_->loss);
    const double score = scores_->score(model_.task());
    const bool best = !has_best_ || score > best_;
    if (best) best_ = score;
    has_best_ = true;
    logs_->validation(step_, *scores_);
    std::array<char, 160> line = {};
    std::snprintf(line.data(), line.size(),
                  "validation after epoch %.2f: loss %.4f, accuracy %.4f, mean IoU %.4f, "
                  "mean Dice %.4f%s",
                  lengths_.epoch(step_), scores_->loss, scores_->accuracy(), scores_->mean_iou(),
                  scores_->mean_dice(), best ? " (best)" : "");
    progress_.message(line.data());
    save(best);
  }

  [[nodiscard]] bool checkpoint_due() const {
    if (saved_step_ == step_) return false;
    if (settings_.checkpoint_every > 0 && step_ % settings_.checkpoint_every == 0) return true;
    if (settings_.checkpoint_minutes > 0 &&
        seconds_since(saved_time_) > settings_.checkpoint_minutes * 60) {
      return true;
    }
    return step_ % lengths_.steps_per_epoch() == 0 && !parts_.val;
  }

  void save(bool best) {
    read_losses();  // where one is not finite, the checkpoints that there are stay
    folder_.save(state(), best);
    saved_step_ = step_;
    saved_time_ = Clock::now();
  }

  /// All that the run depends on from here. Tensors are not copied.
  [[nodiscard]] State state() const {
    State state;
    for (auto& [name, tensor] : named_tensors(model_)) {
      state.tensors.emplace_back("model." + name, tensor.detach());
    }
    for (auto& [name, tensor] : optimizer_->state()) {
      state.tensors.emplace_back("optimizer." + name, tensor);
    }
    for (auto& [name, tensor] : scaler_.state()) {
      state.tensors.emplace_back("scaler." + name, tensor);
    }
    for (auto& [name, tensor] : generator_states(machine_.device())) {
      state.tensors.emplace_back("generator." + name, tensor);
    }
    const Schedule::State& schedule = schedule_.state();
    state.facts = {{"step", std::to_string(step_)},
                   {"validated", std::to_string(validated_)},
                   {"steps", std::to_string(lengths_.steps)},
                   {"best", hex_text(best_)},
                   {"has_best", has_best_ ? "1" : "0"},
                   {"schedule.best", hex_text(schedule.best)},
                   {"schedule.bad", std::to_string(schedule.bad)},
                   {"schedule.plateau", hex_text(schedule.plateau)},
                   {"samples", std::to_string(parts_.train->size())},
                   {"settings", nlohmann::json(changed_keys(settings_)).dump()}};
    return state;
  }

  void restore(const State& state) {
    if (state.fact("samples") != std::to_string(parts_.train->size())) {
      throw BadSetting("resume: the data set had " + state.fact("samples") + " samples, and has " +
                       std::to_string(parts_.train->size()) + " now");
    }
    load_weights(model_, state);
    for (auto& [name, tensor] : optimizer_->state()) {
      load_tensor(state, "optimizer." + name, tensor);
    }
    for (auto& [name, tensor] : scaler_.state()) load_tensor(state, "scaler." + name, tensor);
    std::map<std::string, Tensor> generators;
    for (const auto& [name, ignored] : generator_states(machine_.device())) {
      generators[name] = state.tensor("generator." + name);
    }
    restore_generators(machine_.device(), generators);
    step_ = std::stoll(state.fact("step"));
    validated_ = std::stoll(state.fact("validated"));
    best_ = read_exact(state, "best");
    has_best_ = state.fact("has_best") == "1";
    schedule_.restore({read_exact(state, "schedule.best"), std::stoll(state.fact("schedule.bad")),
                       read_exact(state, "schedule.plateau")});
  }

  void finish_statistics(TrainResult& result) const {
    machine_.synchronize();
    result.memory = machine_.memory();
    result.statistics = machine_.statistics();
  }

  void save_trace() const {
    if (!settings_.save_trace.empty()) machine_.save_trace(settings_.save_trace);
  }

  struct Pending {
    std::int64_t step;
    Tensor host;  ///< the loss
    double rate;
    double waited_ms;
    Stopwatch watch;
  };

  const Settings& settings_;
  const Machine& machine_;
  const Parts& parts_;
  zoo::Model& model_;
  Lengths lengths_;
  Schedule schedule_;
  OptimizerOptions options_;
  std::optional<Optimizer> optimizer_;
  LossScaler scaler_;
  RunFolder folder_;
  Progress progress_;
  std::optional<Journal> journal_;
  std::optional<RunLogs> logs_;

  std::int64_t step_ = 0;
  std::int64_t validated_ = 0;
  std::int64_t saved_step_ = 0;
  Clock::time_point saved_time_;
  Clock::time_point begun_;
  bool has_best_ = false;
  double best_ = 0;
  std::optional<Scores> scores_;
  std::vector<Pending> pending_;
  std::vector<StepRecord> records_;
  std::deque<double> recent_;
  std::vector<std::int64_t> sizes_;
};

}  // namespace

TrainResult train(const Settings& settings, const Machine& machine, const Parts& parts,
                  const std::optional<State>& start, std::FILE* err) {
  return Trainer(settings, machine, parts, start, err).run();
}

}  // namespace lms::train
