#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lab/train/state_file.h"

namespace lms::train {

/// A run's checkpoints: FOLDER/step-N.safetensors, and best.safetensors, which is one of them under
/// a second name. Beside them lies the journal.
class RunFolder {
 public:
  /// Makes the folder if need be. Throws StateError.
  RunFolder(std::string path, std::int64_t keep);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] std::string journal() const { return file("journal"); }

  /// Does the folder hold a run?
  [[nodiscard]] bool has_run() const;

  /// Saves the state under its fact "step" (see save_state()), then removes all but the newest
  /// `keep`. `best`: it is the best so far, too; it becomes that before it becomes a checkpoint.
  void save(const State& state, bool best) const;

  /// The newest whole state: of the journal, or a checkpoint. Damaged files are passed over, and
  /// told of in `notes`. Nothing: there is no checkpoint. Throws StateError if all are damaged.
  std::optional<State> newest(std::vector<std::string>* notes) const;

  /// Removes checkpoints, journal and events.
  void clear() const;

 private:
  /// Steps of the checkpoints, newest first.
  [[nodiscard]] std::vector<std::int64_t> steps() const;
  [[nodiscard]] std::string checkpoint(std::int64_t step) const;

  std::string path_;
  std::int64_t keep_;
};

}  // namespace lms::train
