#pragma once

#include "engine/outer_lock.h"

namespace lms::torch {

/// The global interpreter lock of the Python that this process runs; null where there is none. Some
/// of PyTorch's functions keep it while an operator runs (`UntypedStorage.fill_`, extensions), and
/// the end of an operator may take it, to let a tensor go that Python knows. Thread-safe.
[[nodiscard]] OuterLock* python_lock();

}  // namespace lms::torch
