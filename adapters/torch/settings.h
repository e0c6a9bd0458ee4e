#pragma once

#include <string>

#include "base/bytes.h"

namespace lms::torch {

/// What a device's manager was asked to do. -1: find a value.
struct Settings {
  Bytes limit = -1;               ///< device bytes
  Bytes host_limit = -1;          ///< bytes of the tier below: pinned host memory, or the file
  Bytes min_block = kMiB;         ///< smaller storages stay where they are
  std::string directory;          ///< where the file tier lives; "" for the default
  bool stress = false;            ///< evict everything after every outermost operator
  bool drop = false;              ///< with stress: drop what can be computed again instead
  bool recompute = true;          ///< plans may drop what can be computed again
  bool other_algorithms = false;  ///< convolutions may take one that needs less memory
  bool verify = false;            ///< check clean evictions against their copies
  bool plan = true;               ///< learn the steps and plan them
  bool plan_at_once = false;      ///< plan while the step waits, not beside it (tests)
  double plan_seconds = 2;        ///< most time to search for a better plan
  std::string plan_cache;         ///< folder of plans that are kept for the next start; "": none
};

}  // namespace lms::torch
