#include "plan/plan_io.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "core/plan_saved.h"
#include "trace/gz_file.h"

namespace lms {
namespace {

void expect_equal(const SavedPlan& a, const SavedPlan& b) {
  EXPECT_EQ(a.key, b.key);
  EXPECT_EQ(a.room, b.room);
  EXPECT_EQ(a.page, b.page);
  EXPECT_EQ(a.link.out_bytes_per_ms, b.link.out_bytes_per_ms);
  EXPECT_EQ(a.link.in_bytes_per_ms, b.link.in_bytes_per_ms);
  EXPECT_EQ(a.link.both_bytes_per_ms, b.link.both_bytes_per_ms);
  EXPECT_EQ(a.link.latency_ms, b.link.latency_ms);
  EXPECT_EQ(a.link.out_tax_ms_per_byte, b.link.out_tax_ms_per_byte);
  EXPECT_EQ(a.link.in_tax_ms_per_byte, b.link.in_tax_ms_per_byte);
  EXPECT_EQ(a.made.budget, b.made.budget);
  const Plan& plan = a.made.step.plan;
  EXPECT_EQ(plan.version, b.made.step.plan.version);
  EXPECT_EQ(plan.absent_at_start, b.made.step.plan.absent_at_start);
  ASSERT_EQ(plan.directives.size(), b.made.step.plan.directives.size());
  for (std::size_t i = 0; i < plan.directives.size(); ++i) {
    EXPECT_EQ(plan.directives[i].before, b.made.step.plan.directives[i].before);
    EXPECT_EQ(plan.directives[i].action, b.made.step.plan.directives[i].action);
    EXPECT_EQ(plan.directives[i].block, b.made.step.plan.directives[i].block);
  }
  const PlanTiming& x = a.made.step.predicted;
  const PlanTiming& y = b.made.step.predicted;
  EXPECT_EQ(x.step_ms, y.step_ms);
  EXPECT_EQ(x.compute_ms, y.compute_ms);
  EXPECT_EQ(x.tax_ms, y.tax_ms);
  EXPECT_EQ(x.waited_ms, y.waited_ms);
  EXPECT_EQ(x.out_busy_ms, y.out_busy_ms);
  EXPECT_EQ(x.in_busy_ms, y.in_busy_ms);
  EXPECT_EQ(x.recomputed_ms, y.recomputed_ms);
  EXPECT_EQ(x.bytes_out, y.bytes_out);
  EXPECT_EQ(x.bytes_in, y.bytes_in);
  EXPECT_EQ(x.bytes_recomputed, y.bytes_recomputed);
  EXPECT_EQ(x.peak, y.peak);
  const Placement& p = a.made.placement;
  const Placement& q = b.made.placement;
  EXPECT_EQ(p.allocations, q.allocations);
  EXPECT_EQ(p.arrivals, q.arrivals);
  EXPECT_EQ(p.remakes, q.remakes);
  EXPECT_EQ(p.at_start, q.at_start);
  EXPECT_EQ(p.taking_turns, q.taking_turns);
  EXPECT_EQ(p.page, q.page);
  EXPECT_EQ(p.scattered, q.scattered);
  EXPECT_EQ(p.moved, q.moved);
  EXPECT_EQ(p.bytes, q.bytes);
  EXPECT_EQ(p.lower_bound, q.lower_bound);
}

TEST(PlanIo, GivesBackAnEqualPlan) {
  const TestFolder folder;
  SavedPlan plan = plan_to_save();
  plan.link.latency_ms = 1.0 / 3;
  for (const char* name : {"plan.json", "plan.json.gz"}) {
    save_plan(plan, folder.path(name));
    expect_equal(load_plan(folder.path(name)), plan);
  }
  plan.made.placement = {};
  save_plan(plan, folder.path("plan.json"));
  expect_equal(load_plan(folder.path("plan.json")), plan);
}

RC_GTEST_PROP(PlanIo, GivesBackEveryPlan, ()) {
  const TestFolder folder;
  RandomPlan random(*rc::gen::arbitrary<std::uint64_t>());
  const Trace trace = random_step_to_save(random);
  const SavedPlan plan = random_plan_to_save(random, trace);
  save_plan(plan, folder.path("plan.json"));
  const SavedPlan loaded = load_plan(folder.path("plan.json"));
  expect_equal(loaded, plan);
  RC_ASSERT(!::testing::Test::HasFailure());
  RC_CLASSIFY(!plan.made.placement.scattered.empty(), "scattered");
  const auto wrong = misfit(loaded, trace, plan.room);
  RC_ASSERT(wrong.value_or("") == "");
}

TEST(PlanIo, GivesBackPagesOfTheArena) {
  const TestFolder folder;
  int scattered = 0;
  for (std::uint64_t seed = 0; seed < 1000 && scattered < 3; ++seed) {
    RandomPlan random(seed);
    const Trace trace = random_step_to_save(random);
    const SavedPlan plan = random_plan_to_save(random, trace);
    if (plan.made.placement.scattered.empty()) continue;
    ++scattered;
    save_plan(plan, folder.path("plan.json.gz"));
    expect_equal(load_plan(folder.path("plan.json.gz")), plan);
  }
  EXPECT_EQ(scattered, 3);
}

TEST(PlanIo, LeavesTheOldFileUntilTheNewOneIsWhole) {
  const TestFolder folder;
  save_plan(plan_to_save("first"), folder.path("plan.json.gz"));
  const auto open = std::fopen(folder.path("plan.json.gz").c_str(), "rb");
  save_plan(plan_to_save("second"), folder.path("plan.json.gz"));
  // Whoever has begun to read reads on in the file of before.
  EXPECT_EQ(std::fgetc(open), 0x1f);
  std::fclose(open);
  EXPECT_EQ(load_plan(folder.path("plan.json.gz")).key, "second");
  const std::filesystem::directory_iterator files(folder.path(""));
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);

