#pragma once

// Data sets of NIfTI volumes: several images and a truth for each subject.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lab/datasets/dataset.h"

namespace lms::data {

struct Subject {
  std::string name;
  std::vector<std::string> images;  ///< paths, one a channel
  std::vector<std::string> truth;   ///< one volume of ids, or one of each label's probability
};

struct VolumeRules {
  enum class Truth {
    kNone,       ///< one label, 0 everywhere
    kIds,        ///< channel i is 1 where the truth is ids[i]; other values than these and 0: error
    kMost,       ///< 1 where the label's map is the highest, and above what the maps leave to 1
    kThreshold,  ///< 1 where the label's map is at least a half
  };
  Truth truth = Truth::kIds;
  std::vector<int> ids;
  std::vector<std::string> labels;  ///< a name a channel
  double certain = 0;        ///< the maps' value of certainty; 0: 255 for maps of bytes, else 1
  bool crop = true;          ///< to the box of all voxels where some image is not 0
  bool standardize = true;   ///< each image to mean 0, deviation 1 where it is not 0; 0 stays 0
  bool match_affine = true;  ///< volumes whose voxels lie elsewhere are an error
  int slab_axis = 0;         ///< of D, H, W: of that box only the part between these
  double slab_from = 0;
  double slab_to = 1;
};

/// Throws DataError if a file is missing.
std::shared_ptr<const Dataset> subject_volumes(std::vector<Subject> subjects, VolumeRules rules);

/// The file of a subject's folder that `pattern` means: with a *, the only one that matches
/// (with or without its extension);
/// without, the first there is of P.nii.gz, P.nii, {subject}_P.nii.gz, {subject}_P.nii. Throws
/// DataError if there is none, or are several.
std::string find_volume(const std::string& folder, const std::string& pattern);

}  // namespace lms::data
