// Settings, recipes, schedules and logs: all that knows no PyTorch.

#include "lab/train/settings.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <string>

#include "base/error.h"
#include "lab/train/csv_file.h"
#include "lab/train/event_file.h"
#include "lab/train/progress.h"
#include "lab/train/recipe.h"
#include "lab/train/schedule.h"
#include "tests/datasets/fixtures.h"

namespace lms::train {
namespace {

using data::fixtures::read_text;

std::string temporary(const std::string& name) {
  return (std::filesystem::temp_directory_path() /
          ("lms-train-" + std::to_string(::getpid()) + "-" + name))
      .string();
}

void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

template <typename Call>
std::string complaint(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string complaint_of(const std::string& key, const std::string& value) {
  Settings settings;
  return complaint([&] { set_key(settings, key, value); });
}

TEST(Settings, EveryKeyReadsBackWhatItWrites) {
  const Settings defaults;
  for (const Key& key : keys()) {
    Settings settings;
    EXPECT_NO_THROW(key.set(settings, key.get(defaults))) << key.name;
    EXPECT_EQ(key.get(settings), key.get(defaults)) << key.name;
    EXPECT_FALSE(key.help.empty()) << key.name;
    EXPECT_FALSE(key.commands.empty()) << key.name;
  }
  EXPECT_TRUE(changed_keys(defaults).empty());
}

TEST(Settings, ChangedKeysGiveTheSettingsBack) {
  Settings settings;
  for (const char* text : {"crop=360x480", "batch=3", "lr=0.007", "scale=0.5,2", "flip=true",
                           "variants.output_stride=8", "options.share=0.3", "limit=12GiB"}) {
    apply_override(settings, text);
  }
  EXPECT_EQ(settings.crop, (std::vector<std::int64_t>{360, 480}));
  Settings again;
  for (const auto& [name, value] : changed_keys(settings)) set_key(again, name, value);
  EXPECT_EQ(changed_keys(again), changed_keys(settings));
  EXPECT_EQ(again.variants.at("output_stride"), "8");
  EXPECT_EQ(again.lr, 0.007);
}

TEST(Settings, MistakesNameWhatWouldDo) {
  EXPECT_EQ(complaint_of("momentun", "0.9"),
            "unknown setting 'momentun'; the nearest is 'momentum'");
  EXPECT_EQ(complaint_of("log-evry", "1"),
            "unknown setting 'log-evry'; the nearest is 'log_every'");
  EXPECT_NE(complaint_of("zzzzzzzzzz", "1").find("--help"), std::string::npos);
  EXPECT_EQ(complaint_of("batch", "0"), "batch: '0' is not a whole number from 1");
  EXPECT_EQ(complaint_of("batch", "2x"), "batch: '2x' is not a whole number from 1");
  EXPECT_EQ(complaint_of("momentum", "1.5"), "momentum: '1.5' is not a number from 0 to 1");
  EXPECT_EQ(complaint_of("lr", "nan"), "lr: 'nan' is not a number from 0");
  EXPECT_EQ(complaint_of("flip", "maybe"), "flip: 'maybe' is not true or false");
  EXPECT_EQ(complaint_of("optimizer", "sdg"), "optimizer: 'sdg' is not one of sgd, adam, adamw");
  EXPECT_NE(complaint_of("crop", "1x2x3x4"), "");
  Settings settings;
  EXPECT_NE(complaint([&] { apply_override(settings, "batch"); }).find("key=value"),
            std::string::npos);
}

TEST(Settings, ContradictionsAreFound) {
  Settings good;
  for (const char* text : {"model=unet3d", "data=mni:x", "steps=3"}) apply_override(good, text);
  EXPECT_NO_THROW(check_training(good));
  for (const char* text :
       {"model=", "data=", "steps=0", "epochs=2", "scale=2,0.5", "mean=1,2", "resume=true"}) {
    Settings bad = good;
    apply_override(bad, text);
    EXPECT_THROW(check_training(bad), BadSetting) << text;
  }
  Settings bad = good;
  apply_override(bad, "lms=false");
  apply_override(bad, "limit=1GiB");
  EXPECT_THROW(check_training(bad), BadSetting);
}

TEST(Recipe, TablesAreForTheEyeAndOrderIsThatOfTheLines) {
  const std::string path = temporary("recipe.toml");
  write(path,
        "model = \"deeplabv3plus\"\n[optimizer]\nlr = 0.007\nnesterov = true\n"
        "[sizes]\ncrop = [360, 480]\nbatch = 4\n[variants]\noutput_stride = 8\n");
  const auto entries = read_recipe(path);
  Settings settings;
  for (const RecipeEntry& entry : entries) set_key(settings, entry.key, entry.value, entry.where);
  ASSERT_EQ(entries.size(), 6U);
  EXPECT_EQ(entries[1].key, "lr");
  EXPECT_EQ(entries[1].where, path + ":3");
  EXPECT_EQ(settings.lr, 0.007);
  EXPECT_TRUE(settings.nesterov);
  EXPECT_EQ(settings.crop, (std::vector<std::int64_t>{360, 480}));
  EXPECT_EQ(settings.variants.at("output_stride"), "8");

  write(path, "lr = 0.1\nbatch = = 2\n");
  EXPECT_NE(complaint([&] { read_recipe(path); }).find(path + ":2:"), std::string::npos);
  write(path, "lr = 1979-05-27\n");
  EXPECT_NE(complaint([&] { read_recipe(path); }).find(path + ":1: lr: wants"), std::string::npos);
  EXPECT_NE(complaint([&] { read_recipe(path + "x"); }).find(path + "x"), std::string::npos);
  std::filesystem::remove(path);
}

TEST(Schedule, ClosedForms) {
  ScheduleOptions options;
  options.total_steps = 200;
  options.steps_per_epoch = 20;
  EXPECT_EQ(Schedule(options).factor(150), 1);
  options.kind = "poly";
  options.exponent = 0.9;
  EXPECT_EQ(Schedule(options).factor(0), 1);
  EXPECT_DOUBLE_EQ(Schedule(options).factor(50), std::pow(0.75, 0.9));
  EXPECT_EQ(Schedule(options).factor(200), 0);
  options.per_epoch = true;
  EXPECT_DOUBLE_EQ(Schedule(options).factor(59), std::pow(0.8, 0.9));
  EXPECT_DOUBLE_EQ(Schedule(options).factor(60), std::pow(0.7, 0.9));
  options.per_epoch = false;
  options.kind = "cosine";
  options.least = 0.1;
  EXPECT_DOUBLE_EQ(Schedule(options).factor(50),
                   0.1 + 0.9 * (1 + std::cos(std::numbers::pi / 4)) / 2);
  EXPECT_DOUBLE_EQ(Schedule(options).factor(200), 0.1);
  options.kind = "constant";
  options.warmup = 10;
  options.warmup_from = 0.2;
  EXPECT_DOUBLE_EQ(Schedule(options).factor(0), 0.2);
  EXPECT_DOUBLE_EQ(Schedule(options).factor(5), 0.6);
  EXPECT_DOUBLE_EQ(Schedule(options).factor(10), 1);
}

TEST(Schedule, PlateauHalvesAfterMoreThanPatience) {
  ScheduleOptions options;
  options.kind = "plateau";
  options.patience = 2;
  Schedule schedule(options);
  schedule.observe(1.0);
  for (int i = 0; i < 2; ++i) schedule.observe(1.0);
  EXPECT_EQ(schedule.factor(9), 1);
  Schedule other(options);
  other.restore(schedule.state());
  schedule.observe(1.5);
  other.observe(1.5);
  EXPECT_EQ(schedule.factor(9), 0.5);
  EXPECT_EQ(other.factor(9), 0.5);
  schedule.observe(0.5);
  for (int i = 0; i < 2; ++i) schedule.observe(0.6);
  EXPECT_EQ(schedule.factor(9), 0.5);
  schedule.observe(0.6);
  EXPECT_EQ(schedule.factor(9), 0.25);
}

TEST(EventFile, ChecksumsAreThoseOfTheStandard) {
  // RFC 3720, B.4.
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
}

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) {
    char two[3];
    std::snprintf(two, sizeof(two), "%02x", static_cast<unsigned char>(byte));
    text += two;
  }
  return text;
}

TEST(EventFile, GoldenBytes) {
  const std::string path = temporary("events");
  {
    EventFile events(path, 1.5);
    events.scalars(300, 2.5, {{"a", 0.25F}});
    events.flush();
  }
  // Lengths, field keys and values; the checksums are covered below, and TensorBoard reads them.
  const std::string text = hex(read_text(path));
  const std::string version =
      "09000000000000f83f"
      "1a0d"
      "627261696e2e4576656e743a32";
  const std::string event =
      "090000000000000440"
      "10ac02"
      "2a0a"
      "0a08"
      "0a0161"
      "150000803e";
  ASSERT_EQ(text.size(), 2 * (16 + 24 + 16 + 24)) << text;
  EXPECT_EQ(text.substr(0, 16), "1800000000000000");
  EXPECT_EQ(text.substr(24, 48), version);
  EXPECT_EQ(text.substr(80, 16), "1800000000000000");
  EXPECT_EQ(text.substr(104, 48), event);
  // Both lengths are 24: their checksum, and that of the version.
  EXPECT_EQ(text.substr(16, 8), "a37f4b22");
  EXPECT_EQ(text.substr(96, 8), "a37f4b22");
  std::filesystem::remove(path);
}

TEST(CsvFile, GoesOnAfterTheLastStepAndDropsTornLines) {
  const std::string path = temporary("log.csv");
  {
    CsvFile file(path, {"step", "loss"}, -1);
    for (int step = 1; step <= 4; ++step) file.row(step, {"0.5"});
  }
  write(path, read_text(path) + "5,0.");
  {
    CsvFile file(path, {"step", "loss"}, 3);
    file.row(4, {"0.25"});
  }
  EXPECT_EQ(read_text(path), "step,loss\n1,0.5\n2,0.5\n3,0.5\n4,0.25\n");
  { const CsvFile file(path, {"step", "other"}, 3); }
  EXPECT_EQ(read_text(path), "step,other\n");
  std::filesystem::remove(path);
}

TEST(Progress, PlainLinesWhereThereIsNoTerminal) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* file = open_memstream(&text, &size);
  {
    Progress progress(file, "lines");
    ProgressFacts facts;
    facts.steps = 100;
    for (facts.step = 1; facts.step <= 100; ++facts.step) progress.update(facts);
  }
  std::fclose(file);
  const std::string lines(text, size);
  std::free(text);
  EXPECT_EQ(lines.find('\r'), std::string::npos);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2) << lines;
  EXPECT_NE(lines.find("step 100/100"), std::string::npos);
  EXPECT_EQ(duration_text(3723), "1:02:03");
  EXPECT_EQ(duration_text(59.6), "1:00");
}

}  // namespace
}  // namespace lms::train
