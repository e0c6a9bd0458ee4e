#pragma once

#include <stdexcept>
#include <string>

namespace lms {

/// Root of every error that LMS throws. Messages say what, where, and what would work.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The budget cannot hold what must be in device memory at one time. Nothing was lost: the same
/// work succeeds under a larger limit.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

/// A lower tier (host memory, file) has no room. Thrown before any byte is moved.
class TierFull : public Error {
 public:
  using Error::Error;
};

/// A setting has a value, or a combination of values, that cannot work.
class BadSetting : public Error {
 public:
  using Error::Error;
};

}  // namespace lms
