// The driver with a worker that only pretends. No PyTorch.
#include "lab/studies/driver.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <limits>
#include <memory>
#include <utility>

#include "base/error.h"
#include "lab/studies/cli.h"
#include "studies/support.h"

namespace lms::studies {
namespace {

namespace fs = std::filesystem;
using test::Folder;
using test::kRecipe;
using test::read;
using test::read_json;
using test::read_record;
using test::write;
using test::write_json;

/// A worker that trains in memory up to side 1000 (100 bytes a side of a cap of 100,000), with LMS
/// up to 2700, and notes each call. In a file "crash" lies the side where it dies, in "kill" where
/// the system kills it, in "slow" where it sleeps, in "partial" where it sleeps with a record.
std::string fake_worker(const Folder& folder) {
  const std::string path = folder / "worker.sh";
  write(path, R"BASH(#!/bin/bash
for pair in "$@"; do
  case "$pair" in
    sides=*) sides="${pair#sides=}"; side="${sides%%x*}";;
    batch=*) batch="${pair#batch=}";;
    method=*) method="${pair#method=}";;
    out=*) out="${pair#out=}";;
    link=*) link="\"${pair#link=}\"";;
    study=*) study="${pair#study=}";;
    series=*) series="${pair#series=}";;
    cap=*) cap="${pair#cap=}";;
    precision=*) precision="${pair#precision=}";;
    commit=*) commit="${pair#commit=}";;
  esac
done
here="$(dirname "$0")"
echo "${method:-plain} $side ${batch:-1}" >> "$here/calls"
[ -f "$here/crash" ] && [ "$(cat "$here/crash")" = "$side" ] && { echo "something broke" >&2; exit 7; }
[ -f "$here/kill" ] && [ "$(cat "$here/kill")" = "$side" ] && kill -9 $$
partial=false
[ -f "$here/partial" ] && [ "$(cat "$here/partial")" = "$side" ] && partial=true
[ -f "$here/slow" ] && [ "$(cat "$here/slow")" = "$side" ] && [ "$partial" = false ] && sleep 30
most=1000; [ "${method:-plain}" = lms ] && most=2700
outcome=ok; [ $((side * ${batch:-1})) -gt $most ] && outcome=oom
cat > "$out.part" <<END
{"schema": "lms-bench/1", "study": "$study", "series": "$series", "model": "resnet50",
 "batch": ${batch:-1}, "sides": [$side, $side], "method": "${method:-plain}", "cap": ${cap:-0},
 "precision": "${precision:-tf32}", "commit": "$commit", "partial": $partial,
 "link_emulated": ${link:-null}, "outcome": "$outcome", "samples": {"unit": "MP", "per_step": 1},
 "steps": [0.5, 0.25], "peak": {"reserved": $((side * 100))}}
END
mv "$out.part" "$out"
[ "$partial" = true ] && sleep 30
exit 0
)BASH");
  ::chmod(path.c_str(), 0755);
  return path;
}

struct Driven {
  DriverResult result;
  std::string log;
};

Driven drive(const Folder& folder, const std::function<void(DriverOptions&)>& change = {},
             const std::string& recipe = kRecipe, const std::function<bool()>& stop = {}) {
  DriverOptions options;
  options.out = folder / "out";
  options.worker = {fake_worker(folder)};
  if (change) change(options);
  const std::string log = folder / "log";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(log.c_str(), "w"),
                                                             &std::fclose);
  Driven run;
  run.result = run_studies({parse_recipe(recipe, "T1.toml")}, options, file.get(), stop);
  std::fflush(file.get());
  run.log = read(log);
  return run;
}

int lines(const std::string& text) { return static_cast<int>(std::ranges::count(text, '\n')); }

TEST(Driver, FindsTheEdgeAndGoesOnFromThere) {
  Folder folder;
  const Driven run = drive(folder);
  EXPECT_EQ(run.result.left, 0) << run.log;
  EXPECT_EQ(run.result.failed, 0) << run.log;
  const std::string series = folder / "out/T1/resolution/";
  const auto plain = read_json(series + "boundary.plain.json");
  EXPECT_EQ(plain.at("largest_ok"), 1000);
  EXPECT_EQ(plain.at("smallest_failed"), 1100);
  EXPECT_EQ(plain.at("why"), "oom");
  EXPECT_EQ(plain.at("model"), "resnet50");
  // 4 and 9 times the pixels of 1000 squared.
  const auto lms = read_json(series + "boundary.lms.json");
  EXPECT_EQ(lms.at("largest_ok"), 2000);
  EXPECT_EQ(lms.at("smallest_failed"), 3000);
  EXPECT_TRUE(read_record(folder / "out/T1/batch/lms.2.pcie3.json"));
  EXPECT_EQ(read_record(folder / "out/T1/batch/lms.2.pcie3.json")->sides.at(0), 500);
  EXPECT_FALSE(fs::exists(folder / "out/T1/batch/boundary.lms.json"));
  EXPECT_GT(read_record(series + "lms.2000.json")->wall.value_or(0), 0);

  // All is known.
  const int calls = lines(read(folder / "calls"));
  EXPECT_EQ(drive(folder).result.tries, 0);
  EXPECT_EQ(lines(read(folder / "calls")), calls);
  // One record is lost: one try.
  fs::remove(series + "lms.3000.json");
  EXPECT_EQ(drive(folder).result.tries, 1);
}

