#include "lab/train/program.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "lab/datasets/open.h"
#include "lab/train/evaluate.h"
#include "lab/train/machine.h"
#include "lab/train/parts.h"
#include "lab/train/predict.h"
#include "lab/train/recipe.h"
#include "lab/train/run_folder.h"
#include "lab/train/settings.h"
#include "lab/train/signals.h"
#include "lab/train/trainer.h"

namespace lms::train {
namespace {

/// One thing that was said, in the order of the command line.
struct Said {
  std::string key;
  std::string value;
  std::string where;
};

std::vector<Said> said_by(const std::vector<std::string>& words,
                          const std::vector<std::pair<std::string, std::string>>& flags) {
  std::vector<Said> recipes;
  std::vector<Said> overrides;
  for (const std::string& word : words) {
    if (word.ends_with(".toml")) {
      for (RecipeEntry& entry : read_recipe(word)) {
        recipes.push_back({std::move(entry.key), std::move(entry.value), std::move(entry.where)});
      }
      continue;
    }
    const std::size_t at = word.find('=');
    if (at == std::string::npos || at == 0) {
      throw BadSetting("'" + word + "' is neither a recipe (*.toml) nor key=value");
    }
    overrides.push_back({word.substr(0, at), word.substr(at + 1), ""});
  }
  // Recipes first, whatever the order of the words.
  recipes.insert(recipes.end(), overrides.begin(), overrides.end());
  for (const auto& [key, value] : flags) recipes.push_back({key, value, ""});
  return recipes;
}

void apply(Settings& settings, const std::vector<Said>& said) {
  for (const Said& each : said) set_key(settings, each.key, each.value, each.where);
}

std::string run_name(const Settings& settings) {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text = {};
  std::strftime(text.data(), text.size(), "%Y%m%d-%H%M%S", &parts);
  return "runs/" + settings.model + "-" + text.data();
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw Error(path + ": cannot be written: " + std::strerror(errno));
}

/// The settings in force, as a recipe that gives them again.
std::string recipe_text(const Settings& settings) {
  std::string text;
  for (const auto& [name, value] : changed_keys(settings)) {
    std::string quoted;
    for (const char c : value) {
      if (c == '"' || c == '\\') quoted += '\\';
      quoted += c;
    }
    text += name + " = \"" + quoted + "\"\n";
  }
  return text;
}

int train_command(const std::vector<Said>& said, std::FILE* out, std::FILE* err) {
  Settings asked;
  apply(asked, said);
  std::optional<State> start;
  Settings settings;
  if (asked.resume != "false" && !asked.out.empty() && std::filesystem::is_directory(asked.out)) {
    std::vector<std::string> notes;
    const RunFolder folder(asked.out, asked.keep);
    start = folder.newest(&notes);
    for (const std::string& note : notes)
      std::fprintf(err, "lms train: passed over %s\n", note.c_str());
  }
  if (start) {
    settings = settings_of(*start);
    // These belong to one call.
    settings.report.clear();
    settings.overwrite = false;
  } else {
    if (asked.resume == "true") {
      throw BadSetting("resume: there is no checkpoint in '" + asked.out + "'");
    }
    for (const std::string& text : study_settings(asked.model)) apply_override(settings, text);
  }
  apply(settings, said);
  check_training(settings);
  if (start) {
    check_same_run(settings, *start);
  } else {
    if (settings.out.empty()) settings.out = run_name(settings);
    if (std::filesystem::is_directory(settings.out) &&
        RunFolder(settings.out, settings.keep).has_run() && !settings.overwrite) {
      throw BadSetting("out: '" + settings.out +
                       "' has a run; resume=true goes on with it, overwrite=true starts anew");
    }
  }
  const Machine machine(settings);
  const Parts parts = make_parts(settings, true);
  const RunFolder folder(settings.out, settings.keep);
  write_text(folder.file("recipe.toml"), recipe_text(settings));
  const TrainResult result = train(settings, machine, parts, start, err);
  if (!settings.report.empty()) {
    const std::string report = report_json(settings, machine, result);
    if (settings.report == "json") {
      std::fputs(report.c_str(), out);
    } else {
      write_text(settings.report, report);
    }
  }
  return result.signal != 0 ? 128 + result.signal : kDone;
}

/// The settings of the checkpoint's run, with what was said on top; and its weights.
std::pair<Settings, State> from_checkpoint(const std::vector<Said>& said) {
  Settings asked;
  apply(asked, said);
  std::string path = asked.checkpoint;
  if (path.empty()) {
    throw BadSetting("checkpoint: which? --checkpoint RUN/best.safetensors, or the run's folder");
  }
  std::optional<State> state;
  if (std::filesystem::is_directory(path)) {
    if (std::filesystem::exists(path + "/best.safetensors")) {
      path += "/best.safetensors";
    } else {
      std::vector<std::string> notes;
      state = RunFolder(path, 1).newest(&notes);
      if (!state) throw StateError(path + ": there is no checkpoint here");
    }
  }
  if (!state) state = load_state(path);
  Settings settings = settings_of(*state);
  const Settings defaults;
  // How it was run does not matter here, only what it is.
  settings.out = defaults.out;
  settings.lms = defaults.lms;
  settings.managed.erase("limit");
  settings.init.clear();
  settings.progress = defaults.progress;
  // Other data than the run's are what is meant, not what the run was validated on.
  if (!asked.data.empty()) settings.val_data.clear();
  apply(settings, said);
  return {settings, std::move(*state)};
}

int eval_command(const std::vector<Said>& said, std::FILE* out) {
  auto [settings, state] = from_checkpoint(said);
  if (settings.data.empty()) throw BadSetting("data: which? --data voc:/data/VOCdevkit/VOC2012");
  const Machine machine(settings);
  const Parts parts = make_parts(settings, false);
  load_weights(*parts.model, state);
  parts.model->to(machine.device());
  const Signals signals;
  const auto scores =
      evaluate(*parts.model, parts.val, settings, machine, [] { return Signals::stop() != 0; });
  if (!scores) return 128 + Signals::stop();
  const auto names = parts.val->class_names();
  const std::string json = scores_json(*scores, parts.model->task(), names);
  if (settings.json == "-") {
    std::fputs(json.c_str(), out);
    return kDone;
  }
  std::fputs(scores_text(*scores, parts.model->task(), names).c_str(), out);
  if (!settings.json.empty()) write_text(settings.json, json);
  return kDone;
}

int predict_command(const std::vector<Said>& said, std::FILE* err) {
  auto [settings, state] = from_checkpoint(said);
  if (settings.out.empty()) throw BadSetting("out: which folder are the predictions to go to?");
  const Machine machine(settings);
  const auto model = make_model(settings, static_cast<std::size_t>(settings.classes));
  load_weights(*model, state);
  model->to(machine.device());
  predict(settings, machine, *model, err);
  return Signals::stop() != 0 ? 128 + Signals::stop() : kDone;
}

struct Command {
  CLI::App* app = nullptr;
  std::vector<std::string> words;
  std::vector<std::pair<std::string, std::string>> flags;
};

void add_command(CLI::App& program, const std::string& name, const std::string& help,
                 Command& command) {
  command.app = program.add_subcommand(name, help);
  command.app->allow_extras();  // refused below, with what is nearest
  command.app->add_option("words", command.words,
                          "a recipe (*.toml), and settings as key=value, in place of flags");
  for (const Key& key : keys()) {
    if (key.commands.find(name.front()) == std::string::npos) continue;
    std::string flag = key.name;
    std::replace(flag.begin(), flag.end(), '_', '-');
    std::string names = "--" + flag;
    if (flag != key.name) names += ",--" + key.name;
    const Settings defaults;
    const std::string value = key.get(defaults);
    command.app
        ->add_option_function<std::string>(
            names,
            [&command, key_name = key.name](const std::string& text) {
              command.flags.emplace_back(key_name, text);
            },
            key.help + (value.empty() ? "" : " [" + value + "]"))
        ->group(key.group)
        ->type_name("");
  }
}

int dispatch(int argc, const char* const* argv, std::FILE* out, std::FILE* err) {
  CLI::App program("Training, evaluation and prediction, in memory or past it", "lms");
  program.require_subcommand(1);
  Command train;
  Command evaluate;
  Command predict;
  add_command(program, "train",
              "Train a model. Every flag is a key of a recipe, too, and of key=value.\n"
              "Data sets (--data):\n" +
                  data::describe_kinds(),
              train);
  add_command(program, "eval", "Measure a checkpoint on the validation split.", evaluate);
  add_command(program, "predict",
              "Write a checkpoint's predictions for the validation split, or for the pictures of "
              "a folder (data=images:PATH).",
              predict);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream help;
    std::ostringstream complaint;
    const int status = program.exit(error, help, complaint);
    std::fputs(help.str().c_str(), out);
    std::fputs(complaint.str().c_str(), err);
    return status == 0 ? kDone : kBadInput;
  }
  for (Command* each : {&train, &evaluate, &predict}) {
    if (!each->app->parsed()) continue;
    for (const std::string& extra : each->app->remaining()) {
      const std::size_t begin = std::min(extra.find_first_not_of('-'), extra.size());
      std::string name = extra.substr(begin, extra.find('=') - begin);
      std::replace(name.begin(), name.end(), '-', '_');
      const bool known = std::any_of(keys().begin(), keys().end(),
                                     [&](const Key& key) { return key.name == name; });
      Settings none;
      if (begin > 0 && !known) set_key(none, name, "");  // throws, with the nearest
      throw BadSetting("'" + extra + "' is not for lms " + each->app->get_name());
    }
    const auto said = said_by(each->words, each->flags);
    if (each == &train) return train_command(said, out, err);
    if (each == &evaluate) return eval_command(said, out);
    return predict_command(said, err);
  }
  return kBadInput;
}

}  // namespace

int run(int argc, const char* const* argv, std::FILE* out, std::FILE* err) {
  const auto fail = [&](const std::string& message, int status) {
    std::fprintf(err, "lms: %s\n", message.c_str());
    return status;
  };
  try {
    return dispatch(argc, argv, out, err);
  } catch (const BadSetting& error) {
    return fail(error.what(), kBadInput);
  } catch (const data::DataError& error) {
    return fail(error.what(), kBadInput);
  } catch (const StateError& error) {
    return fail(error.what(), kBadInput);
  } catch (const c10::ValueError& error) {
    return fail(error.what_without_backtrace(), kBadInput);
  } catch (const c10::OutOfMemoryError& error) {
    return fail(std::string(error.what_without_backtrace()) +
                    " (all that was saved stays; resume=true goes on under another limit)",
                kFailed);
  } catch (const c10::Error& error) {
    return fail(error.what_without_backtrace(), kFailed);
  } catch (const std::exception& error) {
    return fail(error.what(), kFailed);
  }
}

}  // namespace lms::train
