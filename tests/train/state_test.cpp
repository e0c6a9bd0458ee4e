// Files of state, the journal, optimizers, loss scaling and scores.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>

#include "lab/train/journal.h"
#include "lab/train/metrics.h"
#include "lab/train/optimizer.h"
#include "lab/train/run_folder.h"
#include "lab/train/state_file.h"
#include "tests/train/toy.h"

namespace lms::train {
namespace {

using testing::Folder;
using torch::Tensor;

State some_state(std::int64_t step) {
  State state;
  state.tensors = {{"a", torch::full({3, 5}, static_cast<double>(step))},
                   {"half", torch::arange(7).to(torch::kBFloat16)},
                   {"count", torch::scalar_tensor(step, torch::kInt64)},
                   {"none", torch::empty({0, 4})},
                   {"big", torch::full({50000}, static_cast<double>(step))}};
  state.facts = {{"step", std::to_string(step)}, {"words", "\"quoted\" \n and ü"}};
  return state;
}

void expect_same(const State& a, const State& b) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    EXPECT_EQ(a.tensors[i].first, b.tensors[i].first);
    EXPECT_TRUE(a.tensors[i].second.equal(b.tensors[i].second)) << a.tensors[i].first;
    EXPECT_EQ(a.tensors[i].second.scalar_type(), b.tensors[i].second.scalar_type());
  }
  for (const auto& [name, value] : a.facts) EXPECT_EQ(b.fact(name), value);
}

std::string complaint_of(const std::string& path) {
  try {
    load_state(path);
  } catch (const StateError& error) {
    return error.what();
  }
  return "";
}

