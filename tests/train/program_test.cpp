// The program lms-train, end to end: every model, on look-alikes of every data set.

#include "lab/train/program.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "lab/datasets/image.h"
#include "lab/datasets/nifti.h"
#include "lab/train/recipe.h"
#include "lab/train/state_file.h"
#include "tests/datasets/fixtures.h"
#include "tests/train/toy.h"

namespace lms::train {
namespace {

using data::Array;
using data::Image;
using data::fixtures::read_text;
using testing::Folder;
using Json = nlohmann::json;
namespace fs = std::filesystem;

/// Starts lms-train; stdout and stderr go to OUT and OUT.err.
pid_t start(const std::string& out, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "lms");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    if (std::freopen(out.c_str(), "w", stdout) != nullptr &&
        std::freopen((out + ".err").c_str(), "w", stderr) != nullptr) {
      ::execv(LMS_TRAIN_PROGRAM, argv.data());
    }
    ::_exit(99);
  }
  return child;
}

int wait_for(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

class Program : public ::testing::Test {
 protected:
  int run(const std::vector<std::string>& arguments) {
    const int status = wait_for(start(folder_ / "stdout", arguments));
    out_ = read_text(folder_ / "stdout");
    err_ = read_text(folder_ / "stdout.err");
    return status;
  }
  /// In this process: the program takes a second to start.
  int run_here(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "lms");
    std::vector<const char*> argv;
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    char* text = nullptr;
    std::size_t size = 0;
    std::FILE* err = open_memstream(&text, &size);
    const int status = lms::train::run(static_cast<int>(argv.size()), argv.data(), stdout, err);
    std::fclose(err);
    err_.assign(text, size);
    std::free(text);
    return status;
  }
  /// A training run on the CPU with its report; what stays in the folder is small.
  Json trained(const std::string& out, std::vector<std::string> more) {
    std::vector<std::string> all = {
        "train",       "device=cpu",        "threads=2",           "journal=0",
        "report=json", "tensorboard=false", "out=" + folder_ / out};
    all.insert(all.end(), more.begin(), more.end());
    const int status = run(all);
    EXPECT_EQ(status, 0) << err_;
    return status == 0 ? Json::parse(out_) : Json();
  }
  /// In memory and under a limit: the same losses, the same weights.
  void expect_same_with_lms(const std::vector<std::string>& settings, const std::string& limit) {
    const Json plain = trained("plain", settings);
    testing::remove_tree(folder_ / "plain");
    std::vector<std::string> more = settings;
    for (const std::string& text : {"limit=" + limit, std::string("min_block=64KiB"),
                                    "directory=" + folder_.path(), std::string("plan_cache=off")}) {
      more.push_back(text);
    }
    const Json lms = trained("lms", more);
    ASSERT_FALSE(plain.is_null() || lms.is_null());
    EXPECT_FALSE(plain.at("lms").get<bool>());
    EXPECT_TRUE(lms.at("lms").get<bool>());
    EXPECT_EQ(plain.at("loss_hex"), lms.at("loss_hex"));
    EXPECT_EQ(plain.at("fingerprint"), lms.at("fingerprint"));
    EXPECT_EQ(plain.value("validation", Json()), lms.value("validation", Json()));
    EXPECT_GT(lms.at("memory_stats").at("evictions"), 0);
    EXPECT_LE(lms.at("memory_stats").at("device.bytes.peak"), lms.at("memory_stats").at("limit"));
  }

  Folder folder_;
  std::string out_;
  std::string err_;
};

// --- look-alikes ---

/// Coloured by label, so that there is something to learn.
void write_pair(const std::string& image, const std::string& labels, std::int64_t height,
                std::int64_t width, const std::vector<std::uint8_t>& ids, bool jpeg = false) {
  fs::create_directories(fs::path(image).parent_path());
  fs::create_directories(fs::path(labels).parent_path());
  Image picture{width, height, {}};
  Array<std::uint8_t> map{{height, width}, {}};
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      const auto id = ids[static_cast<std::size_t>((y / 7 + x / 9)) % ids.size()];
      map.values.push_back(id);
      for (int c = 0; c < 3; ++c) {
        picture.pixels.push_back(static_cast<std::uint8_t>((id * 37 + c * 61 + x + y) % 256));
      }
    }
  }
  data::write_label_png(labels, map, {});
  if (jpeg) {
    data::fixtures::write_file(image, data::fixtures::jpeg_bytes(picture));
  } else {
    data::write_rgb_png(image, picture);
  }
}