  std::filesystem::create_directories(folder.path("taken/full"));
  EXPECT_THROW(save_plan(plan_to_save(), folder.path("taken")), Error);
  EXPECT_THROW(save_plan(plan_to_save(), folder.path("missing/plan.json")), Error);
  const std::filesystem::directory_iterator then(folder.path(""));
  EXPECT_EQ(std::distance(begin(then), end(then)), 2);
}

TEST(PlanIo, SaysWhatIsWrongWithAFile) {
  const TestFolder folder;
  const std::string path = folder.path("bad.json");
  EXPECT_THROW(load_plan(path), Error);
  save_plan(plan_to_save(), path);
  const auto good = nlohmann::json::parse(read_gz_file(path));
  const auto failure = [&](const std::string& text) -> std::string {
    write_gz_file(path, text);
    try {
      (void)load_plan(path);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("bad.json"), std::string::npos) << error.what();
      return error.what();
    }
    return "loaded";
  };
  const auto expect_failure = [&](const char* pointer, const nlohmann::json& value,
                                  std::string_view part) {
    auto bad = good;
    bad[nlohmann::json::json_pointer(pointer)] = value;
    const std::string message = failure(bad.dump());
    EXPECT_NE(message.find(part), std::string::npos) << pointer << ": " << message;
  };
  EXPECT_NE(failure("").find("no JSON"), std::string::npos);
  EXPECT_NE(failure("[]").find("no plan of LMS"), std::string::npos);
  expect_failure("/format", "lms-trace", "no plan of LMS");
  expect_failure("/version", 2, "its version is 2, this LMS reads 1");
  expect_failure("/plan_version", 1, "its plan_version is 1");
  expect_failure("/key", 3, "\"key\" is no text");
  expect_failure("/room", -1, "\"room\" is out of range");
  expect_failure("/budget", kScattered, "\"budget\" is out of range");
  expect_failure("/page", 18446744073709551615U, "out of range");
  expect_failure("/link/latency_ms", nullptr, "\"latency_ms\" is no amount");
  expect_failure("/link", 3, "is in no object");
  expect_failure("/predicted/step_ms", -1, "\"step_ms\" is no amount");
  expect_failure("/predicted/peak", 1.5, "something else than an integer");
  expect_failure("/absent_at_start", nlohmann::json::array({-1}), "out of range");
  expect_failure("/directives/1", nlohmann::json::array({2, 1}), "directive 1 has 2 fields, not 3");
  expect_failure("/directives/0/1", 6, "directive 0 is no action that is known");
  expect_failure("/directives/3/0", 1, "directive 3 comes too late");
  expect_failure("/placement/arrivals/3", kScattered, "\"arrivals\" has an address out of range");
  expect_failure("/placement/arrivals/3", -2, "\"arrivals\" has an address out of range");
  expect_failure("/placement/arrivals", nlohmann::json::array(), "0 arrivals or remakes for 5");
  expect_failure("/placement/allocations/0/0", kGiB, "allocations has an address out of range");
  expect_failure("/placement/remakes/4/0", kGiB, "remakes has an address out of range");
  expect_failure("/placement/scattered", nlohmann::json{{0}}, "a page out of range");
  expect_failure("/placement/at_start", nlohmann::json{{0}}, "holds no pair");
  auto bad = good;
  bad.erase("placement");
  EXPECT_NE(failure(bad.dump()).find("\"placement\" is missing"), std::string::npos);
}

