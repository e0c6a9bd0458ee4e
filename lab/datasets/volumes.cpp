// Volumes: BraTS (Menze et al. 2015) as one folder a subject, the MNI152 template, and folders of
// one's own.

#include "lab/datasets/files.h"
#include "lab/datasets/kinds.h"
#include "lab/datasets/options.h"
#include "lab/datasets/subjects.h"

namespace lms::data {
namespace {

/// The subjects of a path: its folders, or the path itself where it has none.
std::vector<Subject> list_subjects(const std::string& path, const std::vector<std::string>& images,
                                   const std::vector<std::string>& truth) {
  std::vector<std::string> names = folders_in(path);
  if (names.empty()) names = {"."};
  std::vector<Subject> subjects;
  for (const std::string& name : names) {
    const std::string folder = name == "." ? path : path + "/" + name;
    Subject subject;
    subject.name = name == "." ? "subject" : name;
    for (const std::string& image : images) subject.images.push_back(find_volume(folder, image));
    for (const std::string& map : truth) subject.truth.push_back(find_volume(folder, map));
    subjects.push_back(std::move(subject));
  }
  return subjects;
}

/// What all kinds of volumes take.
void read_common(const Options& options, VolumeRules& rules) {
  rules.crop = options.flag("foreground", true);
  rules.standardize = options.flag("zscore", true);
  rules.match_affine = options.word("affine", {"match", "ignore"}) == "match";
  const std::vector<std::string> slab = options.list("slab", "z,0,1");
  const std::string axes = "zyx";
  const auto part = [&](std::size_t i) {
    const DataSpec one{"", "", {{"slab", slab[i]}}};
    return Options(one).number("slab", 0, 0, 1);
  };
  if (slab.size() != 3 || slab[0].size() != 1 || axes.find(slab[0]) == std::string::npos) {
    options.refuse("slab", "an axis (x, y, z) and two shares of its length, such as z,0,0.7");
  }
  rules.slab_axis = static_cast<int>(axes.find(slab[0]));
  rules.slab_from = part(1);
  rules.slab_to = part(2);
  if (rules.slab_from >= rules.slab_to) options.refuse("slab", "a part, from less to more");
}

std::vector<int> read_ids(const Options& options, const std::string& otherwise) {
  std::vector<int> ids;
  for (const std::string& text : options.list("ids", otherwise)) {
    const DataSpec one{"", "", {{"ids", text}}};
    ids.push_back(static_cast<int>(Options(one).integer("ids", 0, 1, 65535)));
  }
  return ids;
}

std::vector<std::string> read_names(const Options& options, std::size_t count,
                                    const std::string& otherwise) {
  std::vector<std::string> names = options.list("names", otherwise);
  if (names.size() != count) {
    options.refuse("names", "a list of " + std::to_string(count) + " names");
  }
  return names;
}

std::string joined(const std::vector<int>& ids) {
  std::string text;
  for (const int id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

}  // namespace

std::shared_ptr<const Dataset> open_brats(const DataSpec& spec) {
  const Options options(spec);
  VolumeRules rules;
  read_common(options, rules);
  rules.ids = read_ids(options, "1,2,4");
  const bool usual = rules.ids == std::vector<int>{1, 2, 4};
  rules.labels = read_names(options, rules.ids.size(),
                            usual ? "necrosis,oedema,enhancing" : joined(rules.ids));
  return subject_volumes(list_subjects(spec.path, options.list("modalities", "t1,t1ce,flair,t2"),
                                       {options.text("truth", "truth")}),
                         std::move(rules));
}

std::shared_ptr<const Dataset> open_volumes(const DataSpec& spec) {
  const Options options(spec);
  VolumeRules rules;
  read_common(options, rules);
  const std::vector<std::string> images = options.list("images", "");
  std::vector<std::string> truth = options.list("maps", "");
  const std::string labels = options.text("labels", "");
  if (images.empty()) fail(spec.text(), "option images is missing, such as images=t1,t2");
  if (!truth.empty() && !labels.empty()) options.refuse("labels", "to be given beside maps");
  if (!truth.empty()) {
    rules.truth = options.word("truth", {"most", "threshold"}) == "most"
                      ? VolumeRules::Truth::kMost
                      : VolumeRules::Truth::kThreshold;
    rules.certain = options.number("certain", 0, 0, 1e9);
    rules.labels = read_names(options, truth.size(), options.text("maps", ""));
  } else if (!labels.empty()) {
    truth = {labels};
    rules.ids = read_ids(options, "1");
    rules.labels = read_names(options, rules.ids.size(), joined(rules.ids));
  } else {
    rules.truth = VolumeRules::Truth::kNone;
  }
  return subject_volumes(list_subjects(spec.path, images, truth), std::move(rules));
}

std::shared_ptr<const Dataset> open_mni(const DataSpec& spec) {
  const Options options(spec);
  VolumeRules rules;
  read_common(options, rules);
  rules.truth = VolumeRules::Truth::kMost;
  rules.labels = {"grey matter", "white matter"};
  Subject subject;
  subject.name = "mni152";
  subject.images = {find_volume(spec.path, "mni_icbm152_t1_*")};
  subject.truth = {find_volume(spec.path, "mni_icbm152_gm_*"),
                   find_volume(spec.path, "mni_icbm152_wm_*")};
  return subject_volumes({std::move(subject)}, std::move(rules));
}

}  // namespace lms::data
