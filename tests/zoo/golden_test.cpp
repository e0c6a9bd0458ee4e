// Every model against numbers of its public reference: see goldens/README.md. Gradients are
// compared in float64, where nothing but a difference in what is computed remains: in float32 a
// ReLU may open on one machine and stay shut on another. Some run in the deterministic formulation.

#include <gtest/gtest.h>

#include "zoo/procedural.h"

namespace lms::zoo::test {
namespace {

constexpr bool kDeterministic = true;

TEST(ZooGolden, ResNet50) { expect_golden("resnet50", kDeterministic); }
TEST(ZooGolden, GoogLeNet) { expect_golden("googlenet", kDeterministic); }
TEST(ZooGolden, DeepLabV3PlusStride16) { expect_golden("deeplabv3plus_os16"); }
TEST(ZooGolden, DeepLabV3PlusStride8Paper) {
  expect_golden("deeplabv3plus_os8_paper", kDeterministic);
}
TEST(ZooGolden, UNet3d) { expect_golden("unet3d"); }
TEST(ZooGolden, UNet3dReleased) { expect_golden("unet3d_released"); }
TEST(ZooGolden, GatedScnn) { expect_golden("gscnn", kDeterministic); }

}  // namespace
}  // namespace lms::zoo::test
