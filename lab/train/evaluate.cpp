#include "lab/train/evaluate.h"

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "lab/train/feed.h"

namespace lms::train {
namespace {

std::string percent(const std::optional<double>& value) {
  if (!value) return "     -";
  std::array<char, 16> text = {};
  std::snprintf(text.data(), text.size(), "%6.2f", *value * 100);
  return text.data();
}

std::string class_name(const std::vector<std::string>& names, std::size_t index) {
  return index < names.size() ? names[index] : std::to_string(index);
}

}  // namespace

std::optional<Scores> evaluate(zoo::Model& model, std::shared_ptr<const data::Dataset> dataset,
                               const Settings& settings, const Machine& machine,
                               const std::function<bool()>& stop) {
  const std::int64_t classes =
      settings.classes > 0 ? settings.classes : static_cast<std::int64_t>(dataset->classes());
  data::LoaderOptions options;
  options.batch = static_cast<std::size_t>(settings.val_batch);
  options.workers = static_cast<std::size_t>(settings.workers);
  options.ahead = static_cast<std::size_t>(settings.prefetch);
  options.shuffle = false;
  options.drop_last = false;
  options.epochs = 1;
  options.memory = batch_memory(machine.device());
  data::Loader loader(std::move(dataset), options);
  Feed feed(loader, model.task(), machine.device());
  Metrics metrics(model.task(), classes, machine.device());

  const GeneratorScope generators(machine.device(), static_cast<std::uint64_t>(settings.seed));
  const torch::NoGradGuard no_grad;
  model.eval();
  bool stopped = false;
  while (std::optional<zoo::Batch> batch = feed.take()) {
    {
      const Autocast autocast(machine);
      const auto outputs = model.forward(batch->input);
      const torch::Tensor loss = model.loss(outputs, *batch);
      metrics.add(model.predict(outputs), batch->target, loss);
    }
    feed.prefetch();
    stopped = stop && stop();
    if (stopped) break;
  }
  model.train();
  if (stopped) return std::nullopt;
  return metrics.scores();
}

std::string scores_text(const Scores& scores, zoo::Task task,
                        const std::vector<std::string>& class_names) {
  std::string text;
  std::array<char, 160> line = {};
  const auto add = [&](auto... arguments) {
    std::snprintf(line.data(), line.size(), arguments...);
    text += line.data();
  };
  if (task == zoo::Task::kClassification) {
    add("%lld samples, loss %.4f, accuracy %.2f %%\n", static_cast<long long>(scores.samples),
        scores.loss, scores.accuracy() * 100);
    return text;
  }
  add("%-20s %8s %8s %8s\n", "class", "IoU %", "Dice %", "found %");
  for (std::size_t i = 0; i < scores.classes.size(); ++i) {
    const ClassCounts& each = scores.classes[i];
    add("%-20s %8s %8s %8s\n", class_name(class_names, i).c_str(), percent(each.iou()).c_str(),
        percent(each.dice()).c_str(), percent(each.accuracy()).c_str());
  }
  add("%-20s %8s %8s\n", "mean", percent(scores.mean_iou()).c_str(),
      percent(scores.mean_dice()).c_str());
  add("%lld samples, loss %.4f, %s accuracy %.2f %%\n", static_cast<long long>(scores.samples),
      scores.loss, task == zoo::Task::kVolumes ? "voxel" : "pixel", scores.accuracy() * 100);
  return text;
}

std::string scores_json(const Scores& scores, zoo::Task task,
                        const std::vector<std::string>& class_names) {
  nlohmann::ordered_json json;
  const auto value = [](const std::optional<double>& number) {
    return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json();
  };
  json["samples"] = scores.samples;
  json["loss"] = scores.loss;
  json["accuracy"] = scores.accuracy();
  if (task != zoo::Task::kClassification) {
    json["mean_iou"] = scores.mean_iou();
    json["mean_dice"] = scores.mean_dice();
    auto& classes = json["classes"] = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < scores.classes.size(); ++i) {
      const ClassCounts& each = scores.classes[i];
      classes.push_back({{"name", class_name(class_names, i)},
                         {"iou", value(each.iou())},
                         {"dice", value(each.dice())},
                         {"found", value(each.accuracy())},
                         {"true_positives", each.hits},
                         {"false_positives", each.false_alarms},
                         {"false_negatives", each.misses}});
    }
  }
  return json.dump(2) + "\n";
}

}  // namespace lms::train
