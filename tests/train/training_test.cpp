// The loop: resuming, stopping, losses that end it, LMS on and off. On a model of a few weights.

#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/error.h"
#include "tests/datasets/fixtures.h"
#include "tests/train/toy.h"
#include "train/csv_file.h"
#include "train/journal.h"
#include "train/machine.h"
#include "train/run_folder.h"
#include "train/trainer.h"

namespace lms::train {
namespace {

using data::fixtures::read_text;
using testing::Folder;
using testing::toy_parts;
using testing::toy_settings;

TrainResult run(const Settings& settings, bool resume = false) {
  const Machine machine(settings);
  const Parts parts = toy_parts();
  std::optional<State> start;
  std::vector<std::string> notes;
  if (resume) start = RunFolder(settings.out, settings.keep).newest(&notes);
  if (resume && !start) throw Error("there is nothing to resume");
  return train(settings, machine, parts, start, stderr);
}

std::vector<std::string> losses(const TrainResult& result) {
  std::vector<std::string> all;
  for (const StepRecord& record : result.records) all.push_back(hex_text(record.loss));
  return all;
}

/// The first columns of the log: step, epoch, loss, its bits, rate.
std::vector<std::string> log_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> rows;
  for (std::string line; std::getline(file, line);) {
    std::size_t at = 0;
    for (int i = 0; i < 5; ++i) at = line.find(',', at) + 1;
    rows.push_back(line.substr(0, at));
  }
  return rows;
}

TEST(Training, LearnsAndRepeatsItself) {
  const Folder folder;
  const auto more = std::vector<std::string>{"steps=150", "schedule=poly", "lr=0.01"};
  const TrainResult a = run(toy_settings(folder / "a", more));
  const TrainResult b = run(toy_settings(folder / "b", more));
  EXPECT_EQ(a.steps, 150);
  EXPECT_EQ(losses(a), losses(b));
  EXPECT_EQ(a.fingerprint, b.fingerprint);
  EXPECT_LT(a.records.back().loss, 0.7 * a.records.front().loss);
  ASSERT_TRUE(a.scores);
  EXPECT_GT(a.scores->mean_iou(), 0.5);
  auto other = toy_settings(folder / "c", more);
  other.seed = 2;
  EXPECT_NE(run(other).fingerprint, a.fingerprint);
  // 30 validations, the last at the end.
  const std::string table = read_text(folder / "a/validation.csv");
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 31);
}

TEST(Training, TheNumberOfWorkersChangesNothing) {
  const Folder folder;
  const TrainResult a = run(toy_settings(folder / "a", {"workers=1", "prefetch=1"}));
  const TrainResult b = run(toy_settings(folder / "b", {"workers=4", "prefetch=7"}));
  EXPECT_EQ(losses(a), losses(b));
}

struct Kind {
  const char* name;
  std::vector<std::string> settings;
};

class Resume : public ::testing::TestWithParam<Kind> {};

