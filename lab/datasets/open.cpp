#include "lab/datasets/open.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "lab/datasets/files.h"
#include "lab/datasets/kinds.h"
#include "lab/datasets/options.h"
#include "lab/datasets/wrap.h"

namespace lms::data {
namespace {

struct Kind {
  const char* name;
  const char* what;
  std::shared_ptr<const Dataset> (*open)(const DataSpec&);
  std::vector<std::pair<const char*, const char*>> options;
};

const std::pair<const char*, const char*> kMissing = {"missing",
                                                      "error, or skip samples whose files are"};
const std::vector<std::pair<const char*, const char*>> kVolumeOptions = {
    {"foreground", "1: crop to where an image is not 0"},
    {"zscore", "1: each image to mean 0, deviation 1 where it is not 0"},
    {"affine", "match, or ignore that volumes lie elsewhere"},
    {"slab", "only a part of an axis: z,0,0.7"}};

std::vector<std::pair<const char*, const char*>> with_volume_options(
    std::vector<std::pair<const char*, const char*>> options) {
  options.insert(options.end(), kVolumeOptions.begin(), kVolumeOptions.end());
  return options;
}

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> table = {
      {"cityscapes",
       "leftImg8bit/ and gtFine/ (labelIds)",
       &open_cityscapes,
       {{"split", "train, val, test"}, kMissing}},
      {"voc",
       "VOCdevkit/VOC2012, segmentation",
       &open_voc,
       {{"split", "a list of ImageSets/Segmentation: train, val, trainval"}, kMissing}},
      {"camvid",
       "{split}/*.png and {split}annot/*.png",
       &open_camvid,
       {{"split", "train, val, test"}, kMissing}},
      {"folder",
       "images, and label PNGs of the same names",
       &open_folder,
       {{"images", "folder of the images below the path (.)"},
        {"labels", "folder of the labels; without it, all is void"},
        {"classes", "their number; ids are 0 to classes - 1"},
        {"void", "ids that are void (255)"},
        {"names", "of the classes"},
        kMissing}},
      {"coco",
       "images with a COCO JSON, such as TACO",
       &open_coco,
       {{"annotations", "the JSON file below the path (annotations.json)"},
        {"images", "folder of the images below the path (.)"},
        kMissing}},
      {"brats", "a folder a subject, a NIfTI file a modality, truth", &open_brats,
       with_volume_options({{"modalities", "files (t1,t1ce,flair,t2)"},
                            {"truth", "file of the labels (truth)"},
                            {"ids", "a binary channel each (1,2,4)"},
                            {"names", "of the channels"}})},
      {"volumes", "NIfTI images with labels or probability maps", &open_volumes,
       with_volume_options({{"images", "files, one a channel: names, or patterns with *"},
                            {"maps", "files, the probability of a label each"},
                            {"truth", "of maps: most (the most probable), or threshold (a half)"},
                            {"certain", "what certainty is in maps (255 in bytes, else 1)"},
                            {"labels", "instead of maps: a file of ids"},
                            {"ids", "of labels: a binary channel each (1)"},
                            {"names", "of the channels"}})},
      {"mni", "the MNI152 template's T1, grey and white matter", &open_mni,
       with_volume_options({})},
      {"synthetic",
       "made up; no path",
       &open_synthetic,
       {{"task", "segmentation, classes, volumes"},
        {"size", "sides: 512x1024, or 512 (256; volumes 64)"},
        {"channels", "of the input (3; volumes 4)"},
        {"classes", "their number (5; classes 10; volumes 3)"},
        {"count", "of samples (100)"},
        {"seed", "what they look like (0)"},
        {"noise", "its deviation (0.1)"},
        {"split", "train, val: different samples"}}}};
  return table;
}

const std::vector<std::pair<const char*, const char*>> kForAll = {
    {"part", "train, val: the parts of a data set that has no split of its own"},
    {"share", "of val (0.2)"},
    {"first", "only so many samples"},
    {"repeat", "each sample so many times an epoch"},
    {"cache", "memory for decoded samples, such as 4GiB (0)"}};

const Kind& find_kind(const std::string& name, const std::string& where) {
  std::string names;
  for (const Kind& kind : kinds()) {
    if (kind.name == name) return kind;
    names += std::string(names.empty() ? "" : ", ") + kind.name;
  }
  fail(where, "there is no kind of data \"" + name + "\"; there are " + names);
}

bool holds(const std::vector<std::pair<const char*, const char*>>& options,
           const std::string& name) {
  return std::any_of(options.begin(), options.end(),
                     [&](const auto& option) { return option.first == name; });
}

std::shared_ptr<const Dataset> wrap(std::shared_ptr<const Dataset> dataset, const DataSpec& spec) {
  const Options options(spec);
  const std::size_t cache = options.bytes("cache", 0);
  if (cache > 0) dataset = cached(std::move(dataset), cache);
  const double share = options.number("share", 0.2, 1e-6, 1 - 1e-6);
  if (options.has("part")) {
    const bool train = options.word("part", {"train", "val"}) == "train";
    auto [val, rest] = split(std::move(dataset), share, 0);
    dataset = train ? rest : val;
  }
  if (options.has("first")) {
    const auto size = static_cast<std::int64_t>(dataset->size());
    std::vector<std::size_t> indices(
        static_cast<std::size_t>(options.integer("first", size, 1, size)));
    std::iota(indices.begin(), indices.end(), std::size_t{0});
    dataset = subset(std::move(dataset), std::move(indices));
  }
  const std::int64_t times = options.integer("repeat", 1, 1, 1'000'000'000);
  if (times > 1) dataset = repeated(std::move(dataset), static_cast<std::size_t>(times));
  return dataset;
}

}  // namespace

DataSpec DataSpec::with(const std::string& option, const std::string& value) const {
  DataSpec changed = *this;
  changed.options[option] = value;
  return changed;
}

std::string DataSpec::text() const {
  std::string text = kind + ":" + path;
  char separator = '?';
  for (const auto& [name, value] : options) {
    text += separator + name + "=" + value;
    separator = '&';
  }
  return text;
}

DataSpec parse_spec(const std::string& text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos || colon == 0) {
    fail("\"" + text + "\"", "data are named as kind:path?option=value&option=value");
  }
  DataSpec spec;
  spec.kind = text.substr(0, colon);
  const std::size_t question = text.rfind('?');
  const std::size_t path_end = question == std::string::npos ? text.size() : question;
  spec.path = text.substr(colon + 1, path_end - colon - 1);
  while (spec.path.size() > 1 && spec.path.back() == '/') spec.path.pop_back();
  for (std::size_t begin = path_end + 1; begin < text.size();) {
    const std::size_t end = std::min(text.find('&', begin), text.size());
    const std::string option = text.substr(begin, end - begin);
    const std::size_t equals = option.find('=');
    if (equals == std::string::npos || equals == 0) {
      fail(text, "\"" + option + "\" is not option=value");
    }
    if (!spec.options.emplace(option.substr(0, equals), option.substr(equals + 1)).second) {
      fail(text, "option " + option.substr(0, equals) + " is given twice");
    }
    begin = end + 1;
  }
  return spec;
}

