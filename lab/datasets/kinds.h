#pragma once

// The kinds of data sets: for open.cpp, which has the table of them.

#include <memory>

#include "lab/datasets/dataset.h"
#include "lab/datasets/open.h"

namespace lms::data {

std::shared_ptr<const Dataset> open_cityscapes(const DataSpec& spec);
std::shared_ptr<const Dataset> open_voc(const DataSpec& spec);
std::shared_ptr<const Dataset> open_camvid(const DataSpec& spec);
std::shared_ptr<const Dataset> open_folder(const DataSpec& spec);
std::shared_ptr<const Dataset> open_coco(const DataSpec& spec);
std::shared_ptr<const Dataset> open_brats(const DataSpec& spec);
std::shared_ptr<const Dataset> open_volumes(const DataSpec& spec);
std::shared_ptr<const Dataset> open_mni(const DataSpec& spec);
std::shared_ptr<const Dataset> open_synthetic(const DataSpec& spec);

}  // namespace lms::data
