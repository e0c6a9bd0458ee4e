// Look-alikes of Cityscapes, VOC, CamVid and folders of one's own.

#include <gtest/gtest.h>

#include <filesystem>

#include "lab/datasets/augment.h"
#include "lab/datasets/open.h"
#include "tests/datasets/fixtures.h"

namespace lms::data {
namespace {

using fixtures::error_of;
using fixtures::holds;
using fixtures::TempFolder;

Array<std::uint16_t> filled(std::int64_t height, std::int64_t width, std::uint16_t value) {
  return {{height, width},
          std::vector<std::uint16_t>(static_cast<std::size_t>(height * width), value)};
}

void write_labels(const std::string& path, const Array<std::uint16_t>& ids, int type = 0) {
  fixtures::write_file(path, fixtures::indexed_png(ids, type, 8));
}

/// Two cities in each of three splits, one with two sequences; every id; a tile that is all void.
class CityscapesTest : public ::testing::Test {
 protected:
  CityscapesTest() {
    for (const std::string split : {"train", "val", "test"}) {
      add(split, "aachen", "aachen_000000_000019", every_id());
      add(split, "aachen", "aachen_000001_000019", filled(20, 40, 4));
      add(split, "zurich", "zurich_000000_000001", filled(10, 12, 7));
    }
  }
  void add(const std::string& split, const std::string& city, const std::string& name,
           const Array<std::uint16_t>& ids) {
    const Image image = fixtures::gradient(ids.shape[1], ids.shape[0]);
    write_rgb_png(
        folder_.file("leftImg8bit/" + split + "/" + city + "/" + name + "_leftImg8bit.png"), image);
    write_labels(label_file(split, city, name), ids);
  }
  std::string label_file(const std::string& split, const std::string& city,
                         const std::string& name) {
    return folder_.file("gtFine/" + split + "/" + city + "/" + name + "_gtFine_labelIds.png");
  }
  static Array<std::uint16_t> every_id() {
    Array<std::uint16_t> ids = filled(1, 35, 0);
    for (std::uint16_t id = 0; id < 34; ++id) ids.values[id] = id;
    ids.values[34] = 255;  // the licence plate's -1
    return ids;
  }
  std::string spec(const std::string& options) { return "cityscapes:" + folder_.path() + options; }