std::shared_ptr<const Dataset> open_dataset(const DataSpec& spec) {
  const std::string text = spec.text();
  const Kind& kind = find_kind(spec.kind, text);
  for (const auto& [name, value] : spec.options) {
    if (holds(kind.options, name) || holds(kForAll, name)) continue;
    std::string names;
    for (const auto& options : {kind.options, kForAll}) {
      for (const auto& option : options) {
        names += std::string(names.empty() ? "" : ", ") + option.first;
      }
    }
    fail(spec.text(), "there is no option \"" + name + "\"; there are " + names);
  }
  if (spec.kind != "synthetic" && !is_folder(spec.path)) {
    fail(spec.text(), "\"" + spec.path + "\" is no folder");
  }
  return wrap(kind.open(spec), spec);
}

std::shared_ptr<const Dataset> open_dataset(const std::string& text) {
  return open_dataset(parse_spec(text));
}

bool takes_option(const std::string& kind, const std::string& option) {
  return holds(find_kind(kind, kind).options, option) || holds(kForAll, option);
}

std::string describe_kinds() {
  std::string text;
  const auto add_options = [&](const std::vector<std::pair<const char*, const char*>>& options) {
    for (const auto& [name, what] : options) {
      text += "    " + std::string(name) + "=" + what + "\n";
    }
  };
  for (const Kind& kind : kinds()) {
    text += "  " + std::string(kind.name) + ": " + kind.what + "\n";
    add_options(kind.options);
  }
  text += "  all kinds:\n";
  add_options(kForAll);
  return text;
}

}  // namespace lms::data
