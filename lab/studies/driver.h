#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "lab/studies/recipe.h"

namespace lms::studies {

struct DriverOptions {
  std::string out = "lab/results/studies";  ///< <out>/<study>/<series>/<key>.json
  double budget = 0;                        ///< seconds until no try is begun; 0: none
  std::vector<std::string> only;    ///< tries whose study/series/method has one of these in it
  int most_priority = 99;           ///< tries that come later are left out
  bool list = false;                ///< only say what is left
  bool again = false;               ///< tries that have a record are made again, by each run
  double timeout = 180;             ///< seconds, of one try
  Values settings;                  ///< over those of the recipes
  std::vector<std::string> worker;  ///< the program of a try, with its first arguments
};

/// What a run of the driver has done.
struct DriverResult {
  int tries = 0;    ///< made now
  int failed = 0;   ///< of those: neither trained nor ran out of memory
  int left = 0;     ///< not made, for the time has run out
  int skipped = 0;  ///< cannot be made: what they rest on is not known, though all was tried
};

/// Makes the tries of some studies that have no record yet, each in a process of its own, the most
/// wanted first. Whatever ends it, every record is whole, and the next run goes on. What failed
/// (crashed, or was interrupted) is tried again by the next run, once; sizes that ran out of
/// memory or time are known. A boundary file follows each record. What stands of earlier runs is
/// the Ledger's to say.
///
/// Throws BadSetting for recipes and settings that cannot be, and records of other settings.
DriverResult run_studies(const std::vector<Recipe>& recipes, const DriverOptions& options,
                         std::FILE* log, const std::function<bool()>& stop = {});

}  // namespace lms::studies