void make_camvid(const std::string& root) {
  for (const std::string split : {"train", "val"}) {
    for (const std::string name : {"a", "b", "c", "d"}) {
      write_pair(root + "/" + split + "/" + name + ".png",
                 root + "/" + split + "annot/" + name + ".png", 40, 56, {0, 3, 10, 11});
    }
  }
}

void make_voc(const std::string& root) {
  fs::create_directories(root + "/ImageSets/Segmentation");
  for (const std::string split : {"train", "val"}) {
    std::string list;
    for (int i = 0; i < 3; ++i) {
      const std::string name = split + std::to_string(i);
      list += name + "\r\n";
      write_pair(root + "/JPEGImages/" + name + ".jpg",
                 root + "/SegmentationClass/" + name + ".png", i == 0 ? 60 : 40, i == 1 ? 60 : 40,
                 {0, 15, 20, 255}, true);
    }
    data::fixtures::write_text(root + "/ImageSets/Segmentation/" + split + ".txt", list);
  }
}

void make_cityscapes(const std::string& root) {
  for (const std::string split : {"train", "val"}) {
    for (const std::string city : {"aachen", "bochum"}) {
      const std::string name = city + "_000000_00000" + (split == "val" ? "1" : "2");
      write_pair(root + "/leftImg8bit/" + split + "/" + city + "/" + name + "_leftImg8bit.png",
                 root + "/gtFine/" + split + "/" + city + "/" + name + "_gtFine_labelIds.png", 40,
                 48, {7, 26, 33, 4});
    }
  }
}

void make_taco(const std::string& root) {
  Json coco;
  coco["categories"] = {{{"id", 0}, {"name", "Can"}, {"supercategory", "Can"}},
                        {{"id", 1}, {"name", "Bottle"}, {"supercategory", "Bottle"}}};
  for (int i = 0; i < 4; ++i) {
    const std::string name = "batch_1/00000" + std::to_string(i) + ".jpg";
    fs::create_directories(root + "/batch_1");
    data::fixtures::write_file(root + "/" + name,
                               data::fixtures::jpeg_bytes(data::fixtures::gradient(48, 40)));
    coco["images"].push_back({{"id", i}, {"width", 48}, {"height", 40}, {"file_name", name}});
    coco["annotations"].push_back({{"id", i},
                                   {"image_id", i},
                                   {"category_id", i % 2},
                                   {"iscrowd", 0},
                                   {"area", 400},
                                   {"bbox", {4, 4, 20, 20}},
                                   {"segmentation", {{4, 4, 24, 4, 24, 24, 4, 24}}}});
  }
  data::fixtures::write_text(root + "/annotations.json", coco.dump());
}

void write_volume(const std::string& path, std::int64_t side, int what) {
  Array<std::uint8_t> voxels{{side, side, side}, {}};
  for (std::int64_t z = 0; z < side; ++z) {
    for (std::int64_t y = 0; y < side; ++y) {
      for (std::int64_t x = 0; x < side; ++x) {
        const bool in = x > 2 && y > 2 && z > 2 && x < side - 3;
        const std::uint8_t ids[] = {0, 1, 2, 4};
        const std::int64_t id = in ? (x / 6 + y / 9) % 4 : 0;
        std::int64_t value = 0;
        if (what == 0) value = ids[id];                                // the truth
        if (what > 0 && in) value = 40 + 30 * id + 10 * what + z % 5;  // an image
        if (what < 0) value = in && id == -what ? 250 : 0;             // a probability
        voxels.values.push_back(static_cast<std::uint8_t>(value));
      }
    }
  }
  fs::create_directories(fs::path(path).parent_path());
  data::write_nifti(path, voxels, {1, 1, 1});
}

void make_brats(const std::string& root) {
  for (const std::string subject : {"a", "b", "c"}) {
    int what = 0;
    for (const std::string name : {"truth", "t1", "t1ce", "flair", "t2"}) {
      write_volume(root + "/" + subject + "/" + name + ".nii.gz", 36, what++);
    }
  }
}

void make_mni(const std::string& root) {
  write_volume(root + "/mni_icbm152_t1_tal.nii.gz", 40, 1);
  write_volume(root + "/mni_icbm152_gm_tal.nii.gz", 40, -1);
  write_volume(root + "/mni_icbm152_wm_tal.nii.gz", 40, -2);
}

