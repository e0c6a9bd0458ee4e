// Settings that go together, or do not.

#include "base/error.h"
#include "lab/train/settings.h"

namespace lms::train {

void check_training(const Settings& settings) {
  if (settings.model.empty()) {
    throw BadSetting("no model was named: --model deeplabv3plus, or a recipe");
  }
  if (settings.data.empty()) {
    throw BadSetting("no data set was named: --data voc:/data/VOCdevkit/VOC2012, or a recipe");
  }
  if (settings.steps == 0 && settings.epochs == 0) {
    throw BadSetting("neither steps nor epochs was given: --epochs 50");
  }
  if (settings.steps != 0 && settings.epochs != 0) {
    throw BadSetting("both steps and epochs were given; one of them decides: leave the other at 0");
  }
  if (settings.lms == "false" && settings.managed.contains("limit")) {
    throw BadSetting("a limit was given, and lms=false: the limit is LMS's");
  }
  if (settings.scale.size() != 0 && (settings.scale.size() != 2 || settings.scale[0] <= 0 ||
                                     settings.scale[0] > settings.scale[1])) {
    throw BadSetting("scale: wants the smallest and the largest factor, such as 0.5,2");
  }
  if (settings.mean.size() != settings.std.size()) {
    throw BadSetting("mean and std: one number a channel each");
  }
  for (const double value : settings.std) {
    if (value <= 0) throw BadSetting("std: has to be above 0");
  }
  if (settings.resume != "false" && settings.out.empty()) {
    throw BadSetting("resume: which run? --out names its folder");
  }
  if (settings.nesterov && settings.momentum == 0) {
    throw BadSetting("nesterov wants a momentum");
  }
}

}  // namespace lms::train
