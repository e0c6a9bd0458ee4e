// Recipes, searches, records, and the driver with a worker that only pretends. No PyTorch.
#include "studies/driver.h"

#include <ftw.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "studies/bounds.h"
#include "studies/child.h"
#include "studies/cli.h"
#include "studies/item.h"
#include "studies/search.h"

namespace lms::studies {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "lms-studies-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  // Not std::filesystem::remove_all: PyTorch's libraries export one of another libstdc++.
  ~Folder() {
    ::nftw(
        path_.c_str(),
        [](const char* each, const struct stat*, int, struct FTW*) { return std::remove(each); },
        16, FTW_DEPTH | FTW_PHYS);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

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

constexpr const char* kRecipe = R"(
study = "T1"
title = "A test"
model = "resnet50"
classes = 15
cap = "100kB"

[training]
lr = 0.5

[[series]]
name = "resolution"
over = "side"
batch = 1
start = 600
step = 100

[[series.tries]]
method = "plain"
search = true
priority = 1

[[series.tries]]
method = "lms"
multiples = [4, 9]
priority = 1
steps = 3

[[series]]
name = "batch"
over = "batch"
base = 1
side_of = "resolution"
side_factor = 0.5

[[series.tries]]
method = "lms"
multiples = [2]
link = "pcie3"
)";

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

TEST(Search, ConvergesOnAnyEdge) {
  for (const std::int64_t edge : {1, 7, 100, 613, 5000}) {
    for (const bool peaks : {false, true}) {
      std::map<std::int64_t, Tried> tried;
      const SearchOptions options{.start = 600, .step = 7, .power = 2};
      int tries = 0;
      while (const auto size = next_size(tried, options)) {
        ASSERT_FALSE(tried.contains(*size)) << *size << " again, edge " << edge;
        ASSERT_EQ(*size % 7, 0);
        Tried& each = tried[*size];
        each.outcome = *size <= edge ? Outcome::kOk : Outcome::kOom;
        const double share = static_cast<double>(*size) / static_cast<double>(edge);
        if (peaks && each.outcome == Outcome::kOk) each.used = share * share;
        ASSERT_LT(++tries, 30);
      }
      const Edge found = edge_of(tried);
      if (edge < 7) {
        EXPECT_FALSE(found.largest_ok);
      } else {
        EXPECT_EQ(found.largest_ok.value_or(0), edge / 7 * 7) << edge;
      }
      // What fills the memory is asked first: then the next one fails, and that is all.
      if (peaks && edge == 5000) {
        EXPECT_LE(tries, 4);
      }
    }
  }
}

TEST(Search, CachesThatFillTheMemoryDoNotMislead) {
  std::map<std::int64_t, Tried> tried;
  const SearchOptions options{.start = 1000, .step = 10, .power = 2};
  while (const auto size = next_size(tried, options)) {
    // All that trains has filled the memory.
    tried[*size] = *size <= 3330 ? Tried{Outcome::kOk, 1.0} : Tried{Outcome::kOom};
    ASSERT_LT(tried.size(), 25U);
  }
  EXPECT_EQ(edge_of(tried).largest_ok, 3330);
}

TEST(Search, GoesOnWhereItWasLeft) {
  const SearchOptions options{.start = 10, .step = 1};
  EXPECT_EQ(next_size({}, options), 10);
  EXPECT_EQ(next_size({{10, {Outcome::kOk}}}, options), 20);
  EXPECT_EQ(next_size({{10, {Outcome::kOk}}, {20, {Outcome::kHost}}}, options), 15);
  EXPECT_EQ(next_size({{10, {Outcome::kOk}}, {11, {Outcome::kTimeout}}}, options), std::nullopt);
  EXPECT_EQ(next_size({{10, {Outcome::kOom}}}, options), 5);
  EXPECT_EQ(next_size({{1, {Outcome::kOom}}}, options), std::nullopt);
}

TEST(Recipe, ReadsItsSeries) {
  const Recipe recipe = parse_recipe(kRecipe, "T1.toml");
  EXPECT_EQ(recipe.study, "T1");
  ASSERT_EQ(recipe.series.size(), 2U);
  EXPECT_EQ(recipe.series[0].settings.at("training.lr"), "0.5");
  EXPECT_EQ(recipe.series[0].tries[1].multiples, (std::vector<double>{4, 9}));
  EXPECT_EQ(recipe.series[0].tries[1].settings.at("steps"), "3");
  EXPECT_EQ(recipe.series[1].tries[0].link, "pcie3");
  EXPECT_EQ(scaled(1000, 9, "side", 2, 100), 3000);
  EXPECT_EQ(scaled(900, 8.35, "side", 2, 20), 2620);
  EXPECT_EQ(scaled(192, 2, "side", 3, 16), 256);
  EXPECT_EQ(scaled(11, 4, "batch", 2, 1), 44);
}

TEST(Recipe, SaysWhatIsWrongAndWhere) {
  const auto complaint = [](const std::string& text) -> std::string {
    try {
      parse_recipe(text, "x.toml");
    } catch (const BadSetting& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(complaint("study = \"B\"\nprecison = \"tf32\"\n").find("x.toml:2"), std::string::npos);
  EXPECT_NE(complaint("study = \"B\"\nprecison = \"tf32\"\n").find("'precision'"),
            std::string::npos);
  EXPECT_NE(complaint("study = \"B\"\nprecision = \"int8\"\n").find("none of"), std::string::npos);
  EXPECT_NE(complaint("study = ").find("x.toml:1"), std::string::npos);
  EXPECT_NE(complaint("title = \"no name\"").find("study"), std::string::npos);
}

TEST(Recipe, ThoseOfTheStudiesAreRight) {
  int recipes = 0;
  for (const std::string& name : names_in(LMS_BENCH_RECIPES)) {
    if (!name.ends_with(".toml")) continue;
    const Recipe recipe = read_recipe(std::string(LMS_BENCH_RECIPES) + "/" + name);
    ++recipes;
    for (const RecipeSeries& series : recipe.series) {
      EXPECT_TRUE(series.settings.contains("model")) << name;
      EXPECT_TRUE(series.settings.contains("cap")) << name;
      EXPECT_FALSE(series.tries.empty()) << name;
      for (const RecipeTries& tries : series.tries) {
        if (!tries.link.empty()) {
          EXPECT_GT(link_rate(tries.link), 0);
        }
        for (const auto& [key, value] : tries.settings) {
          TrySpec spec;
          EXPECT_NO_THROW(set_value(spec, key, value));
        }
      }
    }
  }
  EXPECT_EQ(recipes, 6);
}

/// Does a recipe measure LMS so many times the largest in memory, first of all, in a series whose
/// largest in memory it searches for?
bool has_headline(const Recipe& recipe, const std::string& over, double least, double most) {
  return std::ranges::any_of(recipe.series, [&](const RecipeSeries& series) {
    const auto first = [](const RecipeTries& tries) { return tries.priority == 1; };
    const auto& tries = series.tries;
    return series.over == over &&
           std::ranges::any_of(tries,
                               [&](const RecipeTries& each) {
                                 return first(each) && each.method == "plain" && each.search;
                               }) &&
           std::ranges::any_of(tries, [&](const RecipeTries& each) {
             return first(each) && each.method == "lms" && each.link.empty() &&
                    std::ranges::any_of(each.multiples, [&](double multiple) {
                      return least <= multiple && multiple <= most;
                    });
           });
  });
}

TEST(Recipe, ThoseOfTheStudiesAnswerEveryGoal) {
  const std::string folder = LMS_BENCH_RECIPES;
  int goals = 0;
  const auto published = read_json(folder + "/published.json");
  for (const auto& study : published.at("studies")) {
    const auto name = study.at("study").get<std::string>();
    const Recipe recipe = read_recipe(folder + "/" + name + ".toml");
    EXPECT_EQ(recipe.study, name);
    for (const auto& goal : study.at("goals")) {
      ++goals;
      const auto over = goal.at("over").get<std::string>();
      if (goal.at("measure") == "factor") {
        EXPECT_TRUE(has_headline(recipe, over, goal.at("target"), 1e9)) << name << goal;
        continue;
      }
      const auto& at = goal.contains("judge_at") ? goal.at("judge_at") : goal.at("at");
      if (!at.is_number()) continue;  // at the largest: that of a factor
      EXPECT_TRUE(has_headline(recipe, over, at, at)) << name << goal;
    }
  }
  EXPECT_EQ(goals, 11);
}

TEST(Record, ReadsBackAsWritten) {
  Folder folder;
  Record record;
  record.study = "B3";
  record.sides = {6000, 6000};
  record.batch = 1;
  record.method = "lms";
  record.outcome = Outcome::kOk;
  record.unit = "MP";
  record.per_step = 36;
  record.steps = {0.5, 0.25, 0.5};
  record.losses = {1.5, std::numeric_limits<double>::quiet_NaN()};
  record.link_emulated = "pcie3";
  record.bytes_to_host = 1'000'000'000;
  record.to_host_rate = 1e10;
  record.timeline = Timeline{0.5, {{0, 0.1}}, {}, {{0.2, 0.3}}, {{0.1, 0.2, "gemm"}}};
  record.allocations = {{"driver", 3}};
  record.settings = Values{{"variants.norm", "group"}};
  record.partial = true;
  record.message = "not \xff UTF-8";
  const std::string path = folder / "a/b/record.json";
  write_json(path, to_json(record));
  const auto json = read_json(path);
  EXPECT_DOUBLE_EQ(json.at("rate").at("median"), 72);
  // 108 MP in 1.25 s; the mean of the three rates would be 96.
  EXPECT_DOUBLE_EQ(json.at("rate").at("mean"), 86.4);
  EXPECT_DOUBLE_EQ(json.at("rate").at("spread"), 1);
  EXPECT_DOUBLE_EQ(json.at("link").at("to_host_use"), 0.2);
  EXPECT_FALSE(json.contains("bound"));
  const auto back = read_record(path);
  ASSERT_TRUE(back);
  EXPECT_TRUE(std::isnan(back->losses.at(1)));
  EXPECT_EQ(back->timeline->gaps.at(0).before, "gemm");
  EXPECT_EQ(read_json(path), nlohmann::ordered_json::parse(to_json(*back).dump()));
  write(folder / "other.json", "{\"schema\": \"lms-bench-boundary/1\"}");
  EXPECT_FALSE(read_record(folder / "other.json"));
  write(folder / "half.json", "{\"schema\": \"lms-be");
  EXPECT_FALSE(read_record(folder / "half.json"));
}

TEST(TrySpecs, ReadBackAsWritten) {
  const TrySpec spec = spec_of({{"model", "unet3d"},
                                {"sides", "32x48x64"},
                                {"cap", "16GiB"},
                                {"slack", "-1"},
                                {"variants.norm", "released"},
                                {"training.lr", "0.1"},
                                {"plan_seconds", "1.5"}});
  EXPECT_EQ(spec.cap, std::int64_t{16} << 30);
  EXPECT_EQ(spec.sides, (std::vector<std::int64_t>{32, 48, 64}));
  const Values values = values_of(spec);
  EXPECT_EQ(values.at("sides"), "32x48x64");
  EXPECT_EQ(values_of(spec_of(values)), values);
  EXPECT_THROW(spec_of({{"methd", "lms"}}), BadSetting);
  EXPECT_THROW(spec_of({{"method", "magic"}}), BadSetting);
  EXPECT_THROW(spec_of({{"batch", "two"}}), BadSetting);
}

TEST(TrySpecs, RefuseWhatCannotBe) {
  for (const auto& [key, value] : Values{{"batch", "0"},
                                         {"steps", "0"},
                                         {"warmup", "-1"},
                                         {"settle", "0"},
                                         {"cap", "-1"},
                                         {"step_seconds", "nan"},
                                         {"sides", "32x"},
                                         {"slack", "-2GiB"},
                                         {"plan_seconds", "-1"}}) {
    EXPECT_THROW(spec_of({{key, value}}), BadSetting) << key << "=" << value;
  }
  EXPECT_THROW(spec_of({{"sides", "0x32"}}), BadSetting);
  EXPECT_THROW(spec_of({{"sides", "32x,"}}), BadSetting);
}

TEST(TrySpecs, TellWhatOfARecordIsOtherwise) {
  const TrySpec spec = spec_of({{"model", "resnet50"},
                                {"cap", "16GiB"},
                                {"precision", "bf16"},
                                {"variants.norm", "group"},
                                {"steps", "9"}});
  const Record record = begun_record(spec);
  EXPECT_EQ(other_setting(record, spec), "");
  const auto other = [&](const std::string& key, const std::string& value) {
    TrySpec changed = spec;
    set_value(changed, key, value);
    return other_setting(record, changed);
  };
  EXPECT_NE(other("cap", "32GiB").find("cap"), std::string::npos);
  EXPECT_EQ(other("precision", "tf32"), "precision bf16, not tf32");
  EXPECT_NE(other("model", "googlenet").find("model"), std::string::npos);
  EXPECT_NE(other("variants.norm", "batch").find("variants.norm=group"), std::string::npos);
  EXPECT_NE(other("training.lr", "1").find("training.lr=1"), std::string::npos);
  EXPECT_EQ(other("steps", "3"), "");
}

TEST(Items, NamesReadBackAsWritten) {
  EXPECT_EQ(size_in_key(try_key("lms", 2000, ""), "lms", ""), 2000);
  EXPECT_EQ(size_in_key(try_key("lms", 2000, "pcie3"), "lms", "pcie3"), 2000);
  EXPECT_EQ(size_in_key("lms.2000.pcie3", "lms", ""), std::nullopt);
  EXPECT_EQ(size_in_key("lms-swap.2000", "lms", ""), std::nullopt);
  EXPECT_EQ(size_in_key("boundary.lms", "lms", ""), std::nullopt);
  EXPECT_EQ(size_in_key("lms.2000.trace", "lms", ""), std::nullopt);
}

TEST(Child, IsEndedInTime) {
  Folder folder;
  const auto begin = std::chrono::steady_clock::now();
  // Deaf to being asked, and with a child of its own.
  const ChildResult result =
      run_child({"/bin/bash", "-c", "trap '' TERM; echo begun; sleep 60 & wait; sleep 60"},
                folder / "log", 0.3);
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.status, 128 + 9);
  EXPECT_EQ(read(folder / "log"), "begun\n");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(run_child({"/bin/bash", "-c", "exit 3"}, folder / "log", 10).status, 3);
  EXPECT_THROW(run_child({"/no/such/program"}, folder / "log", 10), Error);
}

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
  EXPECT_EQ(program({"bench", "study", folder / "none.toml"}), kBadInput);
  EXPECT_EQ(program({"bench", "--help"}), kDone);
  EXPECT_EQ(program({"bench", "dance"}), kBadInput);
}

}  // namespace
}  // namespace lms::studies