// --- every model and data set, LMS on and off ---

TEST_F(Program, ResNet50OnSyntheticClasses) {
  expect_same_with_lms({"model=resnet50", "data=synthetic:?task=classes&size=64&count=8", "batch=2",
                        "crop=64", "steps=2", "clip=1"},
                       "200MiB");
}

TEST_F(Program, GoogLeNetOnSyntheticClasses) {
  expect_same_with_lms({"model=googlenet", "data=synthetic:?task=classes&size=32&count=8",
                        "batch=2", "steps=3", "precision=bf16"},
                       "30MiB");
}

TEST_F(Program, DeepLabOnCamVid) {
  make_camvid(folder_ / "camvid");
  expect_same_with_lms({"model=deeplabv3plus", "data=camvid:" + folder_ / "camvid", "batch=2",
                        "crop=33", "scale=0.5,2", "flip=true", "colour=0.2", "steps=2",
                        "val_crop=33", "val_limit=1", "checkpoint_minutes=0"},
                       "500MiB");
}

TEST_F(Program, DeepLabOnVoc) {
  make_voc(folder_ / "VOC2012");
  expect_same_with_lms({"model=deeplabv3plus", "data=voc:" + folder_ / "VOC2012", "batch=2",
                        "crop=33", "steps=1", "momentum=0", "val_every=-1", "deterministic=true"},
                       "400MiB");
}

TEST_F(Program, DeepLabOnTaco) {
  make_taco(folder_ / "taco");
  expect_same_with_lms({"model=deeplabv3plus", "data=coco:" + folder_ / "taco", "batch=2",
                        "crop=33", "steps=1", "momentum=0", "val_every=-1"},
                       "400MiB");
}

TEST_F(Program, UNetOnBrats) {
  make_brats(folder_ / "brats");
  expect_same_with_lms({"model=unet3d", "data=brats:" + folder_ / "brats", "batch=1", "crop=16",
                        "axes=true", "flip=true", "steps=3", "val_crop=16", "val_limit=1"},
                       "100MiB");
}

TEST_F(Program, UNetOnMni) {
  make_mni(folder_ / "mni");
  const std::string data = "mni:" + folder_ / "mni";
  expect_same_with_lms({"model=unet3d", "data=" + data + "?slab=z,0,0.9&repeat=2", "batch=1",
                        "crop=16", "rotate=10", "warp=1", "steps=2", "val_crop=16"},
                       "100MiB");
}

TEST_F(Program, GatedScnnOnCityscapes) {
  make_cityscapes(folder_ / "cityscapes");
  expect_same_with_lms({"model=gscnn", "data=cityscapes:" + folder_ / "cityscapes", "batch=2",
                        "crop=32", "steps=1", "momentum=0", "val_every=-1"},
                       "900MiB");
}

TEST_F(Program, TheNextStartBeginsWithThePlanThatWasKept) {
  const auto planned = [&](const std::string& out) {
    return trained(out,
                   {"model=unet3d", "data=synthetic:?task=volumes&size=16&count=40", "steps=10",
                    "val_every=-1", "limit=60MiB", "min_block=4KiB", "directory=" + folder_.path(),
                    "plan_at_once=true", "plan_seconds=0.3", "plan_cache=" + folder_ / "plans"});
  };
  const Json first = planned("first");
  ASSERT_FALSE(first.is_null());
  EXPECT_GE(first.at("memory_stats").at("plan.planned"), 1);
  EXPECT_EQ(first.at("memory_stats").at("plan.kept"), 0);
  EXPECT_FALSE(fs::is_empty(folder_ / "plans"));
  const Json second = planned("second");
  ASSERT_FALSE(second.is_null());
  EXPECT_GE(second.at("memory_stats").at("plan.kept"), 1);
  EXPECT_GE(second.at("memory_stats").at("plan.steps"), 1);
  EXPECT_GT(second.at("memory_stats").at("evictions"), 0);
  EXPECT_EQ(second.at("loss_hex"), first.at("loss_hex"));
  EXPECT_EQ(second.at("fingerprint"), first.at("fingerprint"));
}

// --- resuming, signals, kills ---

const std::vector<std::string> kSmall = {
    "model=googlenet", "data=synthetic:?task=classes&size=32&count=7",
    "device=cpu",      "threads=1",
    "batch=1",         "flip=true",
    "val_every=-1",    "accumulate=2",
    "momentum=0.9",    "tensorboard=false"};