TEST(Driver, TellsCrashesFromFullMemory) {
  Folder folder;
  write(folder / "crash", "2000");
  write(folder / "kill", "3000");
  const Driven run = drive(folder);
  EXPECT_EQ(run.result.failed, 1) << run.log;
  const std::string series = folder / "out/T1/resolution/";
  const auto crashed = read_record(series + "lms.2000.json");
  ASSERT_TRUE(crashed);
  EXPECT_EQ(crashed->outcome, Outcome::kFailed);
  EXPECT_NE(crashed->message.find("something broke"), std::string::npos) << crashed->message;
  EXPECT_EQ(crashed->sides.at(0), 2000);
  EXPECT_EQ(read_record(series + "lms.3000.json")->outcome, Outcome::kHost);
  // What crashed says nothing of the size.
  const auto boundary = read_json(series + "boundary.lms.json");
  EXPECT_FALSE(boundary.contains("largest_ok"));
  EXPECT_EQ(boundary.at("smallest_failed"), 3000);
  // The next run tries it again, and nothing else.
  fs::remove(folder / "crash");
  EXPECT_EQ(drive(folder).result.tries, 1);
  EXPECT_EQ(read_record(series + "lms.2000.json")->outcome, Outcome::kOk);
}

TEST(Driver, ACrashEndsASearchThatRestsOnIt) {
  Folder folder;
  write(folder / "crash", "600");
  const Driven run = drive(folder);
  // Half of it trains; no size is tried twice.
  EXPECT_EQ(run.result.left, 0) << run.log;
  EXPECT_EQ(run.result.failed, 1) << run.log;
  const std::string calls = read(folder / "calls");
  EXPECT_NE(calls.find("plain 600"), std::string::npos);
  EXPECT_EQ(calls.find("plain 600"), calls.rfind("plain 600")) << calls;
  EXPECT_NE(calls.find("plain 500"), std::string::npos) << calls;
  // 500 is not the largest in memory: nothing is measured against it.
  EXPECT_EQ(calls.find("lms"), std::string::npos) << calls;
  EXPECT_EQ(run.result.skipped, 3) << run.log;
  fs::remove(folder / "crash");
  EXPECT_EQ(drive(folder).result.skipped, 0);
  EXPECT_EQ(read_json(folder / "out/T1/resolution/boundary.plain.json").at("largest_ok"), 1000);
}

TEST(Driver, MultiplesWaitForTheEndOfTheSearch) {
  Folder folder;
  drive(folder);
  const std::string series = folder / "out/T1/resolution/";
  // As if the search had been killed before it met the edge.
  fs::remove(series + "plain.1000.json");
  fs::remove(series + "plain.1100.json");
  fs::remove(series + "lms.2000.json");
  const Driven run =
      drive(folder, [](DriverOptions& options) { options.only = {"resolution/lms"}; });
  EXPECT_TRUE(fs::exists(series + "plain.1100.json")) << run.log;
  EXPECT_TRUE(fs::exists(series + "lms.2000.json")) << run.log;
  EXPECT_EQ(run.result.tries, 3) << run.log;
}

TEST(Driver, WhatTookTooLongIsNoEdgeInMemory) {
  Folder folder;
  write(folder / "slow", "1000");
  const Driven run = drive(folder, [](DriverOptions& options) { options.timeout = 0.5; });
  EXPECT_EQ(read_record(folder / "out/T1/resolution/plain.1000.json")->outcome, Outcome::kTimeout);
  EXPECT_EQ(run.result.skipped, 3) << run.log;
}

