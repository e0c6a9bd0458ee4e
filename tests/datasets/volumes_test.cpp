// Look-alikes of BraTS, the MNI152 template, and volumes of one's own.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "lab/datasets/augment.h"
#include "lab/datasets/nifti.h"
#include "lab/datasets/open.h"
#include "tests/datasets/fixtures.h"

namespace lms::data {
namespace {

using fixtures::error_of;
using fixtures::gzip_bytes;
using fixtures::holds;
using fixtures::nifti_bytes;
using fixtures::NiftiOptions;
using fixtures::TempFolder;

// x, y, z of the files; the foreground is a box in them.
const std::vector<std::int64_t> kSides = {7, 6, 5};
const NiftiOptions kFloat{.datatype = 16, .spacing = {1, 1, 3}};

/// Calls `value(x, y, z)` for each voxel of the foreground: x 1-4, y 2-4, z 1-3. Zero elsewhere.
template <typename Value>
std::vector<double> in_foreground(const Value& value) {
  std::vector<double> voxels;
  for (int z = 0; z < 5; ++z) {
    for (int y = 0; y < 6; ++y) {
      for (int x = 0; x < 7; ++x) {
        const bool inside = x >= 1 && x <= 4 && y >= 2 && y <= 4 && z >= 1 && z <= 3;
        voxels.push_back(inside ? value(x, y, z) : 0);
      }
    }
  }
  return voxels;
}

class BratsTest : public ::testing::Test {
 protected:
  BratsTest() {
    add("patient_1", [](int x, int y, int /*z*/) {
      return y == 2 ? 0 : x == 3 ? 4 : x == 2 ? 2 : 1;
    });
    add("patient_2", [](int, int, int) { return 0; });  // all blank
  }
  template <typename Truth>
  void add(const std::string& subject, const Truth& truth) {
    double channel = 0;
    for (const char* modality : {"t1", "t1ce", "flair", "t2"}) {
      channel += 1;
      write(subject + "/" + modality + ".nii.gz",
            in_foreground([&](int x, int y, int z) { return channel * 100 + x + 10 * y + 3 * z; }));
    }
    write(subject + "/truth.nii.gz", in_foreground(truth), {.datatype = 4, .spacing = {1, 1, 3}});
  }
  void write(const std::string& name, const std::vector<double>& voxels,
             const NiftiOptions& options = kFloat,
             const std::vector<std::int64_t>& sides = kSides) {
    fixtures::write_file(folder_.file(name), gzip_bytes(nifti_bytes(sides, voxels, options)));
  }
  std::string spec(const std::string& options = "") { return "brats:" + folder_.path() + options; }