TEST(StateFile, RoundTrip) {
  const Folder folder;
  save_state(folder / "x.safetensors", some_state(7));
  expect_same(some_state(7), load_state(folder / "x.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder / "x.safetensors.part"));
}

TEST(StateFile, DamageIsFoundWhereverItIs) {
  const Folder folder;
  const std::string path = folder / "x.safetensors";
  save_state(path, some_state(7));
  std::ifstream file(path, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  for (std::size_t size :
       {std::size_t{0}, std::size_t{5}, std::size_t{100}, whole.size() / 2, whole.size() - 1}) {
    std::ofstream(path, std::ios::binary) << whole.substr(0, size);
    EXPECT_NE(complaint_of(path).find(path), std::string::npos) << size;
  }
  for (std::size_t at : {std::size_t{3}, std::size_t{12}, whole.size() / 2, whole.size() - 1}) {
    std::string broken = whole;
    broken[at] = static_cast<char>(broken[at] ^ 0x40);
    std::ofstream(path, std::ios::binary) << broken;
    EXPECT_NE(complaint_of(path), "") << at;
  }
  // A digit of a fact that becomes another one.
  std::string other = whole;
  other[other.find("\"step\":\"7\"") + 8] = '6';
  std::ofstream(path, std::ios::binary) << other;
  EXPECT_NE(complaint_of(path).find("header"), std::string::npos);
  EXPECT_NE(complaint_of(folder / "missing").find("missing"), std::string::npos);
}

TEST(StateFile, AFailingDiskLeavesWhatWasThere) {
  const Folder folder;
  const std::string path = folder / "x.safetensors";
  save_state(path, some_state(1));
  struct rlimit old = {};
  ::getrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t most : {rlim_t{0}, rlim_t{10}, rlim_t{900}, rlim_t{150000}}) {
    const struct rlimit small = {most, old.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
    EXPECT_THROW(save_state(path, some_state(2)), StateError) << most;
    ::setrlimit(RLIMIT_FSIZE, &old);
    expect_same(some_state(1), load_state(path));
    EXPECT_FALSE(std::filesystem::exists(path + ".part"));
  }
  save_state(path, some_state(2));
  expect_same(some_state(2), load_state(path));
}

/// Runs `work` in a child, kills it after `microseconds`.
template <typename Work>
void kill_in_the_middle(int microseconds, Work work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(0);
  }
  ::usleep(static_cast<useconds_t>(microseconds));
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
}

TEST(StateFile, AKillLeavesAWholeCheckpoint) {
  torch::set_num_threads(1);
  const Folder folder;
  const RunFolder run(folder.path(), 2);
  run.save(some_state(0), false);
  std::int64_t last = 0;
  for (int i = 0; i < 20; ++i) {
    kill_in_the_middle(500 + 700 * i, [&] {
      for (std::int64_t step = last + 1; step < last + 1000; ++step) {
        run.save(some_state(step), step % 3 == 0);
      }
    });
    std::vector<std::string> notes;
    const auto state = run.newest(&notes);
    ASSERT_TRUE(state);
    EXPECT_TRUE(notes.empty()) << notes.front();
    const std::int64_t step = std::stoll(state->fact("step"));
    EXPECT_GE(step, last);
    expect_same(some_state(step), *state);
    last = step;
    if (last >= 3) {
      EXPECT_GE(std::stoll(load_state(folder / "best.safetensors").fact("step")), last / 3 * 3);
    }
  }
  EXPECT_GT(last, 0);
}

TEST(StateFile, ACheckpointIsNeverWithoutTheBestThatItRemembers) {
  const Folder folder;
  const RunFolder run(folder.path(), 2);
  run.save(some_state(1), true);
  std::filesystem::create_directory(
      folder / "step-00000002.safetensors");  // stands for a kill before it is there
  EXPECT_THROW(run.save(some_state(2), true), StateError);
  expect_same(some_state(2), load_state(folder / "best.safetensors"));
  run.save(some_state(1), true);  // once more, over what is there
  expect_same(some_state(1), load_state(folder / "step-00000001.safetensors"));
  expect_same(some_state(1), load_state(folder / "best.safetensors"));
}

TEST(Journal, AKillLosesAtMostTheEntryInTheMaking) {
  torch::set_num_threads(1);
  const Folder folder;
  const std::string path = folder / "journal";
  std::int64_t begun = 0;
  for (int i = 0; i < 20; ++i) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    kill_in_the_middle(2000 + 300 * i, [&] {
      Journal journal(path, some_state(0));
      for (std::int64_t step = begun + 1; step < begun + 100000; ++step) {
        journal.write(some_state(step));
        (void)!::write(pipe[1], &step, sizeof(step));  // this step is done, and in the journal
      }
    });
    ::close(pipe[1]);
    std::int64_t done = begun;
    for (std::int64_t step = 0; ::read(pipe[0], &step, sizeof(step)) == sizeof(step);) done = step;
    ::close(pipe[0]);
    const auto state = Journal::latest(path);
    if (done == 0) continue;  // killed before the first entry
    ASSERT_TRUE(state);
    const std::int64_t step = std::stoll(state->fact("step"));
    EXPECT_GE(step, done);
    EXPECT_LE(step, done + 1);
    expect_same(some_state(step), *state);
    begun = step;
  }
  EXPECT_GT(begun, 20);
}

TEST(Journal, AnEntryOfAnotherBootIsNotBelieved) {
  const Folder folder;
  const std::string path = folder / "journal";
  State state = some_state(3);
  state.facts["boot"] = "another";
  save_state(path + "-0.safetensors", state);
  EXPECT_FALSE(Journal::latest(path));
  Journal journal(path, some_state(0));
  journal.write(some_state(4));
  EXPECT_EQ(Journal::latest(path)->fact("step"), "4");
}

TEST(RunFolder, KeepsTheNewestAndTheBestAndPassesOverDamage) {
  const Folder folder;
  const RunFolder run(folder.path(), 2);
  EXPECT_FALSE(run.has_run());
  for (std::int64_t step = 1; step <= 5; ++step) run.save(some_state(step), step == 2);
  EXPECT_FALSE(std::filesystem::exists(folder / "step-00000003.safetensors"));
  EXPECT_EQ(load_state(folder / "best.safetensors").fact("step"), "2");
  std::vector<std::string> notes;
  EXPECT_EQ(run.newest(&notes)->fact("step"), "5");
  std::ofstream(folder / "step-00000005.safetensors") << "broken";
  EXPECT_EQ(run.newest(&notes)->fact("step"), "4");
  EXPECT_EQ(notes.size(), 1U);
  std::ofstream(folder / "step-00000004.safetensors") << "broken";
  EXPECT_THROW(run.newest(&notes), StateError);
  run.clear();
  EXPECT_FALSE(run.has_run());
}

// --- optimizers ---

Tensor parameter(std::vector<float> values) { return torch::tensor(values).requires_grad_(true); }

/// Two steps with the gradients g and 2 g.
Tensor two_steps(const OptimizerOptions& options, double rate_factor = 1) {
  Tensor w = parameter({1, -2, 3});
  Optimizer optimizer(options, {{{w}, rate_factor}});
  for (const float k : {1.0F, 2.0F}) {
    w.mutable_grad() = k * torch::tensor({0.5F, -1.0F, 0.25F});
    optimizer.step(1);
  }
  optimizer.zero_grad();
  EXPECT_FALSE(w.grad().defined());
  return w.detach();
}

void expect_near(const Tensor& a, const std::vector<double>& b) {
  for (std::size_t i = 0; i < b.size(); ++i) {
    EXPECT_NEAR(a[static_cast<std::int64_t>(i)].item<double>(), b[i], 1e-6) << i;
  }
}

TEST(Optimizer, SgdByHand) {
  OptimizerOptions options;
  options.lr = 0.1;
  options.momentum = 0;
  expect_near(two_steps(options), {1 - 0.15, -2 + 0.3, 3 - 0.075});
  expect_near(two_steps(options, 10), {1 - 1.5, -2 + 3.0, 3 - 0.75});
  options.momentum = 0.9;  // v: g, then 0.9 g + 2 g
  expect_near(two_steps(options),
              {1 - 0.1 * (0.5 + 1.45), -2 + 0.1 * (1 + 2.9), 3 - 0.1 * (0.25 + 0.725)});
  options.nesterov = true;  // g + 0.9 v each
  expect_near(two_steps(options),
              {1 - 0.1 * 0.5 * (1.9 + 2 + 0.9 * 2.9), -2 + 0.1 * (1.9 + 2 + 0.9 * 2.9),
               3 - 0.1 * 0.25 * (1.9 + 2 + 0.9 * 2.9)});
  options.nesterov = false;
  options.momentum = 0;
  options.weight_decay = 0.01;
  double w = 1;
  for (const double g : {0.5, 1.0}) w -= 0.1 * (g + 0.01 * w);
  EXPECT_NEAR(two_steps(options)[0].item<double>(), w, 1e-6);
}

TEST(Optimizer, AdamByHand) {
  for (const bool decoupled : {false, true}) {
    OptimizerOptions options;
    options.kind = decoupled ? "adamw" : "adam";
    options.lr = 0.1;
    options.weight_decay = 0.05;
    double w = 1;
    double m = 0;
    double v = 0;
    for (int t = 1; t <= 2; ++t) {
      double g = 0.5 * t;
      if (decoupled) {
        w -= 0.1 * 0.05 * w;
      } else {
        g += 0.05 * w;
      }
      m = 0.9 * m + 0.1 * g;
      v = 0.999 * v + 0.001 * g * g;
      w -= 0.1 * (m / (1 - std::pow(0.9, t))) / (std::sqrt(v / (1 - std::pow(0.999, t))) + 1e-8);
    }
    EXPECT_NEAR(two_steps(options)[0].item<double>(), w, 1e-6) << options.kind;
  }
}

TEST(Optimizer, ParametersWithoutAGradientStay) {
  Tensor used = parameter({1});
  Tensor unused = parameter({1});
  Optimizer optimizer({.kind = "adamw", .weight_decay = 0.1}, {{{used, unused}, 1}});
  used.mutable_grad() = torch::ones({1});
  optimizer.step(1);
  EXPECT_NE(used.item<float>(), 1);
  EXPECT_EQ(unused.item<float>(), 1);
  EXPECT_EQ(optimizer.gradients().size(), 1U);
}

TEST(Optimizer, ClipsByTheNormOverAll) {
  const std::vector<Tensor> small = {torch::tensor({3.0F}), torch::tensor({0.0F, 4.0F})};
  clip_norm(small, 10);
  EXPECT_EQ(small[1][1].item<float>(), 4);
  clip_norm(small, 1);
  EXPECT_NEAR(small[0][0].item<float>(), 0.6, 1e-6);
  EXPECT_NEAR(small[1][1].item<float>(), 0.8, 1e-6);
}

TEST(LossScaler, AnOverflowSkipsTheStepAndHalvesTheScale) {
  for (const char* kind : {"sgd", "adam", "adamw"}) {
    Tensor w = parameter({1, 2});
    Optimizer optimizer({.kind = kind, .lr = 0.1}, {{{w}, 1}});
    LossScaler scaler(torch::kCPU, 1024, true, 2);
    const auto step = [&](float gradient) {
      w.mutable_grad() = torch::full({2}, gradient * scaler.state()[0].second.item<float>());
      const Tensor found = scaler.unscale(optimizer.gradients());
      optimizer.step(1, found);
      scaler.update();
    };
    const auto scale = [&] { return scaler.state()[0].second.item<float>(); };
    step(0.5F);
    const Tensor before = w.detach().clone();
    EXPECT_FALSE(before.equal(torch::tensor({1.0F, 2.0F})));
    step(std::numeric_limits<float>::infinity());
    EXPECT_TRUE(w.detach().equal(before)) << kind;
    EXPECT_EQ(scale(), 512);
    step(std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(w.detach().equal(before)) << kind;
    EXPECT_EQ(scale(), 256);
    step(0.5F);
    EXPECT_FALSE(w.detach().equal(before));
    EXPECT_EQ(scale(), 256);
    step(0.5F);
    EXPECT_EQ(scale(), 512) << "two good steps in a row";
    if (std::string(kind) != "sgd") {
      EXPECT_EQ(optimizer.state().back().second.item<float>(), 3) << "skipped steps do not count";
    }
  }
}

TEST(LossScaler, AConstantScaleStaysAndIsTakenOff) {
  LossScaler scaler(torch::kCPU, 128, false);
  const std::vector<Tensor> gradients = {torch::tensor({256.0F})};
  EXPECT_EQ(scaler.scaled(torch::tensor(2.0F)).item<float>(), 256);
  EXPECT_EQ(scaler.unscale(gradients).item<float>(), 0);
  EXPECT_EQ(gradients[0].item<float>(), 2);
  gradients[0].fill_(std::numeric_limits<float>::infinity());
  EXPECT_EQ(scaler.unscale(gradients).item<float>(), 1);
  scaler.update();
  EXPECT_EQ(scaler.state()[0].second.item<float>(), 128);
  EXPECT_FALSE(LossScaler().active());
}

// --- scores ---

TEST(Metrics, SegmentationByHand) {
  Metrics metrics(zoo::Task::kSegmentation, 4, torch::kCPU);
  const Tensor target = torch::tensor({0, 0, 1, 1, 255, 2}, torch::kUInt8).reshape({1, 2, 3});
  const Tensor said = torch::tensor({0, 1, 1, 1, 3, 0}, torch::kUInt8).reshape({1, 2, 3});
  metrics.add(said, target, torch::tensor(0.5));
  metrics.add(said, target, torch::tensor(1.5));
  const Scores scores = metrics.scores();
  EXPECT_EQ(scores.samples, 2);
  EXPECT_DOUBLE_EQ(scores.loss, 1);
  EXPECT_DOUBLE_EQ(scores.accuracy(), 3.0 / 5);
  EXPECT_DOUBLE_EQ(*scores.classes[0].iou(), 1.0 / 3);
  EXPECT_DOUBLE_EQ(*scores.classes[1].iou(), 2.0 / 3);
  EXPECT_DOUBLE_EQ(*scores.classes[2].iou(), 0);
  EXPECT_FALSE(scores.classes[3].iou()) << "what was said where nothing counts does not count";
  EXPECT_DOUBLE_EQ(*scores.classes[1].dice(), 4.0 / 5);
  EXPECT_DOUBLE_EQ(scores.mean_iou(), 1.0 / 3);
  EXPECT_DOUBLE_EQ(scores.score(zoo::Task::kSegmentation), scores.mean_iou());

  metrics.add(said, torch::full({1, 2, 3}, 4, torch::kUInt8), torch::tensor(1.0));
  EXPECT_THROW(metrics.scores(), Error);
}

TEST(Metrics, VolumesByHand) {
  Metrics metrics(zoo::Task::kVolumes, 2, torch::kCPU);
  const Tensor target = torch::tensor({1, 1, 0, 0, 0, 0, 0, 0}, torch::kUInt8);
  const Tensor said = torch::tensor({1, 0, 1, 1, 0, 0, 0, 1}, torch::kUInt8);
  metrics.add(said.reshape({1, 2, 1, 2, 2}), target.reshape({1, 2, 1, 2, 2}), torch::tensor(1.0));
  const Scores scores = metrics.scores();
  EXPECT_DOUBLE_EQ(*scores.classes[0].dice(), 2.0 / 5);
  EXPECT_DOUBLE_EQ(*scores.classes[1].dice(), 0);
  EXPECT_DOUBLE_EQ(scores.mean_dice(), 0.2);
  EXPECT_DOUBLE_EQ(scores.accuracy(), 0.5);
}

TEST(Fingerprint, SameBytesHoweverTheyAreCut) {
  std::string bytes(1000, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7);
  Fingerprint whole;
  whole.add(bytes.data(), bytes.size());
  for (std::size_t cut : {1, 3, 8, 13, 999}) {
    Fingerprint parts;
    for (std::size_t at = 0; at < bytes.size(); at += cut) {
      parts.add(bytes.data() + at, std::min(cut, bytes.size() - at));
    }
    EXPECT_EQ(parts.text(), whole.text()) << cut;
  }
  bytes[500] = static_cast<char>(bytes[500] ^ 1);
  Fingerprint other;
  other.add(bytes.data(), bytes.size());
  EXPECT_NE(other.text(), whole.text());
}

}  // namespace
}  // namespace lms::train