TEST(PlanIo, FitsItsOwnStepAlone) {
  const SavedPlan plan = plan_to_save();
  const Trace trace = step_to_save();
  EXPECT_EQ(misfit(plan, trace, plan.room), std::nullopt);
  EXPECT_NE(misfit(plan, trace, 4000), std::nullopt);
  Trace other = trace;
  other.operators[0].repeatable = false;
  EXPECT_NE(misfit(plan, other, plan.room), std::nullopt);
  other = trace;
  other.operators[0].workspace = other.operators[0].temporaries[0].bytes = 5000;
  EXPECT_NE(misfit(plan, other, plan.room), std::nullopt);
  EXPECT_NE(misfit(plan, Trace{}, plan.room), std::nullopt);
  SavedPlan bad = plan;
  bad.made.placement.taking_turns = {7};
  EXPECT_NE(misfit(bad, trace, plan.room), std::nullopt);
  bad = plan;
  bad.made.placement.allocations[1] = bad.made.placement.allocations[0];
  EXPECT_NE(misfit(bad, trace, plan.room), std::nullopt);
}

/// Loading what has been damaged says what is wrong with it or gives a plan back, and then it is
/// found out whether that fits. What came of it, in words.
const char* outcome(const std::string& path, const Trace& trace, Bytes room) {
  try {
    const SavedPlan loaded = load_plan(path);
    if (misfit(loaded, trace, room)) return "does not fit";
    RC_ASSERT(loaded.made.placement.bytes <= room);
    RC_ASSERT(verify_plan(trace, loaded.made.step.plan, room).empty());
    return "fits";
  } catch (const Error& error) {
    RC_ASSERT(std::string(error.what()).find("plan.json") != std::string::npos);
    return "not loaded";
  }
}

RC_GTEST_PROP(PlanIo, SurvivesDamagedBytes, (bool packed)) {
  const TestFolder folder;
  RandomPlan random(*rc::gen::arbitrary<std::uint64_t>());
  const Trace trace = step_to_save();
  const SavedPlan plan = plan_to_save();
  const std::string path = folder.path(packed ? "plan.json.gz" : "plan.json");
  save_plan(plan, path);
  std::string bytes(std::filesystem::file_size(path), '\0');
  std::FILE* file = std::fopen(path.c_str(), "rb");
  RC_ASSERT(std::fread(bytes.data(), 1, bytes.size(), file) == bytes.size());
  std::fclose(file);
  constexpr std::string_view kLikely = "0123456789-.,[]{}e\":";
  for (int n = 1 + random.below(4); n > 0; --n) {
    const auto at = static_cast<std::size_t>(random.below(static_cast<int>(bytes.size())));
    const char fresh = packed ? static_cast<char>(random.below(256))
                              : kLikely[static_cast<std::size_t>(random.below(kLikely.size()))];
    switch (random.below(10)) {
      case 0:
        bytes.erase(at, 1);
        break;
      case 1:
        bytes.insert(at, 1, fresh);
        break;
      case 2:
        bytes.resize(at + 1);
        break;
      default:
        bytes[at] = fresh;
    }
    if (bytes.empty()) break;
  }
  file = std::fopen(path.c_str(), "wb");
  std::fwrite(bytes.data(), 1, bytes.size(), file);
  std::fclose(file);
  RC_TAG(outcome(path, trace, plan.room));
}

RC_GTEST_PROP(PlanIo, SurvivesOtherNumbers, (bool own)) {
  const TestFolder folder;
  RandomPlan random(*rc::gen::arbitrary<std::uint64_t>());
  const Trace trace = own ? step_to_save() : random_step_to_save(random);
  const SavedPlan plan = own ? plan_to_save() : random_plan_to_save(random, trace);
  const std::string path = folder.path("plan.json");
  save_plan(plan, path);
  auto document = nlohmann::json::parse(read_gz_file(path));
  std::vector<nlohmann::json*> numbers;
  const auto collect = [&](auto& self, nlohmann::json& value) -> void {
    if (value.is_number_integer()) numbers.push_back(&value);
    if (!value.is_structured()) return;
    for (auto& part : value) self(self, part);
  };
  collect(collect, document);
  const auto any = [&]() -> nlohmann::json& {
    return *numbers[static_cast<std::size_t>(random.below(static_cast<int>(numbers.size())))];
  };
  for (int n = 1 + random.below(2); n > 0; --n) {
    nlohmann::json& number = any();
    switch (random.below(5)) {
      case 0:
        number = number.get<Bytes>() + 1;
        break;
      case 1:
        number = number.get<Bytes>() - 1;
        break;
      case 2:
        number = any();
        break;
      case 3:
        number = random.below(6);
        break;
      default:
        number = kScattered + random.below(3);
    }
  }
  write_gz_file(path, document.dump());
  RC_TAG(outcome(path, trace, plan.room));
}

}  // namespace
}  // namespace lms
