#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "steps/step_log.h"

namespace lms {

/// Hears the stream while scripts are followed that may be parts of a longer step: once the whole
/// has come twice, it is known. Not thread-safe.
class Overheard {
 public:
  /// From now on, if nobody listens yet, until operator `until` of all ever seen. `marginal`: see
  /// StepLog.
  void listen(std::uint64_t until, Bytes marginal);
  void stop();
  /// Null: nobody listens.
  [[nodiscard]] StepLog* log() const { return log_.get(); }

  /// What has come twice up to operator `now` of all ever seen. Stops once it is too late.
  [[nodiscard]] std::optional<StepLog::Span> repeated(std::uint64_t now);
  /// It was none that is looked for, and would be found again at each operator.
  void pause(std::uint64_t until) { again_ = until; }

 private:
  std::unique_ptr<StepLog> log_;
  std::uint64_t until_ = 0;
  std::uint64_t again_ = 0;
};

}  // namespace lms
