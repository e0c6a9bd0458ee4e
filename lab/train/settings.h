#pragma once

// What a run is told: one table of keys, which are the flags of the program, the keys of a recipe,
// and the key=value overrides alike. No PyTorch.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lms::train {

struct Settings {
  // What is trained, on what.
  std::string model;
  std::string data;      ///< kind:path, as the data sets' factory has it
  std::string val_data;  ///< "": the same as data
  std::string split = "train";
  std::string val_split = "val";
  std::int64_t classes = 0;                     ///< 0: as many as the data set has
  std::int64_t channels = 0;                    ///< 0: those of the data set
  std::map<std::string, std::string> variants;  ///< zoo::ModelOptions::variants
  std::map<std::string, std::string> options;   ///< the data set's own
  std::string init;                             ///< a checkpoint to take the weights from

  // How much of it.
  std::vector<std::int64_t> crop;      ///< empty: whole samples. One number stands for all sides
  std::vector<std::int64_t> val_crop;  ///< likewise, of the centre
  std::int64_t batch = 1;
  std::int64_t val_batch = 1;
  std::int64_t val_limit = 0;  ///< most samples to validate on; 0: all
  std::int64_t accumulate = 1;
  std::int64_t steps = 0;   ///< 0: epochs decide
  std::int64_t epochs = 0;  ///< 0: steps decide
  std::int64_t workers = 4;
  std::int64_t prefetch = 4;
  std::int64_t seed = 1;
  bool drop_last = true;

  // Augmentation, on the training samples alone.
  std::vector<double> scale;  ///< smallest and largest factor; empty: none
  bool flip = false;
  double colour = 0;
  bool blur = false;
  bool axes = false;        ///< random permutation of a volume's axes
  double rotate = 0;        ///< volumes: most degrees about each axis
  double warp = 0;          ///< volumes: standard deviation of the shifts of a grid's nodes, voxels
  std::int64_t repeat = 1;  ///< times each sample appears in an epoch
  std::string cache;        ///< memory for decoded samples
  std::vector<double> mean;  ///< a channel each; empty: ImageNet's for images, none for volumes
  std::vector<double> std;

  // The optimizer.
  std::string optimizer = "sgd";
  double lr = 0.01;
  double lr_batch = 0;  ///< > 0: the rate is lr · batch · accumulate / lr_batch
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double clip = 0;  ///< most the norm of all gradients may be; 0: any
  std::string schedule = "constant";
  std::string schedule_per = "step";
  double exponent = 0.9;
  double min_lr = 0;          ///< a fraction of lr
  std::int64_t warmup = 0;    ///< steps
  double warmup_from = 0.01;  ///< a fraction of lr
  std::int64_t patience = 10;
  double plateau_factor = 0.5;

  // Arithmetic.
  std::string precision = "fp32";
  std::string loss_scale = "dynamic";  ///< of fp16; or a number
  std::string deterministic = "false";
  std::string device = "cuda";
  std::int64_t threads = 0;  ///< of PyTorch on the CPU; 0: its own choice

  // LMS: the settings of lms::torch::Options that are not at their defaults.
  std::string lms = "auto";                    ///< auto: where a limit is given
  std::map<std::string, std::string> managed;  ///< by their names; amounts as they were written
  std::string save_trace;                      ///< write the step that was learnt

  // What is written.
  std::string out;
  std::string resume = "false";
  bool overwrite = false;
  std::int64_t checkpoint_every = 0;  ///< steps; 0: at the end of epochs only
  double checkpoint_minutes = 10;     ///< 0: never by the clock
  std::int64_t keep = 2;
  std::int64_t journal = 1;  ///< steps; 0: none
  std::int64_t log_every = 10;
  double val_every = 1;  ///< epochs; 0: only at the end; < 0: never
  std::string progress = "auto";
  bool tensorboard = true;
  std::string report;
  std::int64_t measure_data = 0;  ///< batches to load alone, before training, for the report

  // Prediction and evaluation.
  std::string checkpoint;
  std::string labels = "true";
  bool overlay = true;
  std::string json;
};

/// One setting, by its name.
struct Key {
  std::string name;
  std::string group;
  std::string help;
  std::string commands;  ///< which of "t" (train), "p" (predict), "e" (eval) take it
  /// Two runs in which it differs are not the same run: resuming refuses to change it.
  bool fixed = false;
  std::function<void(Settings&, const std::string&)> set;  ///< throws BadSetting
  std::function<std::string(const Settings&)> get;         ///< what set() reads back alike
};

/// Every key, in the order of the help. Beside them stand "variants.NAME" and "options.NAME".
const std::vector<Key>& keys();

/// Sets one key by its text. Throws BadSetting: for an unknown name with the nearest that there is,
/// for a bad value with what would do. `where` ("recipe.toml:3") begins the message, if not empty.
void set_key(Settings& settings, const std::string& name, const std::string& value,
             const std::string& where = "");

/// Applies "key=value".
void apply_override(Settings& settings, const std::string& text);

/// The published settings of a model's study, as key=value; empty for a model without.
std::vector<std::string> study_settings(const std::string& model);

/// All keys that differ from the defaults, as text; set_key() of each gives the settings back.
std::map<std::string, std::string> changed_keys(const Settings& settings);

/// The known name that is nearest to `name` by edits, of `names`; "" if none is near.
std::string nearest(std::string_view name, const std::vector<std::string>& names);

/// Contradictions between settings that are fine by themselves. Throws BadSetting.
void check_training(const Settings& settings);

}  // namespace lms::train