TEST(Driver, RecordsOfOtherSettingsAreNotTakenForWhatWasAsked) {
  Folder folder;
  const int tries = drive(folder).result.tries;
  const auto with = [&](const std::string& key, const std::string& value) {
    return drive(folder, [&](DriverOptions& options) { options.settings[key] = value; });
  };
  EXPECT_THROW(with("precision", "bf16"), BadSetting);
  EXPECT_THROW(with("cap", "200kB"), BadSetting);
  EXPECT_EQ(with("steps", "4").result.tries, 0);
  // Those of another commit stand, and are counted.
  const Driven later = with("commit", "abc");
  EXPECT_EQ(later.result.tries, 0);
  EXPECT_NE(later.log.find(std::to_string(tries) + " records are of other commits"),
            std::string::npos)
      << later.log;
  // Or they are made again.
  const Driven again = drive(folder, [](DriverOptions& options) {
    options.settings = {{"precision", "bf16"}};
    options.again = true;
  });
  EXPECT_EQ(again.result.failed + again.result.left + again.result.skipped, 0) << again.log;
  EXPECT_EQ(read_record(folder / "out/T1/resolution/lms.2000.json")->precision, "bf16");
  EXPECT_THROW(drive(folder), BadSetting);
}

TEST(Driver, ATryOfAnotherSideIsMadeAgain) {
  Folder folder;
  drive(folder);
  const std::string path = folder / "out/T1/batch/lms.2.pcie3.json";
  Record record = read_record(path).value();
  record.sides = {400, 400};
  write_json(path, to_json(record));
  const Driven run = drive(folder);
  EXPECT_EQ(run.result.tries, 1) << run.log;
  EXPECT_EQ(read_record(path)->sides.at(0), 500);
}

TEST(Driver, AgainLeavesNothingOfTheSearchBefore) {
  Folder folder;
  drive(folder);
  const std::string series = folder / "out/T1/resolution/";
  // Of a day when more fitted.
  Record record = read_record(series + "plain.1000.json").value();
  record.sides = {1500, 1500};
  write_json(series + "plain.1500.json", to_json(record));
  const Driven run = drive(folder, [](DriverOptions& options) { options.again = true; });
  EXPECT_GT(run.result.tries, 4);
  EXPECT_FALSE(fs::exists(series + "plain.1500.json")) << run.log;
  EXPECT_EQ(read_json(series + "boundary.plain.json").at("largest_ok"), 1000);
}

TEST(Driver, WhatWasMeasuredBeforeAHangIsKept) {
  Folder folder;
  write(folder / "partial", "2000");
  const Driven run = drive(folder, [](DriverOptions& options) { options.timeout = 0.5; });
  const std::string path = folder / "out/T1/resolution/lms.2000.json";
  EXPECT_EQ(read_record(path)->outcome, Outcome::kOk) << run.log;
  EXPECT_TRUE(read_record(path)->partial);
  EXPECT_EQ(read_json(folder / "out/T1/resolution/boundary.lms.json").at("largest_ok"), 2000);
  // But where it was this run that had no time, the next one makes all of it.
  fs::remove(path);
  bool begun = false;
  const Driven cut = drive(
      folder, [&](DriverOptions& options) { options.only = {"/lms"}; }, kRecipe,
      [&] { return std::exchange(begun, fs::exists(path)) && begun; });
  EXPECT_EQ(cut.result.left, 1) << cut.log;
  EXPECT_FALSE(fs::exists(path));
}

TEST(Driver, ASearchOfSoManyTriesEndsWhateverRunMadeThem) {
  Folder folder;
  const std::string recipe = std::string(kRecipe) + R"(
[[series.tries]]
method = "lms"
search = true
most = 2
priority = 3
)";
  const Driven first = drive(folder, {}, recipe);
  EXPECT_EQ(first.result.left, 0) << first.log;
  const std::string calls = read(folder / "calls");
  EXPECT_EQ(drive(folder, {}, recipe).result.tries, 0);
  EXPECT_EQ(read(folder / "calls"), calls);
  EXPECT_EQ(drive(
                folder, [](DriverOptions& options) { options.list = true; }, recipe)
                .result.left,
            0);
}

TEST(Driver, ATryThatTakesTooLongIsATimeout) {
  Folder folder;
  write(folder / "slow", "3000");
  const Driven run = drive(folder, [](DriverOptions& options) { options.timeout = 0.5; });
  const auto record = read_record(folder / "out/T1/resolution/lms.3000.json");
  ASSERT_TRUE(record) << run.log;
  EXPECT_EQ(record->outcome, Outcome::kTimeout);
  EXPECT_EQ(drive(folder).result.tries, 0);
}

TEST(Driver, StopsWhenTheTimeIsUsedUp) {
  Folder folder;
  const Driven run = drive(folder, [](DriverOptions& options) { options.budget = 10; });
  EXPECT_EQ(run.result.tries, 0);
  EXPECT_GE(run.result.left, 3);
  // Known times are believed rather than the usual ones.
  EXPECT_GT(drive(folder, [](DriverOptions& options) { options.budget = 60; }).result.tries, 3);
}