/// Stopped after each of several steps, in the middle of epochs (5 batches) and at their ends, a
/// run is the same as one that went through: losses, weights, logs, the best.
TEST_P(Resume, IsBitIdentical) {
  const Folder folder;
  const std::vector<std::string>& more = GetParam().settings;
  const TrainResult whole = run(toy_settings(folder / "whole", more));
  for (const std::int64_t stop : {1, 4, 5, 9}) {
    const std::string out = folder / ("stopped" + std::to_string(stop));
    auto settings = toy_settings(out, more);
    settings.checkpoint_every = stop;
    settings.journal = 0;
    settings.keep = 100;
    const TrainResult first = run(settings);
    EXPECT_EQ(first.fingerprint, whole.fingerprint);
    // As if it had been killed right after that step: only the checkpoints up to there are left.
    for (std::int64_t step = stop + 1; step <= whole.steps; ++step) {
      char name[64];
      std::snprintf(name, sizeof(name), "/step-%08lld.safetensors", static_cast<long long>(step));
      std::filesystem::remove(out + name);
    }
    torch::manual_seed(99);
    const TrainResult second = run(settings, true);
    EXPECT_EQ(second.steps, whole.steps);
    const auto all = losses(whole);
    EXPECT_EQ(losses(second), std::vector<std::string>(all.begin() + stop, all.end())) << stop;
    EXPECT_EQ(second.fingerprint, whole.fingerprint) << stop;
    EXPECT_EQ(second.best, whole.best);
    EXPECT_EQ(log_of(out + "/steps.csv"), log_of(folder / "whole/steps.csv"));
    EXPECT_EQ(read_text(out + "/validation.csv"), read_text(folder / "whole/validation.csv"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Resume,
    ::testing::Values(
        Kind{"sgd", {"schedule=poly", "nesterov=true", "warmup=3"}},
        Kind{"adam", {"optimizer=adam", "schedule=plateau", "patience=0", "lr=0.01"}},
        Kind{"adamw_accumulated", {"optimizer=adamw", "accumulate=3", "clip=0.5", "lr=0.01"}},
        Kind{"bf16_accumulated", {"precision=bf16", "accumulate=2", "schedule=cosine"}},
        Kind{"fp16_dynamic", {"precision=fp16", "lr=0.01"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Training, AccumulationIsALargerBatch) {
  // Without batch normalisation's and dropout's part: gradients of the same data, summed.
  const Folder folder;
  const TrainResult a = run(toy_settings(folder / "a", {"accumulate=2", "steps=1", "lr=0"}));
  const TrainResult b = run(toy_settings(folder / "b", {"batch=4", "steps=1", "lr=0"}));
  EXPECT_EQ(a.records.size(), 1U);
  EXPECT_NEAR(a.records[0].loss, b.records[0].loss, 0.2);
  const auto settings = toy_settings(folder / "c", {"accumulate=3", "steps=0", "epochs=3"});
  EXPECT_EQ(run(settings).steps, 5) << "15 batches make 5 steps, across epochs";
}

TEST(Training, ASignalSavesAndTheRunGoesOn) {
  const Folder folder;
  const std::vector<std::string> more = {"steps=4000", "val_every=-1", "journal=0", "log_every=1"};
  const std::string out = folder / "stopped";
  TrainResult stopped;
  {
    std::thread sender([&] {
      while (
          std::count_if(std::istreambuf_iterator<char>(std::ifstream(out + "/steps.csv").rdbuf()),
                        {}, [](char c) { return c == '\n'; }) < 20) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      ::kill(::getpid(), SIGINT);
    });
    stopped = run(toy_settings(out, more));
    sender.join();
  }
  EXPECT_EQ(stopped.signal, SIGINT);
  EXPECT_GE(stopped.steps, 19);
  ASSERT_LT(stopped.steps, 4000);
  const std::string end = "steps=" + std::to_string(stopped.steps);
  const TrainResult whole = run(toy_settings(folder / "whole", {end, "val_every=-1", "journal=0"}));
  EXPECT_EQ(stopped.fingerprint, whole.fingerprint);
  std::vector<std::string> notes;
  const auto state = RunFolder(out, 2).newest(&notes);
  EXPECT_EQ(state->fact("step"), std::to_string(stopped.steps));
}

TEST(Training, TheJournalHasTheLatestStep) {
  const Folder folder;
  run(toy_settings(folder.path(), {"val_every=-1", "steps=7"}));
  EXPECT_EQ(Journal::latest(folder / "journal")->fact("step"), "7");
}

TEST(Training, AFullDiskEndsTheRunAndLeavesTheLastCheckpoint) {
  const Folder folder;
  auto settings = toy_settings(folder.path(), {"journal=0", "checkpoint_every=1", "val_every=-1"});
  // The name of a checkpoint to come is taken by a folder that is not empty.
  std::filesystem::create_directories(folder / "step-00000004.safetensors/x");
  EXPECT_THROW(run(settings), Error);
  EXPECT_EQ(load_state(folder / "step-00000003.safetensors").fact("step"), "3");
}

TEST(Training, ALossThatIsNotFiniteIsAnError) {
  const Folder folder;
  try {
    run(toy_settings(folder.path(), {"lr=1e30", "steps=30", "log_every=1"}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the loss is not finite at step"), std::string::npos);
  }
}

TEST(Training, AnotherRunCannotBeResumed) {
  const Folder folder;
  run(toy_settings(folder.path()));
  std::vector<std::string> notes;
  const State state = *RunFolder(folder.path(), 2).newest(&notes);
  EXPECT_NO_THROW(check_same_run(
      toy_settings(folder.path(), {"workers=7", "limit=1GiB", "log_every=3"}), state));
  try {
    check_same_run(toy_settings(folder.path(), {"batch=3", "lr=1"}), state);
    FAIL();
  } catch (const BadSetting& error) {
    EXPECT_NE(std::string(error.what()).find("batch was '2', is '3'"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("lr was '0.05', is '1'"), std::string::npos);
  }
  EXPECT_EQ(changed_keys(settings_of(state)), changed_keys(toy_settings(folder.path())));
}

TEST(Training, WithLmsTheBitsAreTheSame) {
  const Folder folder;
  for (const char* kind : {"optimizer=sgd", "optimizer=adamw"}) {
    const TrainResult plain = run(toy_settings(folder / (std::string("plain") + kind), {kind}));
    const TrainResult lms = run(toy_settings(folder / (std::string("lms") + kind),
                                             {kind, "lms=true", "limit=64MiB", "min_block=512",
                                              "stress=true", "directory=" + folder.path()}));
    EXPECT_EQ(losses(plain), losses(lms)) << kind;
    EXPECT_EQ(plain.fingerprint, lms.fingerprint) << kind;
    EXPECT_GT(lms.statistics.at("evictions"), 0);
  }
}

TEST(Training, TooFewSamplesAreAnErrorThatSaysWhatWouldDo) {
  const Folder folder;
  try {
    run(toy_settings(folder.path(), {"batch=11"}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("drop_last=false"), std::string::npos);
  }
  EXPECT_EQ(run(toy_settings(folder / "b", {"batch=11", "drop_last=false", "steps=2"})).steps, 2);
}

TEST(Machine, LimitsAndDevices) {
  EXPECT_EQ(read_amount("limit", "12GiB", torch::kCPU), std::int64_t{12} << 30);
  EXPECT_EQ(read_amount("limit", "", torch::kCPU), -1);
  EXPECT_GT(read_amount("limit", "25%", torch::kCPU), 1 << 20);
  EXPECT_THROW(read_amount("limit", "lots", torch::kCPU), BadSetting);
  Settings settings = toy_settings("");
  settings.device = "tpu";
  EXPECT_THROW(Machine{settings}, BadSetting);
  settings.device = "cuda:99";
  EXPECT_THROW(Machine{settings}, BadSetting);
}

TEST(Machine, GeneratorsComeBack) {
  torch::manual_seed(5);
  torch::rand({3});
  const auto state = generator_states(torch::kCPU);
  const auto expected = torch::rand({3});
  restore_generators(torch::kCPU, state);
  {
    const GeneratorScope scope(torch::kCPU, 1);
    torch::rand({3});
  }
  EXPECT_TRUE(torch::rand({3}).equal(expected));
}

}  // namespace
}  // namespace lms::train
