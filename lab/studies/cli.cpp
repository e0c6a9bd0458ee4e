#include "lab/studies/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "base/text_file.h"
#include "lab/studies/bounds.h"
#include "lab/studies/driver.h"
#include "lab/studies/folder.h"
#include "lab/studies/recipe.h"

namespace lms::studies {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefaultRecipes = "lab/recipes/studies";
constexpr const char* kDefaultOut = "lab/results/studies";

volatile std::sig_atomic_t stopped = 0;

void note_signal(int /*signal*/) { stopped = 1; }

/// "480", "480s", "8m", "1h".
double seconds_of(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(end, text.data() + text.size());
  const double factor = unit.empty() || unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : 0;
  if (error != std::errc() || factor == 0 || !(value > 0) || !std::isfinite(value)) {
    throw BadSetting("'" + text + "' is no time: 480s, 8m, 1h");
  }
  return value * factor;
}

Values pairs_of(const std::vector<std::string>& texts) {
  Values values;
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw BadSetting("'" + text + "' is no setting: key=value");
    }
    values[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return values;
}

std::string take(Values& values, const std::string& key, const std::string& otherwise) {
  const auto found = values.find(key);
  if (found == values.end()) return otherwise;
  std::string value = found->second;
  values.erase(found);
  return value;
}

std::int64_t whole(const std::string& key, const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value <= 0) {
    throw BadSetting(key + ": '" + text + "' is no number above 0");
  }
  return value;
}

double above_zero(const std::string& key, const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value > 0) ||
      !std::isfinite(value)) {
    throw BadSetting(key + ": '" + text + "' is no number above 0");
  }
  return value;
}

/// Settings over those of all tries; those that the driver itself gives each try cannot be.
Values common_settings(const std::vector<std::string>& texts) {
  Values values = pairs_of(texts);
  for (const char* key : {"study", "series", "method", "link", "out"}) {
    if (values.contains(key)) {
      throw BadSetting(std::string(key) + ": is each try's own; see --only and --out");
    }
  }
  (void)spec_of(values);
  return values;
}

std::vector<std::string> parts(const std::string& text) {
  std::vector<std::string> all;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    all.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return all;
}

/// A recipe of one series, for sweeps and searches that no file has.
Recipe own_recipe(bool search, Values values) {
  Recipe recipe;
  recipe.study = take(values, "study", search ? "search" : "sweep");
  RecipeSeries series;
  series.over = take(values, "over", "side");
  if (series.over != "side" && series.over != "batch") {
    throw BadSetting("over: '" + series.over + "' is neither side nor batch");
  }
  if (!values.contains("model")) throw BadSetting("model=… is wanted");
  series.name = take(values, "series", values.at("model") + "." + series.over);
  series.step = whole("step", take(values, "step", series.over == "side" ? "32" : "1"));
  series.start = whole("start", take(values, "start", std::to_string(series.step)));
  const auto methods = parts(take(values, "methods", take(values, "method", "plain,lms")));
  const auto sizes = parts(take(values, "values", ""));
  const auto multiples = parts(take(values, "multiples", ""));
  if (!search && sizes.empty() && multiples.empty()) {
    throw BadSetting("values=A,B,… or multiples=1,2,… are wanted");
  }
  const std::string link = take(values, "link", "");
  for (const std::string& method : methods) {
    RecipeTries tries;
    TrySpec named;
    set_value(named, "method", method);
    set_value(named, "link", link);
    tries.method = method;
    // Only LMS's own copies can be made slower.
    if (method.starts_with("lms")) tries.link = link;
    tries.search = search;
    for (const std::string& size : sizes) tries.values.push_back(whole("values", size));
    for (const std::string& text : multiples) {
      tries.multiples.push_back(above_zero("multiples", text));
    }
    series.tries.push_back(tries);
  }
  if (values.contains("out")) throw BadSetting("out: the records' folder is --out");
  (void)spec_of(values);
  series.settings = values;
  recipe.series.push_back(series);
  return recipe;
}

