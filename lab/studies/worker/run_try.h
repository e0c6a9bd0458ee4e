#pragma once

#include <cstdio>

#include "lab/studies/try_spec.h"

namespace lms::studies {

/// Makes one try in this process, and writes its record to spec.out, however it ends. Returns 0
/// where that says something of the size (it trains, or memory is too small), else 1. With `leave`
/// all memory stays as it is, for a process that ends at once. To be called once in a process where
/// the device is a GPU: its cap stays.
int run_try(const TrySpec& spec, std::FILE* log, bool leave);

}  // namespace lms::studies