std::vector<std::string> small_run(const std::string& out, std::vector<std::string> more) {
  more.insert(more.begin(), kSmall.begin(), kSmall.end());
  more.insert(more.begin(), "train");
  more.push_back("out=" + out);
  return more;
}

TEST_F(Program, AKillLosesAtMostTheStepInFlight) {
  ASSERT_EQ(run(small_run(folder_ / "whole", {"steps=12", "report=json"})), 0) << err_;
  const Json whole = Json::parse(out_);
  const std::string out = folder_ / "killed";
  const pid_t child = start(folder_ / "stdout", small_run(out, {"steps=12"}));
  const auto rows = [&] {
    const std::string text = read_text(out + "/steps.csv");
    return std::count(text.begin(), text.end(), '\n') - 1;
  };
  while (rows() < 5) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ::kill(child, SIGKILL);
  EXPECT_EQ(wait_for(child), -SIGKILL);
  // A step's row is written when the step is done, just before its entry in the journal.
  const std::int64_t done = rows();
  ASSERT_LT(done, 12);
  ASSERT_EQ(run({"train", "--resume", "true", "--out", out, "--report", "json"}), 0) << err_;
  const Json resumed = Json::parse(out_);
  EXPECT_GE(resumed.at("first_step"), done);
  EXPECT_LE(resumed.at("first_step"), done + 1);
  EXPECT_EQ(resumed.at("fingerprint"), whole.at("fingerprint"));
  EXPECT_EQ(resumed.at("loss_hex").back(), whole.at("loss_hex").back());
}

TEST_F(Program, ControlCSavesAndExitsWith130) {
  const std::string out = folder_ / "run";
  const pid_t child = start(folder_ / "stdout", small_run(out, {"steps=4000", "journal=0"}));
  while (read_text(out + "/steps.csv").size() < 300) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ::kill(child, SIGINT);
  EXPECT_EQ(wait_for(child), 130);
  EXPECT_NE(read_text(folder_ / "stdout.err").find("saved"), std::string::npos);
  EXPECT_EQ(run({"eval", "checkpoint=" + out, "device=cpu", "val_limit=2"}), 0);
  EXPECT_NE(out_.find("2 samples"), std::string::npos) << out_ << err_;
}

// --- evaluation and prediction ---

TEST_F(Program, EvaluatesAndPredicts) {
  make_camvid(folder_ / "camvid");
  const std::string run_folder = folder_ / "run";
  trained("run", {"model=deeplabv3plus", "data=camvid:" + folder_ / "camvid", "batch=2", "crop=33",
                  "steps=1", "val_limit=2", "momentum=0",
                  "val_data=camvid:" + folder_ / "camvid?split=train"});
  EXPECT_EQ(run({"eval", "--checkpoint", run_folder, "--device", "cpu", "--json", "-"}), 0) << err_;
  const Json scores = Json::parse(out_);
  EXPECT_EQ(scores.at("classes").size(), 11U);
  EXPECT_EQ(scores.at("samples"), 2);
  // Data that are named stand before those that the run was validated on.
  EXPECT_EQ(run_here({"eval", "--checkpoint", run_folder, "device=cpu",
                      "data=camvid:" + folder_ / "nothing"}),
            2);
  EXPECT_NE(err_.find("nothing"), std::string::npos) << err_;
  EXPECT_EQ(run({"predict", "--checkpoint", run_folder, "device=cpu", "val_limit=1",
                 "out=" + folder_ / "labels"}),
            0)
      << err_;
  const Array<std::uint8_t> labels = data::read_labels(folder_ / "labels/a.png");
  EXPECT_EQ(labels.shape, (std::vector<std::int64_t>{40, 56}));
  EXPECT_LT(*std::max_element(labels.values.begin(), labels.values.end()), 11);
  EXPECT_EQ(data::read_image(folder_ / "labels/a.overlay.png").width, 56);

  // Pictures without labels; the labels alone, as colours.
  fs::create_directories(folder_ / "pictures");
  data::write_rgb_png(folder_ / "pictures/x.png", data::fixtures::gradient(51, 35));
  EXPECT_EQ(
      run_here({"predict", "--checkpoint", run_folder, "device=cpu", "labels=rgb", "overlay=false",
                "data=images:" + folder_ / "pictures", "out=" + folder_ / "colours"}),
      0)
      << err_;
  EXPECT_EQ(data::read_image(folder_ / "colours/x.png").width, 51);
  EXPECT_FALSE(fs::exists(folder_ / "colours/x.overlay.png"));

  // Predictions replace no picture, and one another neither.
  const std::string before = read_text(folder_ / "pictures/x.png");
  EXPECT_EQ(run_here({"predict", "--checkpoint", run_folder, "device=cpu",
                      "data=images:" + folder_ / "pictures/", "out=" + folder_ / "pictures"}),
            2);
  EXPECT_NE(err_.find("lies in the data"), std::string::npos) << err_;
  EXPECT_EQ(read_text(folder_ / "pictures/x.png"), before);
  EXPECT_EQ(run_here({"predict", "--checkpoint", run_folder, "device=cpu", "val_limit=1",
                      "out=" + folder_ / "camvid/val"}),
            2);
  EXPECT_NE(err_.find("lies in the data"), std::string::npos) << err_;
  data::fixtures::write_file(folder_ / "pictures/x.jpg",
                             data::fixtures::jpeg_bytes(data::fixtures::gradient(20, 20)));
  EXPECT_EQ(run_here({"predict", "--checkpoint", run_folder, "device=cpu",
                      "data=images:" + folder_ / "pictures", "out=" + folder_ / "more"}),
            2);
  EXPECT_NE(err_.find("has the name of"), std::string::npos) << err_;
}

