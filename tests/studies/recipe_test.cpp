// What is to be tried, what is known of it, and the process that tries it. No PyTorch.
#include "lab/studies/recipe.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>

#include "base/error.h"
#include "lab/studies/bounds.h"
#include "lab/studies/child.h"
#include "lab/studies/folder.h"
#include "lab/studies/item.h"
#include "lab/studies/search.h"
#include "lab/studies/try_spec.h"
#include "studies/support.h"

namespace lms::studies {
namespace {

using test::Folder;
using test::kRecipe;
using test::read;
using test::read_json;
using test::read_record;
using test::write;
using test::write_json;

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
          EXPECT_GT(records::link_rate(tries.link), 0);
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
  record.link = "pcie3";
  record.bytes_to_host = 1'000'000'000;
  record.to_host_rate = 1e10;
  record.timeline = records::Timeline{0.5, {{0, 0.1}}, {}, {{0.2, 0.3}}, {{0.1, 0.2, "gemm"}}};
  record.allocations = {{"driver", 3}};
  record.settings = Values{{"variants.norm", "group"}};
  record.partial = true;
  record.need = records::Need{"aten::mm", 5e9, 6e9};
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
  EXPECT_EQ(back->need->name, "aten::mm");
  EXPECT_EQ(back->need->least_limit, 6e9);
  EXPECT_EQ(read_json(path), nlohmann::ordered_json::parse(to_json(*back).dump()));
  write(folder / "other.json", "{\"schema\": \"lms-bench-boundary/1\"}");
  EXPECT_FALSE(read_record(folder / "other.json"));
  auto wrong = to_json(*back);
  wrong["outcome"] = "broke";
  write(folder / "wrong.json", wrong.dump());
  EXPECT_FALSE(read_record(folder / "wrong.json"));
  wrong["outcome"] = "ok";
  write(folder / "wrong.json", wrong.dump());
  EXPECT_TRUE(read_record(folder / "wrong.json"));
  wrong["steps"] = "many";
  write(folder / "wrong.json", wrong.dump());
  EXPECT_FALSE(read_record(folder / "wrong.json"));
  write(folder / "half.json", "{\"schema\": \"lms-be");
  EXPECT_FALSE(read_record(folder / "half.json"));
}

TEST(Bounds, AreOfStepsThatWerePlanned) {
  // Before there is a plan, operators are timed together with what they wait for.
  const std::string golden = std::filesystem::path(__FILE__).parent_path().parent_path() / "golden";
  const std::string trace = golden + "/googlenet_bf16_15x1120.json.gz";
  Record record;
  record.cap = 6.0 * (1 << 30);
  record.bound = 1;
  add_bound(record, trace);
  EXPECT_FALSE(record.bound);
  EXPECT_GT(record.largest_operator.value_or(0), std::int64_t{1} << 28);
  record.predicted = 0.07;
  add_bound(record, trace);
  if (!record.bound) GTEST_SKIP() << "no solver";
  EXPECT_GT(*record.bound, 0.05);
  EXPECT_LT(*record.bound, 0.07);
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

}  // namespace
}  // namespace lms::studies
