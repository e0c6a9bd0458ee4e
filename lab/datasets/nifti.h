#pragma once

// Volumes in NIfTI-1 and NIfTI-2 files (.nii, .nii.gz), by nifti_clib.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lab/datasets/image.h"

namespace lms::data {

struct Volume {
  std::array<std::int64_t, 3> shape{};  ///< D×H×W: the file's z, y, x
  std::array<double, 3> spacing{};      ///< of the same axes, in millimetres
  /// Voxel to world, the file's x, y, z order: its sform, else its qform, else the spacing.
  std::array<std::array<double, 4>, 3> affine{};
  std::vector<float> voxels;  ///< scaled by the file's slope and intercept
  bool bytes = false;         ///< stored as unscaled unsigned bytes
};

struct VolumeLimits {
  std::int64_t voxels = std::int64_t{1} << 28;
  std::int64_t extensions = std::int64_t{64} << 20;  ///< bytes before the voxels
};

/// Any real data type, in either byte order. Values that are not finite become 0. Throws DataError,
/// with `name` in front.
Volume decode_nifti(ByteView file, const std::string& name, const VolumeLimits& limits = {});
Volume read_nifti(const std::string& path, const VolumeLimits& limits = {});

/// Unsigned bytes of D×H×W as NIfTI-1, compressed if the path ends in ".gz": label maps.
void write_nifti(const std::string& path, const Array<std::uint8_t>& voxels,
                 const std::array<double, 3>& spacing);

}  // namespace lms::data
