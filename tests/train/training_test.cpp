// The loop: resuming, stopping, losses that end it, LMS on and off. On a model of a few weights.

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "base/error.h"
#include "lab/train/csv_file.h"
#include "lab/train/journal.h"
#include "lab/train/machine.h"
#include "lab/train/run_folder.h"
#include "lab/train/trainer.h"
#include "lab/zoo/host_canny.h"
#include "lab/zoo/resize.h"
#include "tests/datasets/fixtures.h"
#include "tests/train/toy.h"

namespace lms::train {
namespace {

using data::fixtures::read_text;
using testing::Folder;
using testing::toy_parts;
using testing::toy_settings;
using torch::Tensor;

TrainResult run(const Settings& settings, bool resume = false,
                const std::function<void(Parts&)>& change = {}) {
  const Machine machine(settings);
  Parts parts = toy_parts();
  if (change) change(parts);
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

/// The journal's entry of a step is written before the validation that follows it.
TEST(Training, AValidationThatWasLostIsMadeWhenTheRunGoesOn) {
  const Folder folder;
  const std::vector<std::string> more = {"optimizer=adam", "schedule=plateau", "patience=0",
                                         "lr=0.01"};
  const TrainResult whole = run(toy_settings(folder / "whole", more));
  const auto lose = [](Parts& parts) {
    parts.val = data::transformed(parts.val, {[](data::Sample&, data::Generator&) {
                                    throw data::DataError("cannot be read today");
                                  }});
  };
  const Settings settings = toy_settings(folder / "broken", more);
  EXPECT_THROW(run(settings, false, lose), data::DataError);
  const TrainResult resumed = run(settings, true);
  EXPECT_EQ(resumed.records.front().step, 6) << "an epoch has five steps";
  EXPECT_EQ(resumed.fingerprint, whole.fingerprint);
  EXPECT_EQ(resumed.best, whole.best);
  EXPECT_EQ(log_of(folder / "broken/steps.csv"), log_of(folder / "whole/steps.csv"));
  EXPECT_EQ(read_text(folder / "broken/validation.csv"),
            read_text(folder / "whole/validation.csv"));
}

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

TEST(Training, AStateAfterALossThatIsNotFiniteReplacesNoCheckpoint) {
  const Folder folder;
  const auto settings =
      toy_settings(folder.path(), {"lr=1e30", "steps=30", "log_every=30", "journal=0",
                                   "checkpoint_every=1", "keep=1", "val_every=-1"});
  std::int64_t failed = 0;
  try {
    run(settings);
    FAIL();
  } catch (const Error& error) {
    const std::string said = error.what();
    const std::string at = "at step ";
    failed = std::stoll(said.substr(said.find(at) + at.size()));
  }
  std::vector<std::string> notes;
  EXPECT_EQ(RunFolder(folder.path(), 1).newest(&notes)->fact("step"), std::to_string(failed - 1));
  // Its row says why, and those before it are all there.
  EXPECT_EQ(log_of(folder / "steps.csv").size(), static_cast<std::size_t>(failed) + 1);
}

TEST(Training, WeightsToStartFromAreReadBeforeTheOldRunGoes) {
  const Folder folder;
  run(toy_settings(folder.path(), {"journal=0"}));
  const std::string best = folder / "best.safetensors";
  EXPECT_THROW(run(toy_settings(folder.path(), {"init=" + folder / "nothing"})), StateError);
  ASSERT_TRUE(std::filesystem::exists(best)) << "a mistake in init costs the old run";
  const Tensor old = load_state(best).tensor("model.head.weight").clone();
  run(toy_settings(folder.path(), {"init=" + best, "lr=0", "steps=1", "journal=0"}));
  EXPECT_TRUE(
      load_state(folder / "step-00000001.safetensors").tensor("model.head.weight").equal(old));
}

TEST(Training, WhatWaitsForBatchesIsAPartOfTheStep) {
  const Folder folder;
  const auto slow = [](Parts& parts) {
    parts.train = data::transformed(parts.train, {[](data::Sample&, data::Generator&) {
                                      std::this_thread::sleep_for(std::chrono::milliseconds(20));
                                    }});
  };
  const TrainResult result = run(toy_settings(folder.path(), {"steps=5", "workers=1", "prefetch=1",
                                                              "val_every=-1", "journal=0"}),
                                 false, slow);
  double ms = 0;
  double waited = 0;
  for (const StepRecord& record : result.records) {
    EXPECT_LE(record.waited_ms, record.ms);
    ms += record.ms;
    waited += record.waited_ms;
  }
  EXPECT_GE(ms, 4 * 2 * 20) << "batches of two samples, by one worker, but for the first";
  EXPECT_GT(waited, 0.5 * ms);
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

TEST(Training, StateOfAnotherShapeIsNotSpreadOverTheOldOne) {
  State state;
  state.tensors = {{"optimizer.0.first.0", torch::ones({1})}};
  const Tensor to = torch::zeros({3, 4});
  EXPECT_THROW(load_tensor(state, "optimizer.0.first.0", to), StateError);
  EXPECT_EQ(to.sum().item<float>(), 0);
}

TEST(Training, ValidationOnTheTrainingDataIsSaid) {
  const auto same = [](const std::vector<std::string>& more) {
    Settings settings = toy_settings("", {"model=unet3d", "crop=16", "val_crop=16", "classes=0"});
    for (const std::string& text : more) apply_override(settings, text);
    return make_parts(settings, true).val_is_train;
  };
  const std::string data = "synthetic:?task=volumes&size=16&count=4";
  EXPECT_FALSE(same({"data=" + data}));
  EXPECT_TRUE(same({"data=" + data, "val_split=train"}));
  EXPECT_FALSE(same({"data=" + data + "&part=train", "val_data=" + data + "&part=val"}));
  EXPECT_TRUE(same({"data=" + data + "&split=train", "val_data=" + data + "&split=train"}));
}

TEST(Training, WhatModelsWriteWithoutOperatorsIsNotComputedAgainByThem) {
  const Folder folder;
  torch::manual_seed(3);
  const Tensor input = torch::rand({1, 2, 40, 40});
  const Tensor picture = torch::rand({2, 3, 40, 40}).mul(255).to(torch::kUInt8);
  const Tensor larger = zoo::Bilinear(true)(input, {80, 80});
  const Tensor edges = zoo::HostCanny(picture).finish();
  ASSERT_GT(edges.sum().item<float>(), 0);
  const Machine machine(
      toy_settings(folder.path(), {"lms=true", "limit=64MiB", "min_block=512", "stress=true",
                                   "drop=true", "directory=" + folder.path()}));
  zoo::Bilinear resize(true);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(resize(input, {80, 80}).equal(larger));
  zoo::HostCanny canny(picture.flip(0));
  torch::rand({1000}).mul(2);
  EXPECT_TRUE(canny.finish().flip(0).equal(edges));
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
