#include <gtest/gtest.h>

#include <filesystem>

#include "lab/datasets/coco_file.h"
#include "lab/datasets/open.h"
#include "tests/datasets/fixtures.h"

namespace lms::data {
namespace {

using fixtures::error_of;
using fixtures::holds;
using fixtures::TempFolder;

CocoFile parse(const std::string& json) {
  return parse_coco({reinterpret_cast<const std::uint8_t*>(json.data()), json.size()}, "a.json");
}

std::string annotation(const std::string& segmentation, const std::string& fields = "") {
  const std::string all =
      fields.empty() ? R"("id":1,"image_id":1,"category_id":5,"area":9)" : fields;
  return "{" + all + R"(,"segmentation":)" + segmentation + "}";
}

/// An image of 10 x 8, categories 5 and 2.
std::string document(const std::string& annotations) {
  return R"({"images":[{"id":1,"width":10,"height":8,"file_name":"b/x.jpg"}],)"
         R"("categories":[{"id":5,"name":"can"},{"id":2,"name":"bag"}],"annotations":[)" +
         annotations + "]}";
}

constexpr const char* kSquare = "[[1,1,5,1,5,5,1,5]]";

TEST(Coco, CategoriesAreNumberedByTheirIds) {
  const CocoFile file = parse(document(annotation(kSquare)));
  EXPECT_EQ(file.categories, (std::vector<std::string>{"bag", "can"}));
  const Array<std::uint8_t> labels = label_image(file.images.at(0), "a.json");
  EXPECT_EQ(labels.shape, (std::vector<std::int64_t>{8, 10}));
  EXPECT_EQ(labels.values[0], 0);
  EXPECT_EQ(labels.values[11], 2);
  EXPECT_EQ(std::count(labels.values.begin(), labels.values.end(), 2), 16);
}

TEST(Coco, TheSmallerAreaIsOnTop) {
  const std::string small =
      annotation("[[2,2,4,2,4,4,2,4]]", R"("id":1,"image_id":1,"category_id":2,"area":4)");
  const std::string large =
      annotation("[[0,0,8,0,8,8,0,8]]", R"("id":2,"image_id":1,"category_id":5,"area":64)");
  for (const std::string& order : {small + "," + large, large + "," + small}) {
    const Array<std::uint8_t> labels = label_image(parse(document(order)).images[0], "a");
    EXPECT_EQ(std::count(labels.values.begin(), labels.values.end(), 1), 4);
    EXPECT_EQ(std::count(labels.values.begin(), labels.values.end(), 2), 60);
  }
}

TEST(Coco, CrowdsAreRunLengths) {
  // Column by column: 8 zeros, 8 ones (the second column), the rest zeros.
  const std::string runs = R"({"size":[8,10],"counts":[8,8,64]})";
  const std::string packed = R"({"size":[8,10],"counts":"88P2"})";
  for (const std::string& segmentation : {runs, packed}) {
    const CocoFile file = parse(document(annotation(segmentation)));
    const Array<std::uint8_t> labels = label_image(file.images[0], "a");
    EXPECT_EQ(std::count(labels.values.begin(), labels.values.end(), 2), 8) << segmentation;
    EXPECT_EQ(labels.values[1], 2);
  }
}

TEST(Coco, ErrorsNameTheField) {
  const auto error = [](const std::string& json) {
    return error_of([&] {
      for (const CocoImage& image : parse(json).images) (void)label_image(image, "a.json");
    });
  };
  const auto of = [&](const std::string& segmentation) {
    return error(document(annotation(segmentation)));
  };
  EXPECT_EQ(of(kSquare), "");
  EXPECT_TRUE(holds(error("{"), "a.json: broken JSON"));
  EXPECT_TRUE(holds(error("[]"), "a.json: $: is no object"));
  EXPECT_TRUE(holds(error("{}"), "a.json: $.categories: is missing"));
  EXPECT_TRUE(holds(of("[[1,1,5,1,5,90]]"),
                    "a.json: $.annotations[0].segmentation[0][5]: y = 90 lies outside of its image "
                    "(id 1, 10 x 8)"));
  EXPECT_TRUE(holds(of("[[1,1,-9.5,1,5,5]]"), "segmentation[0][2]: x = -9.5"));
  EXPECT_TRUE(holds(of("[[1,1,5,1]]"), "segmentation[0]: 4 numbers"));
  EXPECT_TRUE(holds(of("[[1,1,5,1,4,4,3]]"), "segmentation[0]: 7 numbers"));
  EXPECT_TRUE(holds(of("[[1,1,5,1,4,\"4\"]]"), "segmentation[0][5]: is no number"));
  EXPECT_TRUE(holds(of("[]"), "segmentation: has no polygon"));
  EXPECT_TRUE(holds(of("[[1,1,1e999,1,4,4]]"), "broken JSON"));
  EXPECT_TRUE(
      holds(of(R"({"size":[10,8],"counts":[80]})"), "segmentation.size: is not the height"));
  EXPECT_TRUE(holds(of(R"({"size":[8,10],"counts":[81]})"), "annotations[0].segmentation.counts"));
  EXPECT_TRUE(holds(of(R"({"size":[8,10],"counts":[]})"), "add up to 0"));
  EXPECT_TRUE(
      holds(error(document(annotation(kSquare, R"("id":1,"image_id":7,"category_id":5,"area":9)"))),
            "annotations[0].image_id: there is no image 7"));
  EXPECT_TRUE(
      holds(error(document(annotation(kSquare, R"("id":1,"image_id":1,"category_id":9,"area":9)"))),
            "annotations[0].category_id: label id 9 is out of range"));
  EXPECT_TRUE(holds(error(document(annotation(kSquare, R"("id":1,"image_id":1,"category_id":5)"))),
                    "annotations[0].area: is missing"));
  const std::string image = R"({"id":1,"width":10,"height":8,"file_name":)";
  const auto of_images = [&](const std::string& images) {
    return error(R"({"categories":[],"annotations":[],"images":[)" + images + "]}");
  };
  EXPECT_TRUE(holds(of_images(image + "\"a\"}," + image + "\"b\"}"), "images[1].id: exists twice"));
  EXPECT_TRUE(holds(of_images(image + "\"../a\"}"), "images[0].file_name: the file name"));
  EXPECT_TRUE(holds(of_images(image + "\"/a\"}"), "is absolute"));
  EXPECT_TRUE(holds(of_images(R"({"id":1,"width":99999,"height":8,"file_name":"a"})"),
                    "images[0].width: 99999 pixels"));
}

TEST(Coco, OutlinesThatWouldFillTheMemoryAreErrors) {
  // 360 KB of points, back and forth over 65,000 columns, would make 30 GB of a mask.
  std::string points;
  for (int i = 0; i < 60'000; ++i) points += i % 2 == 0 ? "0,1," : "65000,2,";
  const std::string json = R"({"images":[{"id":1,"width":65000,"height":8,"file_name":"x.jpg"}],)"
                           R"("categories":[{"id":5,"name":"can"}],"annotations":[)" +
                           annotation("[[" + points + "0,0]]") + "]}";
  EXPECT_TRUE(holds(error_of([&] { (void)label_image(parse(json).images[0], "a.json"); }),
                    "a.json: $.annotations[0].segmentation: the outline goes back and forth"));
}

TEST(Coco, DeepNestingIsNoTrouble) {
  const std::string deep(2'000'000, '[');
  EXPECT_TRUE(holds(error_of([&] { (void)parse(deep); }), "broken JSON"));
}

class TacoTest : public ::testing::Test {
 protected:
  TacoTest() {
    fixtures::write_file(folder_.file("batch_1/1.jpg"),
                         fixtures::jpeg_bytes(fixtures::gradient(10, 8)));
    // Stored on its side: upright it is 10 x 8.
    fixtures::write_file(folder_.file("batch_2/2.JPG"),
                         fixtures::jpeg_bytes(fixtures::gradient(8, 10), {.orientation = 6}));
    write_json("10");
  }
  void write_json(const std::string& second_width) {
    fixtures::write_text(
        folder_.file("annotations.json"),
        R"({"images":[{"id":1,"width":10,"height":8,"file_name":"batch_1/1.jpg"},)"
        R"({"id":2,"width":)" +
            second_width + R"(,"height":8,"file_name":"batch_2/2.JPG"}],)" +
            R"("categories":[{"id":0,"name":"can"}],"annotations":[)"
            R"({"id":1,"image_id":2,"category_id":0,"area":16,"segmentation":[[1,1,5,1,5,5,1,5]]}]})");
  }
  TempFolder folder_;
};

TEST_F(TacoTest, ImagesAreTurnedUprightBeforeTheirAnnotations) {
  const auto data = open_dataset("coco:" + folder_.path());
  ASSERT_EQ(data->size(), 2U);
  EXPECT_EQ(data->classes(), 2U);
  EXPECT_EQ(data->class_names(), (std::vector<std::string>{"background", "can"}));
  EXPECT_EQ(data->palette().size(), 2U);
  const Sample sample = data->get(1, 0);
  EXPECT_EQ(sample.name, "batch_2/2");
  EXPECT_EQ(sample.input.shape, (std::vector<std::int64_t>{3, 8, 10}));
  EXPECT_EQ(sample.target.shape, (std::vector<std::int64_t>{8, 10}));
  EXPECT_EQ(std::count(sample.target.values.begin(), sample.target.values.end(), 1), 16);
  // Turned clockwise: what was stored at the bottom left (red 0, green 1) is now at the top left.
  EXPECT_NEAR(sample.input.values[0], 0, 0.1);
  EXPECT_NEAR(sample.input.values[80], 1, 0.1);
  EXPECT_EQ(data->get(0, 0).target.values, std::vector<std::uint8_t>(80));
}

TEST_F(TacoTest, WrongSizesAndMissingFilesAreNamed) {
  write_json("11");
  const auto data = open_dataset("coco:" + folder_.path());
  EXPECT_TRUE(holds(error_of([&] { (void)data->get(1, 0); }),
                    "batch_2/2.JPG: has 10 x 8 pixels, turned upright; "));
  std::filesystem::remove(folder_.path() + "/batch_2/2.JPG");
  EXPECT_TRUE(holds(error_of([&] { (void)open_dataset("coco:" + folder_.path()); }),
                    "batch_2/2.JPG: is missing: image 2 of"));
  EXPECT_EQ(open_dataset("coco:" + folder_.path() + "?missing=skip")->size(), 1U);
}

TEST(Taco, TheRealAnnotationsAreRead) {
  const std::string shared = fixtures::shared_data();
  const std::string path = shared + "/taco/annotations.json";
  if (shared.empty() || !std::filesystem::exists(path)) {
    GTEST_SKIP() << "there is no shared/data/taco beside the checkout (LMS_SHARED_DATA)";
  }
  std::string text(std::filesystem::file_size(path), ' ');
  FILE* file = std::fopen(path.c_str(), "rb");
  ASSERT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  const CocoFile coco = parse(text);
  EXPECT_EQ(coco.images.size(), 1500U);
  EXPECT_EQ(coco.categories.size(), 60U);
  std::size_t annotations = 0;
  std::size_t most_parts = 0;
  double relative = 0;
  for (const CocoImage& image : coco.images) {
    for (const CocoAnnotation& entry : image.annotations) {
      ++annotations;
      most_parts = std::max(most_parts, entry.polygons.size());
      const Mask mask = annotation_mask(image, entry, "taco");
      relative += static_cast<double>(mask.area()) / std::max(1.0, entry.area);
    }
  }
  EXPECT_EQ(annotations, 4784U);
  EXPECT_EQ(most_parts, 19U);
  EXPECT_NEAR(relative / 4784, 1, 0.02);  // the areas as annotated are those of the outlines
}

}  // namespace
}  // namespace lms::data