TEST(Driver, ListsWhatIsLeft) {
  Folder folder;
  const auto list = [](DriverOptions& options) { options.list = true; };
  const Driven before = drive(folder, list);
  EXPECT_NE(before.log.find("T1 resolution plain, a search"), std::string::npos) << before.log;
  EXPECT_NE(before.log.find("(9x)"), std::string::npos) << before.log;
  EXPECT_FALSE(fs::exists(folder / "calls"));
  drive(folder);
  EXPECT_EQ(drive(folder, list).result.left, 0);
}

TEST(Driver, MakesWhatIsAskedFor) {
  Folder folder;
  const Driven run =
      drive(folder, [](DriverOptions& options) { options.only = {"resolution/lms"}; });
  // The multiples rest on the search in memory.
  EXPECT_TRUE(fs::exists(folder / "out/T1/resolution/boundary.plain.json")) << run.log;
  EXPECT_TRUE(fs::exists(folder / "out/T1/resolution/lms.2000.json"));
  EXPECT_FALSE(fs::exists(folder / "out/T1/batch"));
}

TEST(Program, SearchesAndSweeps) {
  Folder folder;
  const std::string worker = fake_worker(folder);
  const std::string out = folder / "out";
  const auto program = [&](std::vector<std::string> arguments) {
    std::vector<const char*> argv = {"lms"};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> log(
        std::fopen((folder / "log").c_str(), "w"), &std::fclose);
    return run(static_cast<int>(argv.size()), argv.data(), log.get(), log.get(), {});
  };
  EXPECT_EQ(program({"bench", "search", "model=resnet50", "start=500", "step=50", "method=plain",
                     "--out", out, "--worker", worker}),
            kDone)
      << read(folder / "log");
  EXPECT_EQ(read_json(out + "/search/resnet50.side/boundary.plain.json").at("largest_ok"), 1000);
  EXPECT_EQ(program({"bench", "sweep", "model=resnet50", "values=500,2000", "methods=plain,lms",
                     "--out", out, "--worker", worker}),
            kDone);
  EXPECT_EQ(read_record(out + "/sweep/resnet50.side/plain.2000.json")->outcome, Outcome::kOom);
  EXPECT_EQ(read_record(out + "/sweep/resnet50.side/lms.2000.json")->outcome, Outcome::kOk);
  EXPECT_EQ(program({"bench", "sweep", "model=resnet50", "values=300", "methods=plain,lms",
                     "link=pcie3", "series=slow", "--out", out, "--worker", worker}),
            kDone);
  EXPECT_TRUE(read_record(out + "/sweep/slow/lms.300.pcie3.json"));
  EXPECT_TRUE(read_record(out + "/sweep/slow/plain.300.json"));
  EXPECT_EQ(program({"bench", "sweep", "modle=resnet50", "values=1"}), kBadInput);
  EXPECT_EQ(program({"bench", "sweep", "model=resnet50", "values=1", "methods=magic"}), kBadInput);
  EXPECT_EQ(program({"bench", "sweep", "model=resnet50", "multiples=x"}), kBadInput);
  EXPECT_EQ(program({"bench", "sweep", "model=resnet50", "multiples=-2"}), kBadInput);
  EXPECT_EQ(program({"bench", "studies", "method=lms", "--list"}), kBadInput);
  EXPECT_EQ(program({"bench", "studies", "--recipes", LMS_BENCH_RECIPES, "--list", "--out", out}),
            kDone);
  EXPECT_EQ(
      program({"bench", "studies", "--recipes", LMS_BENCH_RECIPES, "--list", "--budget", "nan"}),
      kBadInput);
  const auto listed = [&](const std::string& only, const std::string& setting) {
    return program({"bench", "studies", "--recipes", LMS_BENCH_RECIPES, "--list", "--out", out,
                    "--only", only, setting});
  };
  EXPECT_EQ(listed("B3/,B4/", "host_budget=1GiB"), kDone);
  EXPECT_EQ(read(folder / "log").find("B2"), std::string::npos);
  EXPECT_NE(read(folder / "log").find("B4"), std::string::npos);
  EXPECT_EQ(listed("B3/", "host_bugdet=1GiB"), kBadInput) << "what follows --only is a setting";
  EXPECT_EQ(program({"bench", "study", folder / "none.toml"}), kBadInput);
  EXPECT_EQ(program({"bench", "--help"}), kDone);
  EXPECT_EQ(program({"bench", "dance"}), kBadInput);
}

}  // namespace
}  // namespace lms::studies