std::string commit() {
  const char* given = std::getenv("LMS_COMMIT");
  if (given != nullptr) return given;
  const auto line = [](const std::string& path) {
    std::string text = read_text_file(path).value_or("");
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
  };
  const std::string written = line(".commit");
  if (!written.empty()) return written;
  const std::string head = line(".git/HEAD");
  constexpr const char* kReference = "ref: ";
  if (!head.starts_with(kReference)) return head;
  const std::string name = head.substr(std::string(kReference).size());
  const std::string loose = line(".git/" + name);
  if (!loose.empty()) return loose;
  std::istringstream packed(read_text_file(".git/packed-refs").value_or(""));
  for (std::string each; std::getline(packed, each);) {
    if (each.ends_with(" " + name)) return each.substr(0, each.find(' '));
  }
  return "";
}

std::string self() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).string();
}

struct Arguments {
  std::string only;
  std::string budget;
  std::string timeout = "180s";
  std::string folder = kDefaultRecipes;
  std::vector<std::string> rest;  ///< recipes and key=value
  std::string worker;
  bool again = false;
  DriverOptions driver;
};

void add_driver_options(CLI::App* command, Arguments& arguments) {
  command->add_option("--out", arguments.driver.out, "folder of the records")
      ->capture_default_str();
  command->add_option("--budget", arguments.budget,
                      "no try is begun that would not be done by then: 480s, 8m");
  command->add_option("--timeout", arguments.timeout, "of one try")->capture_default_str();
  // One word, not all that follow: settings may come after it.
  command->add_option(
      "--only", arguments.only,
      "tries alone whose study/series/method has this in it: B3/, /lms, resolution; "
      "or A,B,…");
  command->add_option("--priority", arguments.driver.most_priority,
                      "leave out tries of a higher number: 1 are those of the published figures");
  command->add_flag("--list", arguments.driver.list, "say what is left, and how long it may take");
  command->add_flag("--again", arguments.driver.again, "make tries again that have a record");
  command->add_option("--worker", arguments.worker, "the program that makes a try")->group("");
}

int drive(const std::vector<Recipe>& recipes, Arguments& arguments, std::FILE* out) {
  DriverOptions& options = arguments.driver;
  if (!arguments.budget.empty()) options.budget = seconds_of(arguments.budget);
  options.timeout = seconds_of(arguments.timeout);
  if (!arguments.only.empty()) options.only = parts(arguments.only);
  if (!options.settings.contains("commit")) {
    const std::string known = commit();
    if (!known.empty()) options.settings["commit"] = known;
  }
  options.worker = {self(), "try"};
  if (!arguments.worker.empty()) options.worker = {arguments.worker};
  const auto before_int = std::signal(SIGINT, note_signal);
  const auto before_term = std::signal(SIGTERM, note_signal);
  const DriverResult result = run_studies(recipes, options, out, [] { return stopped != 0; });
  std::signal(SIGINT, before_int);
  std::signal(SIGTERM, before_term);
  if (options.list) return kDone;
  if (result.left > 0) return kLeft;
  return result.failed > 0 || result.skipped > 0 ? kFailed : kDone;
}

/// Arguments that are files, and those that are settings.
std::vector<Recipe> recipes_of(Arguments& arguments) {
  std::vector<Recipe> recipes;
  std::vector<std::string> settings;
  for (const std::string& text : arguments.rest) {
    if (text.find('=') == std::string::npos) {
      recipes.push_back(read_recipe(text));
    } else {
      settings.push_back(text);
    }
  }
  arguments.driver.settings = common_settings(settings);
  return recipes;
}

