#include "lab/datasets/nifti.h"

#include <gtest/gtest.h>

#include "tests/datasets/fixtures.h"

namespace lms::data {
namespace {

using fixtures::ByteVector;
using fixtures::error_of;
using fixtures::holds;
using fixtures::nifti_bytes;
using fixtures::NiftiOptions;

const std::vector<double> kValues = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
const std::vector<float> kFloats = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

TEST(Nifti, EveryRealTypeOrderAndVersionIsRead) {
  for (const int datatype : {2, 4, 8, 16, 64, 256, 512, 768, 1024, 1280}) {
    for (const bool big_endian : {false, true}) {
      for (const int version : {1, 2}) {
        const ByteVector file =
            nifti_bytes({3, 2, 2}, kValues,
                        {.datatype = datatype, .big_endian = big_endian, .version = version});
        for (const ByteVector& bytes : {file, fixtures::gzip_bytes(file)}) {
          const Volume volume = decode_nifti(bytes, "x.nii");
          EXPECT_EQ(volume.shape, (std::array<std::int64_t, 3>{2, 2, 3}));
          EXPECT_EQ(volume.voxels, kFloats) << datatype << ' ' << big_endian << ' ' << version;
          EXPECT_EQ(volume.bytes, datatype == 2);
        }
      }
    }
  }
}

TEST(Nifti, NegativeValuesAndScaling) {
  const Volume volume = decode_nifti(
      nifti_bytes({2, 1, 1}, {-3, 5}, {.datatype = 4, .slope = 0.5, .inter = 10}), "x");
  EXPECT_EQ(volume.voxels, (std::vector<float>{8.5, 12.5}));
  const Volume plain =
      decode_nifti(nifti_bytes({2, 1, 1}, {-3, 5}, {.datatype = 4, .slope = 0, .inter = 9}), "x");
  EXPECT_EQ(plain.voxels, (std::vector<float>{-3, 5}));  // no slope: no scaling at all
  const Volume odd =
      decode_nifti(nifti_bytes({3, 1, 1}, {NAN, INFINITY, 1}, {.datatype = 16}), "x");
  EXPECT_EQ(odd.voxels, (std::vector<float>{0, 0, 1}));
}

TEST(Nifti, SpacingIsInTheOrderOfTheAxes) {
  const Volume volume =
      decode_nifti(nifti_bytes({3, 2, 2}, kValues, {.spacing = {0.5, 1.5, 4}}), "x");
  EXPECT_EQ(volume.spacing, (std::array<double, 3>{4, 1.5, 0.5}));
  EXPECT_EQ(volume.affine[0][0], 0.5);
  EXPECT_EQ(volume.affine[2][2], 4);
  EXPECT_EQ(volume.affine[0][1], 0);
}

TEST(Nifti, ManyGzipMembersAreOneFile) {
  const ByteVector file = nifti_bytes({3, 2, 2}, kValues, {});
  ByteVector joined = fixtures::gzip_bytes({file.begin(), file.begin() + 200});
  const ByteVector rest = fixtures::gzip_bytes({file.begin() + 200, file.end()});
  joined.insert(joined.end(), rest.begin(), rest.end());
  EXPECT_EQ(decode_nifti(joined, "x").voxels, kFloats);
}

TEST(Nifti, EveryTruncationIsAnError) {
  for (const bool compressed : {false, true}) {
    ByteVector whole = nifti_bytes({3, 2, 2}, kValues, {.datatype = 64});
    if (compressed) whole = fixtures::gzip_bytes(whole);
    // gzip's own checksum at the end is not looked for once all voxels are there.
    const std::size_t end = whole.size() - (compressed ? 12 : 0);
    for (std::size_t size = 0; size < end; ++size) {
      const ByteVector part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
      EXPECT_TRUE(holds(error_of([&] { (void)decode_nifti(part, "t.nii"); }), "t.nii: truncated"))
          << size;
    }
  }
}

TEST(Nifti, ErrorsNameTheField) {
  const auto error = [](const ByteVector& file) {
    return error_of([&] { (void)decode_nifti(file, "b.nii"); });
  };
  EXPECT_TRUE(
      holds(error(nifti_bytes({1, 1, 1}, {1}, {.datatype = 32})), "b.nii: field datatype: 32"));
  EXPECT_TRUE(holds(error(nifti_bytes({2, 1, 1}, {1, 2, 3, 4}, {.extra_dims = {2}})),
                    "field dim[4]: 2 volumes"));
  EXPECT_EQ(error(nifti_bytes({2, 1, 1}, {1, 2}, {.extra_dims = {1, 1}})), "");
  EXPECT_TRUE(holds(error(nifti_bytes({2, 1}, {1, 2}, {})), "field dim[0]: 2 axes"));
  EXPECT_TRUE(holds(error(nifti_bytes({2, 0, 1}, {}, {})), "field dim[2]: a side of 0"));
  EXPECT_TRUE(holds(error(nifti_bytes({2, -4, 1}, {}, {})), "field dim[2]: a side of -4"));
  EXPECT_TRUE(holds(error(nifti_bytes({32000, 32000, 32000}, {}, {})), "voxels are claimed"));
  EXPECT_TRUE(holds(error(nifti_bytes({INT64_MAX, INT64_MAX, 3}, {}, {.version = 2})),
                    "voxels are claimed"));
  EXPECT_TRUE(holds(error(ByteVector(400, 'x')), "is no NIfTI file"));
  ByteVector pair = nifti_bytes({1, 1, 1}, {1}, {});
  pair[345] = 'i';
  EXPECT_TRUE(holds(error(pair), "is the header of a NIfTI pair"));
  pair[344] = 'q';
  EXPECT_TRUE(holds(error(pair), "field magic"));
}

TEST(Nifti, WhatBombsClaimIsNeverHeld) {
  // 200 million voxels are claimed, within the limit; there is one.
  EXPECT_TRUE(holds(error_of([&] {
                      (void)decode_nifti(nifti_bytes({1000, 1000, 200}, {1}, {}), "b.nii");
                    }),
                    "b.nii: truncated"));
  // A gzip file of zeros far longer than what its header needs is read no further than that.
  ByteVector zeros = nifti_bytes({1, 1, 1}, {1}, {});
  zeros.resize(std::size_t{64} << 20);
  const ByteVector bomb = fixtures::gzip_bytes(zeros);
  EXPECT_LT(bomb.size(), 100'000U);
  EXPECT_EQ(decode_nifti(bomb, "b").voxels, std::vector<float>{1});
}

TEST(Nifti, DimensionsThatCrashedTheLibraryAreErrors) {
  // Found by fuzzing: nifti_clib writes past its memory for such a dim[0] of NIfTI-2.
  ByteVector file = nifti_bytes({1, 1, 1}, {1}, {.version = 2});
  for (std::size_t i = 16; i < 24; ++i) file[i] = 0x55;
  EXPECT_TRUE(holds(error_of([&] { (void)decode_nifti(file, "f.nii"); }), "f.nii: field dim[0]"));
}

TEST(Nifti, WhatIsWrittenIsReadAgain) {
  const fixtures::TempFolder folder;
  Array<std::uint8_t> labels{{2, 3, 4}, {}};
  for (int i = 0; i < 24; ++i) labels.values.push_back(static_cast<std::uint8_t>(i));
  for (const char* name : {"v.nii", "v.nii.gz"}) {
    write_nifti(folder.file(name), labels, {3, 2, 1});
    const Volume volume = read_nifti(folder.file(name));
    EXPECT_EQ(volume.shape, (std::array<std::int64_t, 3>{2, 3, 4}));
    EXPECT_EQ(volume.spacing, (std::array<double, 3>{3, 2, 1}));
    EXPECT_TRUE(std::equal(labels.values.begin(), labels.values.end(), volume.voxels.begin()));
  }
}

}  // namespace
}  // namespace lms::data