// --- mistakes ---

TEST_F(Program, MistakesHaveStatusTwoAndSayWhatWouldDo) {
  const auto expect = [&](const std::vector<std::string>& arguments, const std::string& part) {
    EXPECT_EQ(run_here(arguments), kBadInput) << part;
    EXPECT_NE(err_.find(part), std::string::npos) << err_;
  };
  const std::vector<std::string> good = small_run(folder_ / "run", {"steps=1"});
  const auto with = [&](const std::string& more) {
    std::vector<std::string> all = good;
    all.push_back(more);
    return all;
  };
  expect({"train"}, "no model was named");
  expect(with("lerning_rate=3"), "unknown setting 'lerning_rate'");
  expect(with("batch=two"), "batch: 'two' is not a whole number");
  expect(with("model=unet3e"), "unet3d");
  expect(with("data=synthetik:"), "synthetic");
  expect(with("data=voc:" + folder_ / "nothing"), folder_ / "nothing");
  expect({"train", "model=unet3d", "data=synthetic:?task=volumes&size=32", "device=cpu", "steps=1",
          "crop=40", "out=" + folder_ / "run"},
         "crop: 40 is not divisible by 16, as the model wants; 32 would do");
  expect(with("limit=much"), "limit: 'much' is no amount of memory");
  expect(with("device=cuda:77"), "device");
  expect(with("init=" + folder_ / "nothing"), folder_ / "nothing");
  expect(with("resume=true"), "resume: there is no checkpoint in");
  expect(with(folder_ / "nothing.toml"), "nothing.toml");
  expect({"eval", "checkpoint=" + folder_ / "nothing"}, folder_ / "nothing");
  expect({"predict"}, "checkpoint: which?");
  std::ofstream(folder_ / "bad.toml") << "batch = 2\ncrops = 33\n";
  expect({"train", folder_ / "bad.toml"},
         "bad.toml:2: unknown setting 'crops'; the nearest is 'crop'");
  EXPECT_EQ(run({"train", "--help"}), 0);
  EXPECT_NE(out_.find("--checkpoint-every"), std::string::npos);
}

TEST_F(Program, ARunIsNotOverwrittenUnasked) {
  const auto arguments = small_run(folder_ / "run", {"steps=1"});
  ASSERT_EQ(run(arguments), 0) << err_;
  EXPECT_EQ(run(arguments), 2);
  EXPECT_NE(err_.find("overwrite=true"), std::string::npos) << err_;
  auto again = arguments;
  again.emplace_back("overwrite=true");
  EXPECT_EQ(run(again), 0) << err_;
}

TEST(Recipes, AllKeysAreKnown) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(LMS_RECIPES)) {
    if (entry.path().extension() != ".toml") continue;
    Settings settings;
    for (const RecipeEntry& each : read_recipe(entry.path().string())) {
      EXPECT_NO_THROW(set_key(settings, each.key, each.value, each.where)) << each.where;
    }
    EXPECT_NO_THROW(check_training(settings)) << entry.path();
    ++count;
  }
  EXPECT_GE(count, 7);
}

}  // namespace
}  // namespace lms::train