/// In the order in which their figures are wanted.
std::vector<std::string> recipe_files(const std::string& folder) {
  std::vector<std::string> files;
  for (const std::string& name : names_in(folder)) {
    if (name.ends_with(".toml")) files.push_back(folder + "/" + name);
  }
  // B1 has the slowest steps.
  std::ranges::stable_partition(files, [](const std::string& file) {
    return fs::path(file).filename().string().rfind("B1", 0) != 0;
  });
  if (files.empty()) throw BadSetting(folder + ": there are no recipes");
  return files;
}

int dispatch(int argc, const char* const* argv, std::FILE* out, std::FILE* err,
             const RunTry& run_try) {
  CLI::App app("Measures training past the memory of the device: see docs/studies.md.",
               "lms bench");
  app.require_subcommand(1);
  Arguments arguments;
  std::string folder = kDefaultOut;

  CLI::App* study = app.add_subcommand("study", "the tries of a recipe that have no record yet");
  study->add_option("recipe", arguments.rest, "recipes, and settings over theirs: key=value")
      ->required();
  add_driver_options(study, arguments);
  CLI::App* studies = app.add_subcommand("studies", "the same for all recipes of a folder");
  studies->add_option("settings", arguments.rest, "settings over theirs: key=value");
  studies->add_option("--recipes", arguments.folder)->capture_default_str();
  add_driver_options(studies, arguments);
  CLI::App* sweep = app.add_subcommand(
      "sweep", "given sizes of one model: model=resnet50 over=side values=2000,4000 methods=lms …");
  sweep->add_option("settings", arguments.rest, "key=value")->required();
  add_driver_options(sweep, arguments);
  CLI::App* search = app.add_subcommand(
      "search", "the largest size that trains: model=resnet50 over=side start=2000 step=100 …");
  search->add_option("settings", arguments.rest, "key=value")->required();
  add_driver_options(search, arguments);
  CLI::App* bounds = app.add_subcommand("bounds", "adds what no plan can beat, by the traces");
  bounds->add_option("folder", folder, "of records")->capture_default_str();
  bounds->add_flag("--again", arguments.again);
  CLI::App* one = app.add_subcommand("try", "one try, in this process: model=… method=… out=…");
  one->add_option("settings", arguments.rest, "key=value")->required();

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream help;
    std::ostringstream complaint;
    const int status = app.exit(error, help, complaint);
    std::fputs(help.str().c_str(), out);
    std::fputs(complaint.str().c_str(), err);
    return status == 0 ? kDone : kBadInput;
  }
  if (one->parsed()) {
    const TrySpec spec = spec_of(pairs_of(arguments.rest));
    if (spec.out.empty()) throw BadSetting("out=… is wanted: the record's file");
    if (!run_try) throw BadSetting("this program makes no tries");
    return run_try(spec, out);
  }
  if (bounds->parsed()) {
    add_bounds(folder, arguments.again, out);
    return kDone;
  }
  if (sweep->parsed() || search->parsed()) {
    return drive({own_recipe(search->parsed(), pairs_of(arguments.rest))}, arguments, out);
  }
  std::vector<Recipe> recipes = recipes_of(arguments);
  if (studies->parsed()) {
    for (const std::string& file : recipe_files(arguments.folder)) {
      recipes.push_back(read_recipe(file));
    }
  }
  if (recipes.empty()) throw BadSetting("a recipe is wanted");
  return drive(recipes, arguments, out);
}

}  // namespace

int run(int argc, const char* const* argv, std::FILE* out, std::FILE* err, const RunTry& run_try) {
  // Begun as `lms bench …`, too.
  if (argc > 1 && std::string(argv[1]) == "bench") {
    --argc;
    ++argv;
  }
  try {
    return dispatch(argc, argv, out, err, run_try);
  } catch (const BadSetting& error) {
    std::fprintf(err, "lms bench: %s\n", error.what());
    return kBadInput;
  } catch (const std::exception& error) {
    std::fprintf(err, "lms bench: %s\n", error.what());
    return kFailed;
  }
}

}  // namespace lms::studies