  TempFolder folder_;
};

TEST_F(CityscapesTest, IdsBecomeTrainIds) {
  const auto data = open_dataset(spec("?split=val"));
  ASSERT_EQ(data->size(), 3U);
  EXPECT_EQ(data->classes(), 19U);
  EXPECT_EQ(data->class_names().size(), 19U);
  EXPECT_EQ(data->palette().size(), 19U);
  const Sample sample = data->get(0, 0);
  EXPECT_EQ(sample.name, "aachen/aachen_000000_000019");
  EXPECT_EQ(sample.input.shape, (std::vector<std::int64_t>{3, 1, 35}));
  const std::vector<std::uint8_t> expected = {
      255, 255, 255, 255, 255, 255, 255, 0,  1,  255, 255, 2,   3,   4,  255, 255, 255, 5,
      255, 6,   7,   8,   9,   10,  11,  12, 13, 14,  15,  255, 255, 16, 17,  18,  255};
  EXPECT_EQ(sample.target.values, expected);
  // A tile that is all void.
  EXPECT_EQ(data->get(1, 0).target.values, std::vector<std::uint8_t>(800, kVoid));
  EXPECT_EQ(data->get(2, 0).name, "zurich/zurich_000000_000001");
}

TEST_F(CityscapesTest, SmallImagesAreCroppedWithVoidAround) {
  const auto data = open_dataset(spec(""));
  Sample sample = data->get(2, 0);  // 10 x 12, all road
  Generator generator(1);
  random_scale_crop(1, 1, 16, 16, {0.5F, 0.25F})(sample, generator);
  ASSERT_EQ(sample.target.shape, (std::vector<std::int64_t>{16, 16}));
  EXPECT_EQ(std::count(sample.target.values.begin(), sample.target.values.end(), 0), 120);
  EXPECT_EQ(std::count(sample.target.values.begin(), sample.target.values.end(), kVoid), 136);
  EXPECT_EQ(sample.input.values[0], 0.5F);
  EXPECT_EQ(sample.input.values[256], 0.25F);
  EXPECT_EQ(sample.input.values[512], 0.0F);
}

TEST_F(CityscapesTest, MissingLabelsAreNamed) {
  const std::string file = label_file("train", "zurich", "zurich_000000_000001");
  std::filesystem::remove(file);
  const std::string error = error_of([&] { (void)open_dataset(spec("?split=train")); });
  EXPECT_TRUE(holds(error, file + ": is missing: the labels of")) << error;
  EXPECT_EQ(open_dataset(spec("?split=train&missing=skip"))->size(), 2U);
  // Test labels are not published.
  std::filesystem::remove_all(folder_.path() + "/gtFine/test");
  EXPECT_EQ(open_dataset(spec("?split=test"))->get(0, 0).target.values,
            std::vector<std::uint8_t>(35, kVoid));
}

TEST_F(CityscapesTest, BadLabelsAreNamed) {
  const std::string file = label_file("val", "aachen", "aachen_000001_000019");
  Array<std::uint16_t> ids = filled(20, 40, 4);
  ids.values[43] = 34;
  write_labels(file, ids);
  const auto data = open_dataset(spec("?split=val"));
  EXPECT_EQ(error_of([&] { (void)data->get(1, 0); }),
            file + ": pixel (3, 1): label id 34 is out of range: it is no class of this data set");
  write_labels(file, filled(20, 39, 4));
  EXPECT_TRUE(holds(error_of([&] { (void)data->get(1, 0); }),
                    file + ": labels of 39 x 20 pixels; the image"));
  fixtures::write_text(file, "\x89PNG");
  EXPECT_TRUE(holds(error_of([&] { (void)data->get(1, 0); }), file + ": is no PNG"));
  EXPECT_TRUE(holds(error_of([&] { (void)open_dataset(spec("?split=all")); }),
                    "option split: \"all\" is not one of train val test"));
}

class VocTest : public ::testing::Test {
 protected:
  VocTest() {
    add("2007_000032", 30, 20, false);
    add("2007_000039", 20, 30, true);
    list("train", "2007_000032\r\n2007_000039\r\n");
    list("val",
         "\xEF\xBB\xBF"
         "2007_000039\n\n");
  }
  void add(const std::string& id, std::int64_t width, std::int64_t height, bool grey) {
    fixtures::write_file(folder_.file("JPEGImages/" + id + ".jpg"),
                         fixtures::jpeg_bytes(fixtures::gradient(width, height), {.grey = grey}));
    Array<std::uint16_t> ids = filled(height, width, 0);
    for (std::uint16_t i = 0; i < 21; ++i) ids.values[i] = i;
    for (std::int64_t x = 0; x < width; ++x) {
      ids.values[static_cast<std::size_t>((height - 1) * width + x)] = 255;
    }
    write_labels(folder_.file("SegmentationClass/" + id + ".png"), ids, 3);
  }
  void list(const std::string& name, const std::string& text) {
    fixtures::write_text(folder_.file("ImageSets/Segmentation/" + name + ".txt"), text);
  }
  std::string spec(const std::string& options) { return "voc:" + folder_.path() + options; }

