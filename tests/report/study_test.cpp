// Maxima, costs and verdicts from records.

#include "lab/report/study.h"

#include <gtest/gtest.h>

#include "report/support.h"

namespace lms::report {
namespace {

using nlohmann::json;

TEST(Studies, MaximumAndItsMultipleOfTheInMemoryMaximum) {
  const Input input = input_of({made_up("plain", 2000, 80), made_up("plain", 3000, 84),
                                made_up("plain", 3500, 0, "oom"), made_up("lms", 9000, 70),
                                made_up("lms", 9500, 0, "host")});
  const std::vector<Study> studies = studies_of(input);
  ASSERT_EQ(studies.size(), 1U);
  const Panel& panel = studies[0].panels.at(0);
  EXPECT_EQ(panel.reference->rate(), 84);
  ASSERT_EQ(panel.maxima.size(), 2U);
  EXPECT_EQ(panel.maxima[0].method, "plain");
  EXPECT_EQ(panel.maxima[0].failed, 3500);
  EXPECT_EQ(panel.maxima[1].why, "host");
  EXPECT_DOUBLE_EQ(*panel.maxima[1].factor, 9);
  EXPECT_DOUBLE_EQ(*panel.x_of_factor(4), 6000);
}

TEST(Studies, SearchesSetTheMaximum) {
  json search = {{"schema", "lms-bench-boundary/1"},
                 {"study", "B3"},
                 {"series", "resolution"},
                 {"model", "resnet50"},
                 {"method", "plain"},
                 {"cap", 17179869184},
                 {"over", "side"},
                 {"largest_ok", 3000},
                 {"smallest_failed", 3050},
                 {"why", "oom"}};
  const Input input = input_of({search, made_up("plain", 2000, 80), made_up("lms", 6000, 70)});
  const std::vector<Study> studies = studies_of(input);
  const Panel& panel = studies.at(0).panels.at(0);
  EXPECT_DOUBLE_EQ(panel.maximum("plain")->value, 3000);
  EXPECT_DOUBLE_EQ(*panel.maximum("lms")->factor, 4);
  EXPECT_FALSE(panel.maximum("lms")->ended());
  EXPECT_EQ(panel.maximum("plain")->failed, 3050);
  // Another cap is another chart.
  search["cap"] = 1;
  const Input other = input_of({search, made_up("plain", 2000, 80)});
  EXPECT_DOUBLE_EQ(studies_of(other).at(0).panels.at(0).maximum("plain")->value, 2000);
}

TEST(Studies, CostsAreAgainstTheLastRunInMemory) {
  json run = made_up("lms", 6000, 70);
  run["bound"] = 36.0 / 75;
  const Input input = input_of({made_up("plain", 3000, 84), run});
  const std::vector<Study> studies = studies_of(input);
  const Panel& panel = studies.at(0).panels.at(0);
  const Record& lms = *panel.runs.back();
  EXPECT_NEAR(*panel.rate_change(lms), 70.0 / 84 - 1, 1e-12);
  EXPECT_NEAR(*panel.overhead(lms), 84.0 / 70 - 1, 1e-12);
  EXPECT_NEAR(*panel.overhead_of(lms, lms.bound), 84.0 / 75 - 1, 1e-12);
}

TEST(Studies, VerdictsOnWhatIsToBeReached) {
  const Input input = input_of({made_up("plain", 3000, 84), made_up("plain", 3050, 0, "oom"),
                                made_up("lms", 6000, 70), made_up("lms", 9000, 65)});
  const std::vector<Study> studies = studies_of(input);
  const std::vector<Verdict>& verdicts = studies.at(0).verdicts;
  ASSERT_EQ(verdicts.size(), 2U);
  EXPECT_EQ(verdicts[0].state, Verdict::State::kReached);  // 9 of 8.5
  EXPECT_DOUBLE_EQ(*verdicts[0].value, 9);
  EXPECT_EQ(verdicts[1].state, Verdict::State::kMissed);  // −16.7 % of −15 %, at 6000²
  EXPECT_EQ(verdicts[1].size, "6000²");
  EXPECT_DOUBLE_EQ(*verdicts[1].at, 4);
}

TEST(Studies, NoVerdictWithoutARunNearby) {
  const Input input = input_of({made_up("plain", 3000, 84), made_up("lms", 9000, 65)});
  const std::vector<Study> studies = studies_of(input);
  EXPECT_EQ(studies.at(0).verdicts.at(1).state, Verdict::State::kNotMeasured);
}

Verdict verdict(std::vector<json> records, std::size_t goal) {
  const Input input = input_of(records);
  Verdict found = studies_of(input).at(0).verdicts.at(goal);
  found.goal = nullptr;  // and the panel: they are gone with the input
  found.panel = nullptr;
  return found;
}

TEST(Studies, NothingIsReachedOverAMemoryThatWasNotSearched) {
  const json plain = made_up("plain", 3000, 84);
  const json lms = made_up("lms", 9000, 80);
  for (const json& beyond :
       {made_up("plain", 6000, 0, "oom"), made_up("plain", 3050, 0, "failed")}) {
    const Verdict open = verdict({plain, beyond, lms}, 0);
    EXPECT_EQ(open.state, Verdict::State::kMeasured);
    EXPECT_DOUBLE_EQ(*open.value, 9);
    EXPECT_EQ(open.doubt, "the most that fits in memory was not searched to its end");
  }
  const json end = made_up("plain", 3050, 0, "oom");
  EXPECT_EQ(verdict({plain, end, lms}, 0).state, Verdict::State::kReached);
  // What is missed over too small a memory is missed over a larger one.
  EXPECT_EQ(verdict({plain, made_up("lms", 6000, 80)}, 0).state, Verdict::State::kMissed);
}

TEST(Studies, ARateBelowItsMultipleIsNotReached) {
  const json plain = made_up("plain", 3000, 84);
  const json end = made_up("plain", 3050, 0, "oom");
  const Verdict below = verdict({plain, end, made_up("lms", 5500, 83)}, 1);
  EXPECT_EQ(below.state, Verdict::State::kMeasured);
  EXPECT_EQ(below.doubt, "measured below 4×");
  EXPECT_EQ(verdict({plain, end, made_up("lms", 5500, 50)}, 1).state, Verdict::State::kMissed);
}

TEST(Studies, CrashesSayNothingOfASize) {
  const Input input =
      input_of({made_up("plain", 3000, 84), made_up("lms", 6000, 70),
                made_up("lms", 6500, 0, "failed"), made_up("lms", 9000, 0, "timeout")});
  const Maximum lms = *studies_of(input).at(0).panels.at(0).maximum("lms");
  EXPECT_EQ(lms.failed, 9000);
  EXPECT_EQ(lms.why, "timeout");
}

TEST(Studies, EndsThatAreNotKnownWellSaySo) {
  const Input input = input_of({made_up("plain", 3000, 84), made_up("plain", 3050, 0, "oom"),
                                made_up("lms", 6000, 70), made_up("lms", 9000, 0, "oom"),
                                made_up("checkpoint", 4000, 60)});
  const std::vector<Study> studies = studies_of(input);
  const Panel& panel = studies.at(0).panels.at(0);
  EXPECT_EQ(panel.end(*panel.maximum("plain")), "ends at 3000²");
  EXPECT_EQ(panel.end(*panel.maximum("lms")), "ends between 6000² and 9000²");
  EXPECT_EQ(panel.end(*panel.maximum("checkpoint")), "");
}

json batch_run(const std::string& method, int batch, double rate, const std::string& series,
               const std::string& outcome = "ok") {
  json run = made_up(method, 600, rate, outcome);
  run["study"] = "B1";
  run["series"] = series;
  run["batch"] = batch;
  run["samples"] = {{"unit", "images"}, {"per_step", batch}};
  run["steps"] = {batch / std::max(rate, 1.0)};
  return run;
}

TEST(Studies, OfTwoSeriesUnderOneCapTheWorseCounts) {
  for (const double rate : {9.6, 8.0}) {
    const Input input = input_of(
        {batch_run("plain", 8, 10, "batch-600"), batch_run("plain", 9, 0, "batch-600", "oom"),
         batch_run("lms", 16, rate, "batch-600"), batch_run("plain", 8, 10, "batch-700"),
         batch_run("plain", 9, 0, "batch-700", "oom"), batch_run("lms", 16, 9, "batch-700")});
    const std::vector<Study> studies = studies_of(input);
    EXPECT_NEAR(*studies.at(0).verdicts.at(0).value, 10 / std::min(rate, 9.0) - 1, 1e-12);
  }
}

TEST(Studies, CostsAtTheLargestAreBeyondMemory) {
  std::vector<json> records = {batch_run("plain", 11, 10, "batch"),
                               batch_run("plain", 12, 0, "batch", "oom"),
                               batch_run("lms", 11, 10, "batch")};
  for (json& record : records) record["study"] = "B6";
  EXPECT_EQ(verdict(records, 1).state, Verdict::State::kNotMeasured);
  records.push_back(batch_run("lms", 44, 8, "batch"));
  records.back()["study"] = "B6";
  EXPECT_EQ(verdict(records, 1).state, Verdict::State::kReached);
}

TEST(Studies, RatesOfOtherGpusAndOfImagesOfOtherSizesAreNotCompared) {
  json other = made_up("lms", 6000, 200);
  other["machine"] = {{"gpu", "faster"}};
  json plain = made_up("plain", 3000, 84);
  plain["machine"] = {{"gpu", "slower"}};
  const Input gpus = input_of({plain, other});
  const std::vector<Study> studies = studies_of(gpus);
  const Panel& panel = studies.at(0).panels.at(0);
  EXPECT_FALSE(panel.rate_change(*panel.runs.back()));
  EXPECT_FALSE(panel.overhead_of(*panel.runs.back(), 1.0));
  json small = made_up("plain", 1000, 100);
  json large = made_up("lms", 2000, 25);
  for (json* run : {&small, &large}) (*run)["samples"] = {{"unit", "images"}, {"per_step", 1}};
  const Input images = input_of({small, large});
  const std::vector<Study> of_images = studies_of(images);
  const Panel& sizes = of_images.at(0).panels.at(0);
  EXPECT_FALSE(sizes.overhead(*sizes.runs.back()));
}

TEST(Studies, CapsAndSeriesAreChartsOfTheirOwn) {
  json large = made_up("lms", 9000, 70);
  large["cap"] = 34359738368;
  large["series"] = "resolution-32GiB";
  json slow = made_up("lms", 6000, 50);
  slow["link_emulated"] = "pcie3";
  const Input input = input_of({made_up("plain", 3000, 84), large, slow});
  const std::vector<Study> studies = studies_of(input);
  ASSERT_EQ(studies.at(0).panels.size(), 2U);
  EXPECT_TRUE(studies[0].panels[1].over_side);
  ASSERT_EQ(studies[0].panels[0].linked.size(), 1U);
  EXPECT_EQ(studies[0].panels[0].maximum("lms"), nullptr);  // slower links do not count
}

TEST(Studies, BatchesAndVolumes) {
  json small = made_up("plain", 64, 10);
  json more = made_up("lms", 64, 9);
  for (json* each : {&small, &more}) {
    (*each)["series"] = "batch-64";
    (*each)["sides"] = {64, 64, 64};
    (*each)["study"] = "mine";
  }
  more["batch"] = 5;
  const Input input = input_of({small, more});
  const std::vector<Study> studies = studies_of(input);
  const Panel& panel = studies.at(0).panels.at(0);
  EXPECT_EQ(studies[0].published, nullptr);
  EXPECT_FALSE(panel.over_side);
  EXPECT_DOUBLE_EQ(*panel.maximum("lms")->factor, 5);
  EXPECT_EQ(panel.title(), "Batch at 64³");
  small["sides"] = {64, 32, 64};
  EXPECT_EQ(size_text(input_of({small}).records[0]), "64 × 32 × 64");
}

}  // namespace
}  // namespace lms::report
