#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "lab/train/state_file.h"

namespace lms::train {

/// The state after the latest step, in two mapped files that are written in turns. An entry costs
/// one copy of the state into the page cache, and no wait for a disk: it outlives the process,
/// however that ends, but not the machine. So an entry of an earlier boot is not believed; there
/// are checkpoints for that.
///
/// Entries are files as load_state() reads them. Not thread-safe.
class Journal {
 public:
  /// Files PATH-0.safetensors and PATH-1.safetensors, with their disk space, made as large as
  /// `like` wants, with `like`'s tensors: names, types and shapes of all entries. Throws StateError
  /// where there is no room for them.
  Journal(const std::string& path, const State& like);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// Replaces the older entry. Until it is whole, the other one is the latest.
  void write(const State& state);

  /// Removes the files.
  static void remove(const std::string& path);

  /// The entry with the largest fact "step", of those that are whole and of this boot.
  static std::optional<State> latest(const std::string& path);

 private:
  struct Mapping {
    char* bytes = nullptr;
    std::size_t size = 0;
  };

  std::string path_;
  std::size_t header_bytes_ = 0;
  Mapping files_[2];
  bool named_[2] = {false, false};
  int next_ = 0;
};

}  // namespace lms::train
