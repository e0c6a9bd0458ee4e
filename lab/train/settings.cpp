#include "lab/train/settings.h"

#include <lms/options.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace lms::train {
namespace {

[[noreturn]] void refuse(const std::string& value, const std::string& what) {
  throw BadSetting("'" + value + "' is not " + what);
}

template <typename Number>
std::string number_text(Number value) {
  std::array<char, 64> buffer = {};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return error == std::errc() ? std::string(buffer.data(), end) : std::string();
}

template <typename Number>
Number read_number(const std::string& text, Number least, Number most) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || !(value >= least) || !(value <= most)) {
    std::string what = std::is_integral_v<Number> ? "a whole number" : "a number";
    if (least > std::numeric_limits<Number>::lowest()) what += " from " + number_text(least);
    if (most < std::numeric_limits<Number>::max()) what += " to " + number_text(most);
    refuse(text, what);
  }
  return value;
}

bool read_flag(const std::string& text) {
  if (text == "true" || text == "1" || text == "yes" || text == "on") return true;
  if (text == "false" || text == "0" || text == "no" || text == "off") return false;
  refuse(text, "true or false");
}

/// Numbers with any of ",:xX " between them.
template <typename Number>
std::vector<Number> read_list(const std::string& text, Number least, Number most) {
  std::vector<Number> values;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find_first_of(",:xX ", begin), text.size());
    if (end > begin) values.push_back(read_number(text.substr(begin, end - begin), least, most));
    begin = end + 1;
  }
  return values;
}

