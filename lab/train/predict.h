#pragma once

#include <cstdint>
#include <cstdio>

#include "lab/train/machine.h"
#include "lab/train/settings.h"
#include "lab/zoo/model.h"

namespace lms::train {

/// Writes what the model says of every sample of the validation split, or of the images of a folder
/// (data=images:PATH), into `settings.out`. Images: NAME.png, class ids with a palette (labels=rgb:
/// colours), and NAME.overlay.png, the colours over the picture. Volumes: NAME.png and
/// NAME.overlay.png show the three middle planes side by side. Classification: one line a sample,
/// in classes.csv. Returns the number of samples. Throws BadSetting for an `out` among the data.
std::int64_t predict(const Settings& settings, const Machine& machine, zoo::Model& model,
                     std::FILE* err);

}  // namespace lms::train
