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

#include "base/error.h"
#include "studies/bounds.h"
#include "studies/child.h"
#include "studies/cli.h"
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
/// up to 2700, and notes each call. $crash: it dies there; $slow: it sleeps there.
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
  esac
done
here="$(dirname "$0")"
echo "${method:-plain} $side ${batch:-1}" >> "$here/calls"
[ -f "$here/crash" ] && [ "$(cat "$here/crash")" = "$side" ] && { echo "something broke" >&2; exit 7; }
[ -f "$here/kill" ] && [ "$(cat "$here/kill")" = "$side" ] && kill -9 $$
[ -f "$here/slow" ] && [ "$(cat "$here/slow")" = "$side" ] && sleep 30
most=1000; [ "${method:-plain}" = lms ] && most=2700
outcome=ok; [ $((side * ${batch:-1})) -gt $most ] && outcome=oom
cat > "$out.part" <<END
{"schema": "lms-bench/1", "study": "$study", "series": "$series", "model": "resnet50",
 "batch": ${batch:-1}, "sides": [$side, $side], "method": "${method:-plain}", "cap": 100000,
 "link_emulated": ${link:-null}, "outcome": "$outcome", "samples": {"unit": "MP", "per_step": 1},
 "steps": [0.5, 0.25], "peak": {"reserved": $((side * 100))}}
END
mv "$out.part" "$out"
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
             const std::string& recipe = kRecipe) {
  DriverOptions options;
  options.out = folder / "out";
  options.worker = {fake_worker(folder)};
  if (change) change(options);
  const std::string log = folder / "log";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(log.c_str(), "w"),
                                                             &std::fclose);
  Driven run;
  run.result = run_studies({parse_recipe(recipe, "T1.toml")}, options, file.get());
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
  record.message = "not \xff UTF-8";
  const std::string path = folder / "a/b/record.json";
  write_json(path, to_json(record));
  const auto json = read_json(path);
  EXPECT_DOUBLE_EQ(json.at("rate").at("median"), 72);
  EXPECT_DOUBLE_EQ(json.at("rate").at("mean"), 96);
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
  const std::string calls = read(folder / "calls");
  EXPECT_EQ(calls.find("plain 600"), calls.rfind("plain 600")) << calls;
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
  EXPECT_EQ(program({"bench", "sweep", "modle=resnet50", "values=1"}), kBadInput);
  EXPECT_EQ(program({"bench", "study", folder / "none.toml"}), kBadInput);
  EXPECT_EQ(program({"bench", "--help"}), kDone);
  EXPECT_EQ(program({"bench", "dance"}), kBadInput);
}

}  // namespace
}  // namespace lms::studies
