#pragma once

namespace lms::train {

/// While it lives, SIGINT, SIGTERM and SIGHUP are noted instead of ending the process; a second one
/// ends it at once, with status 128 + its number. SIGUSR1 is noted as a wish for a checkpoint. One
/// at a time.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  /// The first signal that asked for an end, or 0.
  [[nodiscard]] static int stop();
  /// Whether a checkpoint has been wished for since the last call.
  [[nodiscard]] static bool take_wish();

 private:
  struct Old;
  Old* old_;
};

}  // namespace lms::train