  TempFolder folder_;
};

TEST_F(VocTest, IndicesAreTheClasses) {
  const auto data = open_dataset(spec(""));
  ASSERT_EQ(data->size(), 2U);
  EXPECT_EQ(data->classes(), 21U);
  EXPECT_EQ(data->palette()[1], (std::array<std::uint8_t, 3>{128, 0, 0}));
  EXPECT_EQ(data->palette()[15], (std::array<std::uint8_t, 3>{192, 128, 128}));
  EXPECT_EQ(data->palette()[20], (std::array<std::uint8_t, 3>{0, 64, 128}));
  const Sample landscape = data->get(0, 0);
  EXPECT_EQ(landscape.name, "2007_000032");
  EXPECT_EQ(landscape.input.shape, (std::vector<std::int64_t>{3, 20, 30}));
  for (std::uint8_t i = 0; i < 21; ++i) EXPECT_EQ(landscape.target.values[i], i);
  EXPECT_EQ(landscape.target.values.back(), kVoid);
  const Sample portrait = data->get(1, 0);  // its JPEG is grey
  EXPECT_EQ(portrait.input.shape, (std::vector<std::int64_t>{3, 30, 20}));
  EXPECT_EQ(portrait.input.values[5], portrait.input.values[605]);
  EXPECT_EQ(open_dataset(spec("?split=val"))->size(), 1U);
}

TEST_F(VocTest, MissingFilesAreNamedWithTheirLine) {
  list("broken", "2007_000032\r\n\r\n2008_999999\r\n");
  const std::string error = error_of([&] { (void)open_dataset(spec("?split=broken")); });
  EXPECT_TRUE(holds(error, "broken.txt: line 3: id \"2008_999999\"")) << error;
  EXPECT_TRUE(holds(error, "JPEGImages/2008_999999.jpg is missing")) << error;
  EXPECT_EQ(open_dataset(spec("?split=broken&missing=skip"))->size(), 1U);
  list("all_gone", "a\nb\n");
  EXPECT_TRUE(holds(error_of([&] { (void)open_dataset(spec("?split=all_gone&missing=skip")); }),
                    "a.jpg: is missing, and so is every other sample"));
  list("outside", "../../../etc/passwd\n");
  EXPECT_TRUE(holds(error_of([&] { (void)open_dataset(spec("?split=outside")); }),
                    "line 1: the file name"));
  list("empty", "\r\n");
  EXPECT_TRUE(holds(error_of([&] { (void)open_dataset(spec("?split=empty")); }), "names no image"));
  EXPECT_TRUE(holds(error_of([&] { (void)open_dataset(spec("?split=none")); }),
                    "none.txt: cannot be opened"));
}

TEST_F(VocTest, TruncatedPicturesAreNamed) {
  const std::string path = folder_.path() + "/JPEGImages/2007_000032.jpg";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  const auto data = open_dataset(spec(""));
  EXPECT_TRUE(holds(error_of([&] { (void)data->get(0, 0); }), path + ": truncated or broken JPEG"));
  const std::string labels = folder_.path() + "/SegmentationClass/2007_000039.png";
  std::filesystem::resize_file(labels, std::filesystem::file_size(labels) - 30);
  EXPECT_TRUE(
      holds(error_of([&] { (void)data->get(1, 0); }), labels + ": truncated or broken PNG"));
}

TEST(Folder, ImagesAndLabelsByName) {
  const TempFolder folder;
  fixtures::write_file(folder.file("photos/a.jpg"), fixtures::jpeg_bytes(fixtures::gradient(8, 6)));
  write_rgb_png(folder.file("photos/b.png"), fixtures::gradient(8, 6));
  fixtures::write_text(folder.file("photos/notes.txt"), "no image");
  for (const char* name : {"a", "b"}) {
    Array<std::uint16_t> ids = filled(6, 8, 2);
    ids.values[0] = 9;
    write_labels(folder.file(std::string("masks/") + name + ".png"), ids);
  }
  const std::string spec = "folder:" + folder.path() + "?images=photos";
  const auto data = open_dataset(spec + "&labels=masks&classes=3&void=9&names=x,y,z");
  ASSERT_EQ(data->size(), 2U);
  EXPECT_EQ(data->class_names(), (std::vector<std::string>{"x", "y", "z"}));
  EXPECT_EQ(data->get(1, 0).target.values[0], kVoid);
  EXPECT_EQ(data->get(1, 0).target.values[1], 2);
  EXPECT_TRUE(holds(error_of([&] { (void)open_dataset(spec + "&labels=masks"); }),
                    "option classes is missing"));
  const auto few = open_dataset(spec + "&labels=masks&classes=2&void=9");
  EXPECT_TRUE(holds(error_of([&] { (void)few->get(0, 0); }), "label id 2 is out of range"));
  // Without labels: to predict.
  EXPECT_EQ(open_dataset(spec)->get(0, 0).target.values, std::vector<std::uint8_t>(48, kVoid));
  EXPECT_TRUE(
      holds(error_of([&] { (void)open_dataset("folder:" + folder.path() + "/masks?images=x"); }),
            "masks/x: the folder cannot be read"));
  write_rgb_png(folder.file("photos/a.png"), fixtures::gradient(8, 6));
  EXPECT_TRUE(holds(error_of([&] { (void)open_dataset(spec); }), "has the name of a.jpg"));
}

TEST(CamVid, LookAlike) {
  const TempFolder folder;
  write_rgb_png(folder.file("train/f1.png"), fixtures::gradient(12, 1));
  Array<std::uint16_t> ids = filled(1, 12, 0);
  for (std::uint16_t i = 0; i < 12; ++i) ids.values[i] = i;
  write_labels(folder.file("trainannot/f1.png"), ids);
  const auto data = open_dataset("camvid:" + folder.path());
  EXPECT_EQ(data->get(0, 0).target.values,
            (std::vector<std::uint8_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 255}));
  EXPECT_EQ(data->classes(), 11U);
}

TEST(CamVid, TheRealOne) {
  const std::string shared = fixtures::shared_data();
  if (shared.empty() || !std::filesystem::exists(shared + "/camvid")) {
    GTEST_SKIP() << "there is no shared/data/camvid beside the checkout (LMS_SHARED_DATA)";
  }
  std::array<std::int64_t, 256> seen{};
  for (const auto& [split, count] : {std::pair{"train", 64}, {"val", 24}}) {
    const auto data = open_dataset("camvid:" + shared + "/camvid?split=" + split);
    ASSERT_EQ(data->size(), static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < data->size(); i += 4) {
      const Sample sample = data->get(i, 0);
      EXPECT_EQ(sample.input.shape, (std::vector<std::int64_t>{3, 360, 480}));
      for (const std::uint8_t id : sample.target.values) ++seen[id];
    }
  }
  for (std::size_t id = 0; id < 11; ++id) EXPECT_GT(seen[id], 0) << id;
  EXPECT_GT(seen[kVoid], 0);
}

}  // namespace
}  // namespace lms::data
