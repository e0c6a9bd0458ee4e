#include "lab/train/metrics.h"

#include "base/error.h"

namespace lms::train {
namespace {

constexpr std::int64_t kIgnored = 255;

std::optional<double> ratio(std::int64_t part, std::int64_t whole) {
  if (whole == 0) return std::nullopt;
  return static_cast<double>(part) / static_cast<double>(whole);
}

template <typename Measure>
double mean(const std::vector<ClassCounts>& classes, Measure measure) {
  double sum = 0;
  int count = 0;
  for (const ClassCounts& each : classes) {
    if (const std::optional<double> value = (each.*measure)()) {
      sum += *value;
      ++count;
    }
  }
  return count > 0 ? sum / count : 0;
}

/// How often each of 0 … bins-1 is in `values`. On a GPU by sorting: bincount() would wait for the
/// device, and adding with atomics is refused in deterministic mode.
torch::Tensor count_values(const torch::Tensor& values, std::int64_t bins) {
  if (!values.is_cuda()) return torch::bincount(values, {}, bins);
  const torch::Tensor sorted = std::get<0>(values.sort());
  const torch::Tensor edges = torch::arange(bins + 1, values.options());
  return torch::searchsorted(sorted, edges).diff();
}

}  // namespace

std::optional<double> ClassCounts::iou() const { return ratio(hits, hits + false_alarms + misses); }
std::optional<double> ClassCounts::dice() const {
  return ratio(2 * hits, 2 * hits + false_alarms + misses);
}
std::optional<double> ClassCounts::accuracy() const { return ratio(hits, hits + misses); }

double Scores::accuracy() const { return ratio(correct, total).value_or(0); }
double Scores::mean_iou() const { return mean(classes, &ClassCounts::iou); }
double Scores::mean_dice() const { return mean(classes, &ClassCounts::dice); }

double Scores::score(zoo::Task task) const {
  switch (task) {
    case zoo::Task::kClassification:
      return accuracy();
    case zoo::Task::kVolumes:
      return mean_dice();
    case zoo::Task::kSegmentation:
      break;
  }
  return mean_iou();
}

Scores scores_of(const std::vector<std::vector<std::int64_t>>& confusion) {
  Scores scores;
  scores.classes.resize(confusion.size());
  for (std::size_t truth = 0; truth < confusion.size(); ++truth) {
    for (std::size_t said = 0; said < confusion.size(); ++said) {
      const std::int64_t count = confusion[truth][said];
      scores.total += count;
      if (truth == said) {
        scores.correct += count;
        scores.classes[truth].hits += count;
      } else {
        scores.classes[truth].misses += count;
        scores.classes[said].false_alarms += count;
      }
    }
  }
  return scores;
}

Metrics::Metrics(zoo::Task task, std::int64_t classes, const torch::Device& device)
    : task_(task), classes_(classes) {
  const std::int64_t counts = task == zoo::Task::kVolumes ? classes * 3 : classes * classes + 1;
  counts_ = torch::zeros({counts}, torch::dtype(torch::kInt64).device(device));
  loss_ = torch::zeros({}, torch::dtype(torch::kFloat64).device(device));
}

void Metrics::add(const torch::Tensor& prediction, const torch::Tensor& target,
                  const torch::Tensor& loss) {
  const torch::NoGradGuard no_grad;
  if (task_ == zoo::Task::kVolumes) {
    add_labels(prediction, target);
  } else {
    add_classes(prediction, target);
  }
  loss_ += loss.detach().to(torch::kFloat64) * target.size(0);
  samples_ += target.size(0);
}

void Metrics::add_classes(const torch::Tensor& prediction, const torch::Tensor& target) {
  const torch::Tensor truth = target.reshape({-1}).to(torch::kInt64);
  const torch::Tensor said = prediction.reshape({-1}).to(torch::kInt64);
  const torch::Tensor bad = (truth < 0) | (truth >= classes_) | (said < 0) | (said >= classes_);
  // One bin for what is out of range, one more for what is ignored.
  torch::Tensor bin = (truth * classes_ + said).masked_fill(bad, classes_ * classes_);
  bin = bin.masked_fill(truth == kIgnored, classes_ * classes_ + 1);
  counts_ += count_values(bin, classes_ * classes_ + 2).narrow(0, 0, counts_.size(0));
}

void Metrics::add_labels(const torch::Tensor& prediction, const torch::Tensor& target) {
  const auto by_label = [&](const torch::Tensor& mask) {
    return mask.transpose(0, 1).reshape({classes_, -1}).sum(1, false, torch::kInt64);
  };
  const torch::Tensor truth = target != 0;
  const torch::Tensor said = prediction != 0;
  counts_ += torch::cat({by_label(truth & said), by_label(said), by_label(truth)});
  voxels_ += target.numel();
}

Scores Metrics::scores() const {
  const torch::Tensor counts = counts_.cpu();
  const auto* at = counts.const_data_ptr<std::int64_t>();
  Scores scores;
  if (task_ == zoo::Task::kVolumes) {
    std::int64_t wrong = 0;
    for (std::int64_t label = 0; label < classes_; ++label) {
      const std::int64_t hits = at[label];
      scores.classes.push_back(
          {hits, at[classes_ + label] - hits, at[2 * classes_ + label] - hits});
      wrong += scores.classes.back().false_alarms + scores.classes.back().misses;
    }
    scores.total = voxels_;
    scores.correct = voxels_ - wrong;
  } else {
    if (at[classes_ * classes_] != 0) {
      throw Error(std::to_string(at[classes_ * classes_]) +
                  " labels or predictions are not below the number of classes, " +
                  std::to_string(classes_) + ": does the model fit the data set?");
    }
    std::vector<std::vector<std::int64_t>> confusion;
    for (std::int64_t row = 0; row < classes_; ++row) {
      confusion.emplace_back(at + row * classes_, at + (row + 1) * classes_);
    }
    scores = scores_of(confusion);
  }
  scores.samples = samples_;
  scores.loss = samples_ > 0 ? loss_.item<double>() / static_cast<double>(samples_) : 0;
  return scores;
}

}  // namespace lms::train