template <typename Number>
std::string list_text(const std::vector<Number>& values) {
  std::string text;
  for (const Number value : values) text += (text.empty() ? "" : ",") + number_text(value);
  return text;
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

/// Builds the table.
class Table {
 public:
  std::vector<Key> keys;

  /// What the keys from here on have in common.
  void group(const std::string& name, const std::string& commands, bool fixed) {
    group_ = name;
    commands_ = commands;
    fixed_ = fixed;
  }

  void text(const char* name, std::string Settings::*field, const char* help) {
    add(
        name, help, [field](Settings& s, const std::string& v) { s.*field = v; },
        [field](const Settings& s) { return s.*field; });
  }
  void choice(const char* name, std::string Settings::*field, std::vector<std::string> words,
              const char* help) {
    const std::string all = join(words);
    add(
        name, std::string(help) + " (" + all + ")",
        [field, words = std::move(words), all](Settings& s, const std::string& v) {
          if (std::find(words.begin(), words.end(), v) == words.end()) {
            refuse(v, "one of " + all);
          }
          s.*field = v;
        },
        [field](const Settings& s) { return s.*field; });
  }
  void flag(const char* name, bool Settings::*field, const char* help) {
    add(
        name, help, [field](Settings& s, const std::string& v) { s.*field = read_flag(v); },
        [field](const Settings& s) { return std::string(s.*field ? "true" : "false"); });
  }
  /// A string that holds true or false, or a word of its own.
  void flag_or(const char* name, std::string Settings::*field, std::vector<std::string> words,
               const char* help) {
    words.insert(words.begin(), {"true", "false"});
    choice(name, field, std::move(words), help);
  }
  void count(const char* name, std::int64_t Settings::*field, std::int64_t least,
             const char* help) {
    add(
        name, help,
        [field, least](Settings& s, const std::string& v) {
          s.*field = read_number<std::int64_t>(v, least, std::numeric_limits<std::int64_t>::max());
        },
        [field](const Settings& s) { return number_text(s.*field); });
  }
  void real(const char* name, double Settings::*field, double least, double most,
            const char* help) {
    add(
        name, help,
        [field, least, most](Settings& s, const std::string& v) {
          s.*field = read_number<double>(v, least, most);
        },
        [field](const Settings& s) { return number_text(s.*field); });
  }
  void sides(const char* name, std::vector<std::int64_t> Settings::*field, const char* help) {
    add(
        name, help,
        [field](Settings& s, const std::string& v) {
          auto sides = v == "0" ? std::vector<std::int64_t>()
                                : read_list<std::int64_t>(v, 1, std::int64_t{1} << 20);
          if (sides.size() > 3) refuse(v, "one to three sides, such as 513 or 384x512");
          s.*field = std::move(sides);
        },
        [field](const Settings& s) {
          return (s.*field).empty() ? std::string("0") : list_text(s.*field);
        });
  }
  void reals(const char* name, std::vector<double> Settings::*field, double least,
             const char* help) {
    add(
        name, help,
        [field, least](Settings& s, const std::string& v) {
          s.*field = read_list<double>(v, least, std::numeric_limits<double>::max());
        },
        [field](const Settings& s) { return list_text(s.*field); });
  }
  void custom(const char* name, std::string Settings::*field, const char* help,
              void (*check)(const std::string&)) {
    add(
        name, help,
        [field, check](Settings& s, const std::string& v) {
          check(v);
          s.*field = v;
        },
        [field](const Settings& s) { return s.*field; });
  }
  /// One of LMS's own. Amounts may be shares of a memory that is not known yet.
  void managed(const lms::torch::OptionKey& option) {
    const bool amount = option.kind == lms::torch::OptionKey::Kind::kAmount;
    const std::string unset = amount ? "" : option.get({});
    add(
        option.name, option.help,
        [option, amount, unset](Settings& s, const std::string& v) {
          lms::torch::Options options;
          if (!amount) option.set(options, v);
          const std::string text = amount ? v : option.get(options);
          if (text == unset) {
            s.managed.erase(option.name);
          } else {
            s.managed[option.name] = text;
          }
        },
        [name = option.name, unset](const Settings& s) {
          const auto found = s.managed.find(name);
          return found == s.managed.end() ? unset : found->second;
        });
  }

 private:
  void add(std::string name, std::string help,
           std::function<void(Settings&, const std::string&)> set,
           std::function<std::string(const Settings&)> get) {
    keys.push_back({std::move(name), group_, std::move(help), commands_, fixed_, std::move(set),
                    std::move(get)});
  }

  std::string group_;
  std::string commands_;
  bool fixed_ = false;
};

void check_loss_scale(const std::string& text) {
  if (text == "dynamic") return;
  read_number<double>(text, std::numeric_limits<double>::min(), 16777216);
}

constexpr double kMost = std::numeric_limits<double>::max();

void add_what(Table& t) {
  t.group("What", "tpe", true);
  t.text("model", &Settings::model, "the model: resnet50, googlenet, deeplabv3plus, unet3d, gscnn");
  t.text("data", &Settings::data, "the data set, kind:path, such as voc:/data/VOCdevkit/VOC2012");
  t.text("val_data", &Settings::val_data, "the data set to validate on, if another");
  t.text("split", &Settings::split, "the part of the data set to train on");
  t.text("val_split", &Settings::val_split, "the part to validate on, or to predict");
  t.count("classes", &Settings::classes, 0, "classes or labels; 0: those of the data set");
  t.count("channels", &Settings::channels, 0, "channels of the input; 0: those of the data set");
  t.group("What", "t", true);
  t.text("init", &Settings::init, "start from the weights of this checkpoint");
}

void add_sizes(Table& t) {
  t.group("Sizes", "t", true);
  t.sides("crop", &Settings::crop, "sides of the random crops: 513, 360x480 or 128x128x96");
  t.group("Sizes", "tpe", false);
  t.sides("val_crop", &Settings::val_crop, "sides of the central crops to validate on; 0: whole");
  t.count("val_batch", &Settings::val_batch, 1, "samples a batch in validation");
  t.count("val_limit", &Settings::val_limit, 0, "most samples to validate on; 0: all");
  t.group("Sizes", "t", true);
  t.count("batch", &Settings::batch, 1, "samples a batch");
  t.count("accumulate", &Settings::accumulate, 1, "batches whose gradients make one step");
  t.count("steps", &Settings::steps, 0, "steps of the optimizer to train; 0: as epochs says");
  t.count("epochs", &Settings::epochs, 0, "times through the data; 0: as steps says");
  t.count("seed", &Settings::seed, 0, "of everything that is random");
  t.flag("drop_last", &Settings::drop_last, "leave out the last batch of an epoch if not full");
  t.group("Sizes", "tpe", false);
  t.count("workers", &Settings::workers, 1, "threads that load samples");
  t.count("prefetch", &Settings::prefetch, 1, "batches loaded ahead");
  t.text("cache", &Settings::cache, "memory for decoded samples: 4GiB");
}

void add_augmentation(Table& t) {
  t.group("Augmentation", "t", true);
  t.reals("scale", &Settings::scale, 0, "random factor on the size: smallest,largest");
  t.flag("flip", &Settings::flip, "random flips");
  t.real("colour", &Settings::colour, 0, 1, "random brightness, contrast, saturation, hue");
  t.flag("blur", &Settings::blur, "random Gaussian blur");
  t.flag("axes", &Settings::axes, "random order of a volume's axes");
  t.real("rotate", &Settings::rotate, 0, 180, "volumes: random rotation, degrees about each axis");
  t.real("warp", &Settings::warp, 0, 1e3, "volumes: random elastic deformation, voxels");
  t.count("repeat", &Settings::repeat, 1, "times that each sample appears in an epoch");
  t.group("Augmentation", "tpe", true);
  t.reals("mean", &Settings::mean, -kMost, "taken from the input, by channel");
  t.reals("std", &Settings::std, 0, "the input is divided by this, by channel");
}

void add_optimizer(Table& t) {
  t.group("Optimizer", "t", true);
  t.choice("optimizer", &Settings::optimizer, {"sgd", "adam", "adamw"}, "the optimizer");
  t.real("lr", &Settings::lr, 0, kMost, "the learning rate");
  t.real("lr_batch", &Settings::lr_batch, 0, kMost,
         "if not 0: the rate is lr x batch x accumulate / lr_batch");
  t.real("momentum", &Settings::momentum, 0, 1, "of SGD");
  t.flag("nesterov", &Settings::nesterov, "Nesterov's momentum");
  t.real("weight_decay", &Settings::weight_decay, 0, kMost,
         "into the gradient; with adamw, off the weights");
  t.real("beta1", &Settings::beta1, 0, 1, "of Adam");
  t.real("beta2", &Settings::beta2, 0, 1, "of Adam");
  t.real("eps", &Settings::eps, 0, 1, "of Adam");
  t.real("clip", &Settings::clip, 0, kMost, "most the norm of the gradients may be; 0: any");
  t.choice("schedule", &Settings::schedule, {"constant", "poly", "cosine", "plateau"},
           "of the learning rate");
  t.choice("schedule_per", &Settings::schedule_per, {"step", "epoch"}, "poly and cosine move per");
  t.real("exponent", &Settings::exponent, 0, 100, "of poly");
  t.real("min_lr", &Settings::min_lr, 0, 1, "poly and cosine end here, plateau stops: part of lr");
  t.count("warmup", &Settings::warmup, 0, "steps in which the rate rises");
  t.real("warmup_from", &Settings::warmup_from, 0, 1, "where it rises from: part of lr");
  t.count("patience", &Settings::patience, 0,
          "validations without a better loss before plateau acts");
  t.real("plateau_factor", &Settings::plateau_factor, 0, 1, "what plateau multiplies the rate by");
}

void add_arithmetic(Table& t) {
  t.group("Arithmetic", "tpe", true);
  t.choice("precision", &Settings::precision, {"fp32", "tf32", "bf16", "fp16"},
           "bf16 and fp16: autocast");
  t.flag_or("deterministic", &Settings::deterministic, {"warn"},
            "the same bits in every run; warn: where there is no such kernel, go on");
  t.group("Arithmetic", "t", true);
  t.custom("loss_scale", &Settings::loss_scale, "of fp16: dynamic, or a number", check_loss_scale);
  t.group("Arithmetic", "tpe", false);
  t.text("device", &Settings::device, "cuda, cuda:1 or cpu");
  t.count("threads", &Settings::threads, 0, "of PyTorch on the CPU; 0: its own choice");
}

void add_lms(Table& t) {
  t.group("LMS", "tpe", false);
  t.flag_or("lms", &Settings::lms, {"auto"}, "manage memory; auto: where a limit is given");
  for (const lms::torch::OptionKey& option : lms::torch::option_keys()) {
    if (option.name != "device") t.managed(option);
  }
  t.group("LMS", "t", false);
  t.text("save_trace", &Settings::save_trace, "write the learnt step here, for lms plan");
}

void add_output(Table& t) {
  t.group("Output", "tpe", false);
  t.text("out", &Settings::out, "folder of the run, or of the predictions");
  t.choice("progress", &Settings::progress, {"auto", "bar", "lines", "quiet"}, "on stderr");
  t.group("Output", "t", false);
  t.flag_or("resume", &Settings::resume, {"auto"},
            "go on with the run in out; auto: if there is one");
  t.flag("overwrite", &Settings::overwrite, "start anew in a folder that has a run");
  t.count("journal", &Settings::journal, 0, "steps between entries of the journal; 0: none");
  t.count("checkpoint_every", &Settings::checkpoint_every, 0, "steps between checkpoints");
  t.real("checkpoint_minutes", &Settings::checkpoint_minutes, 0, 1e6, "the same by the clock");
  t.count("keep", &Settings::keep, 1, "checkpoints to keep, beside the best");
  t.count("log_every", &Settings::log_every, 1, "steps between looks at the loss");
  t.real("val_every", &Settings::val_every, -1, 1e9,
         "epochs between validations; 0: at the end; -1: never");
  t.flag("tensorboard", &Settings::tensorboard, "write events for TensorBoard");
  t.text("report", &Settings::report, "json: to stdout at the end; else a file");
  t.count("measure_data", &Settings::measure_data, 0,
          "batches to load alone, before training, for the report");
}

void add_prediction(Table& t) {
  t.group("Prediction", "pe", false);
  t.text("checkpoint", &Settings::checkpoint,
         "the weights, and the settings they were trained with");
  t.group("Prediction", "p", false);
  t.flag_or("labels", &Settings::labels, {"rgb"}, "write label PNGs; rgb: for looking at only");
  t.flag("overlay", &Settings::overlay, "write the labels over the picture");
  t.group("Prediction", "e", false);
  t.text("json", &Settings::json, "also write the table as JSON: a file, or - for stdout");
}

std::vector<Key> make_keys() {
  Table t;
  add_what(t);
  add_sizes(t);
  add_augmentation(t);
  add_optimizer(t);
  add_arithmetic(t);
  add_lms(t);
  add_output(t);
  add_prediction(t);
  return std::move(t.keys);
}

const Key* find_key(const std::string& name) {
  for (const Key& key : keys()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t corner = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = corner + (a[i - 1] == b[j - 1] ? 0 : 1);
      corner = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

/// The map that "variants.x" and "options.x" go to, or null.
std::map<std::string, std::string>* open_map(Settings& settings, const std::string& name,
                                             std::string* rest) {
  for (const auto& [prefix, map] : {std::pair(std::string("variants."), &settings.variants),
                                    std::pair(std::string("options."), &settings.options)}) {
    if (name.starts_with(prefix) && name.size() > prefix.size()) {
      *rest = name.substr(prefix.size());
      return map;
    }
  }
  return nullptr;
}

}  // namespace

const std::vector<Key>& keys() {
  static const std::vector<Key> all = make_keys();
  return all;
}

std::string nearest(std::string_view name, const std::vector<std::string>& names) {
  std::string best;
  std::size_t fewest = std::max<std::size_t>(2, name.size() / 2) + 1;
  for (const std::string& candidate : names) {
    const std::size_t distance = edits(name, candidate);
    if (distance < fewest) {
      fewest = distance;
      best = candidate;
    }
  }
  return best;
}

void set_key(Settings& settings, const std::string& given, const std::string& value,
             const std::string& where) {
  const std::string start = where.empty() ? "" : where + ": ";
  std::string name = given;
  std::string rest;
  if (auto* map = open_map(settings, name, &rest)) {
    (*map)[rest] = value;
    return;
  }
  std::replace(name.begin(), name.end(), '-', '_');
  const Key* key = find_key(name);
  if (key == nullptr) {
    std::vector<std::string> names;
    for (const Key& each : keys()) names.push_back(each.name);
    const std::string near = nearest(name, names);
    throw BadSetting(
        start + "unknown setting '" + given + "'" +
        (near.empty() ? "; lms train --help lists them" : "; the nearest is '" + near + "'"));
  }
  try {
    key->set(settings, value);
  } catch (const BadSetting& error) {
    throw BadSetting(start + key->name + ": " + error.what());
  }
}

void apply_override(Settings& settings, const std::string& text) {
  const std::size_t at = text.find('=');
  if (at == std::string::npos || at == 0) {
    throw BadSetting("'" + text + "' is neither a recipe (*.toml) nor key=value");
  }
  set_key(settings, text.substr(0, at), text.substr(at + 1));
}

std::vector<std::string> study_settings(const std::string& model) {
  if (model == "deeplabv3plus") {
    return {"optimizer=sgd",     "lr=0.007",      "lr_batch=4",  "momentum=0.9",
            "weight_decay=5e-4", "schedule=poly", "exponent=0.9"};
  }
  if (model == "unet3d") {
    return {"optimizer=adam", "lr=5e-4", "schedule=plateau", "patience=10", "plateau_factor=0.5"};
  }
  if (model == "gscnn") {
    return {"optimizer=sgd", "lr=0.01",    "momentum=0.9",      "weight_decay=1e-4",
            "schedule=poly", "exponent=1", "schedule_per=epoch"};
  }
  if (model == "googlenet") {
    return {"optimizer=sgd", "lr=0.005", "momentum=0", "weight_decay=4e-5", "loss_scale=128"};
  }
  if (model == "resnet50") return {"optimizer=sgd", "lr=0.1", "lr_batch=256", "weight_decay=1e-4"};
  return {};
}

std::map<std::string, std::string> changed_keys(const Settings& settings) {
  static const Settings defaults;
  std::map<std::string, std::string> changed;
  for (const Key& key : keys()) {
    const std::string value = key.get(settings);
    if (value != key.get(defaults)) changed[key.name] = value;
  }
  for (const auto& [name, value] : settings.variants) changed["variants." + name] = value;
  for (const auto& [name, value] : settings.options) changed["options." + name] = value;
  return changed;
}

}  // namespace lms::train