  TempFolder folder_;
};

TEST_F(BratsTest, ForegroundStandardizedAndThreeChannels) {
  const auto data = open_dataset(spec());
  ASSERT_EQ(data->size(), 2U);
  EXPECT_EQ(data->classes(), 3U);
  const Sample sample = data->get(0, 0);
  EXPECT_EQ(sample.name, "patient_1");
  EXPECT_EQ(sample.input.shape, (std::vector<std::int64_t>{4, 3, 3, 4}));  // z, y, x
  EXPECT_EQ(sample.target.shape, (std::vector<std::int64_t>{3, 3, 3, 4}));
  for (std::size_t channel = 0; channel < 4; ++channel) {
    double sum = 0;
    double squares = 0;
    for (std::size_t i = 0; i < 36; ++i) {
      const double value = sample.input.values[36 * channel + i];
      sum += value;
      squares += value * value;
    }
    EXPECT_NEAR(sum / 36, 0, 1e-5);
    EXPECT_NEAR(squares / 36, 1, 1e-4);
  }
  // By rows of x = 1 to 4, in y = 2 (nothing) and y = 3: label 1, 2, 4, 1.
  const auto row = [&](std::size_t channel, std::size_t y) {
    const auto begin =
        sample.target.values.begin() + static_cast<std::ptrdiff_t>(36 * channel + 4 * y);
    return std::vector<std::uint8_t>(begin, begin + 4);
  };
  EXPECT_EQ(row(0, 0), (std::vector<std::uint8_t>{0, 0, 0, 0}));
  EXPECT_EQ(row(0, 1), (std::vector<std::uint8_t>{1, 0, 0, 1}));
  EXPECT_EQ(row(1, 1), (std::vector<std::uint8_t>{0, 1, 0, 0}));
  EXPECT_EQ(row(2, 1), (std::vector<std::uint8_t>{0, 0, 1, 0}));
  EXPECT_EQ(data->get(1, 0).target.values, std::vector<std::uint8_t>(108));
  EXPECT_EQ(open_dataset(spec("?foreground=0"))->get(0, 0).input.shape,
            (std::vector<std::int64_t>{4, 5, 6, 7}));
  EXPECT_EQ(open_dataset(spec("?slab=z,0,0.34"))->get(0, 0).input.shape,
            (std::vector<std::int64_t>{4, 1, 3, 4}));
  EXPECT_EQ(open_dataset(spec("?slab=x,0.5,1"))->get(0, 0).input.shape,
            (std::vector<std::int64_t>{4, 3, 3, 2}));
}

TEST_F(BratsTest, BadSubjectsAreNamed) {
  const auto data = open_dataset(spec());
  const auto error = [&] { return error_of([&] { (void)data->get(1, 0); }); };
  const std::string truth = folder_.path() + "/patient_2/truth.nii.gz";
  write("patient_2/truth.nii.gz",
        in_foreground([](int x, int y, int z) { return x == 2 && y == 3 && z == 1 ? 3 : 0; }),
        kFloat);
  EXPECT_TRUE(holds(error(), truth + ": voxel (2, 3, 1): label id 3")) << error();
  write("patient_2/truth.nii.gz", in_foreground([](int, int, int) { return 1e30; }), kFloat);
  EXPECT_TRUE(holds(error(), truth + ": voxel (1, 2, 1): label id")) << error();
  write("patient_2/truth.nii.gz", std::vector<double>(210), {}, {6, 7, 5});
  EXPECT_TRUE(holds(error(), truth + ": field dim: 6 x 7 x 5 voxels, but ")) << error();
  write("patient_2/truth.nii.gz", std::vector<double>(210), {.spacing = {1, 1, 2}});
  EXPECT_TRUE(holds(error(), truth + ": field sform or qform")) << error();
  EXPECT_EQ(open_dataset(spec("?affine=ignore"))->get(1, 0).name, "patient_2");
  fixtures::write_text(truth, "\x1F\x8B oh no");
  EXPECT_TRUE(holds(error(), truth + ": ")) << error();
  std::filesystem::remove(folder_.path() + "/patient_2/flair.nii.gz");
  EXPECT_TRUE(
      holds(error_of([&] { (void)open_dataset(spec()); }), "patient_2: flair.nii.gz is missing"));
}

TEST_F(BratsTest, SidesThatDoNotDivideArePadded) {
  Sample sample = open_dataset(spec())->get(0, 0);
  Generator generator(0);
  pad_to_multiple3d(16)(sample, generator);
  EXPECT_EQ(sample.input.shape, (std::vector<std::int64_t>{4, 16, 16, 16}));
}

TEST_F(BratsTest, FilesMayBearTheSubjectsName) {
  const std::string subject = folder_.path() + "/patient_2/";
  for (const char* name : {"t1", "t1ce", "flair", "t2", "truth"}) {
    std::filesystem::rename(subject + name + ".nii.gz", subject + "patient_2_" + name + ".nii.gz");
  }
  EXPECT_EQ(open_dataset(spec())->get(1, 0).name, "patient_2");
}

TEST_F(BratsTest, VolumesOfOnesOwn) {
  const std::string base = "volumes:" + folder_.path();
  const auto ids = open_dataset(base + "?images=t*2&labels=truth&ids=2,4&names=a,b");
  EXPECT_EQ(ids->class_names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(holds(error_of([&] { (void)ids->get(0, 0); }), "out of range: 0, 2, 4"));
  const auto all = open_dataset(base + "?images=flair,t2*&labels=truth&ids=1,2,4");
  EXPECT_EQ(all->get(0, 0).input.shape[0], 2);
  const auto none = open_dataset(base + "?images=flair");
  EXPECT_EQ(none->get(0, 0).target.values, std::vector<std::uint8_t>(36));
  EXPECT_TRUE(holds(error_of([&] { (void)open_dataset(base + "?images=t1*"); }),
                    "t1.nii.gz and t1ce.nii.gz are both t1*"));
  EXPECT_TRUE(holds(error_of([&] { (void)open_dataset(base + "?images=pet*"); }),
                    "no NIfTI file's name is pet*"));
  EXPECT_TRUE(holds(error_of([&] { (void)open_dataset(base); }), "option images is missing"));
}

TEST_F(BratsTest, MapsOfProbabilities) {
  // x = 1: grey 200 of 255; x = 2: grey 100, white 120; x = 3: both 60, so neither; x = 4: white.
  const auto grey = [](int x, int, int) { return x == 1 ? 200 : x == 2 ? 100 : x == 3 ? 60 : 0; };
  const auto white = [](int x, int, int) { return x == 2 ? 120 : x == 3 ? 60 : x == 4 ? 255 : 0; };
  const NiftiOptions bytes{.datatype = 2, .spacing = {1, 1, 3}};
  for (const char* patient : {"patient_1", "patient_2"}) {
    write(std::string(patient) + "/gm.nii.gz", in_foreground(grey), bytes);
    write(std::string(patient) + "/wm.nii.gz", in_foreground(white), bytes);
  }
  const std::string base = "volumes:" + folder_.path() + "?images=t1&maps=gm,wm";
  const auto row = [](const Sample& sample, std::size_t channel) {
    const auto begin = sample.target.values.begin() + static_cast<std::ptrdiff_t>(36 * channel);
    return std::vector<std::uint8_t>(begin, begin + 4);
  };
  const Sample most = open_dataset(base)->get(0, 0);
  EXPECT_EQ(row(most, 0), (std::vector<std::uint8_t>{1, 0, 0, 0}));
  EXPECT_EQ(row(most, 1), (std::vector<std::uint8_t>{0, 1, 0, 1}));
  const Sample half = open_dataset(base + "&truth=threshold&certain=200")->get(0, 0);
  EXPECT_EQ(row(half, 0), (std::vector<std::uint8_t>{1, 1, 0, 0}));
  EXPECT_EQ(row(half, 1), (std::vector<std::uint8_t>{0, 1, 0, 1}));
  EXPECT_EQ(open_dataset(base)->class_names(), (std::vector<std::string>{"gm", "wm"}));
}

TEST(Mni, TheTemplateOfTheDemo) {
  const std::filesystem::path data =
      std::filesystem::path(__FILE__).parent_path() / "../../examples/brain/data";
  const auto brain = open_dataset("mni:" + data.lexically_normal().string());
  ASSERT_EQ(brain->size(), 1U);
  const Sample sample = brain->get(0, 0);
  const std::vector<std::int64_t>& shape = sample.input.shape;
  ASSERT_EQ(shape.size(), 4U);
  EXPECT_LE(shape[1], 189);  // z, y, x of 197 x 233 x 189, less the air
  EXPECT_LE(shape[2], 233);
  EXPECT_LE(shape[3], 197);
  const auto voxels = static_cast<double>(shape[1] * shape[2] * shape[3]);
  const auto half = static_cast<std::ptrdiff_t>(sample.target.values.size() / 2);
  const auto middle = sample.target.values.begin() + half;
  const auto grey = std::count(sample.target.values.begin(), middle, 1);
  const auto white = std::count(middle, sample.target.values.end(), 1);
  // A litre of either, about, in cubic millimetres; a human brain has more grey matter.
  EXPECT_GT(white, 300'000);
  EXPECT_GT(grey, white);
  EXPECT_LT(grey, 1'400'000);
  EXPECT_LT(static_cast<double>(grey + white), voxels);
}

}  // namespace
}  // namespace lms::data
