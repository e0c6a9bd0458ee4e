#pragma once

#include "foresight/lru_ghost.h"

namespace lms {

/// Whether what is foretold is worth following: what has moved under it, against what would have
/// without it. What turns out worse rests for a while, for longer each time. Not thread-safe.
class Duel {
 public:
  /// What has been copied so far. What was copied ahead may have cost nothing.
  struct Moved {
    Bytes in_all = 0;
    Bytes ahead = 0;
  };

  LruGhost& ghost() { return ghost_; }
  /// To be called now and then. `room`: the most bytes that blocks have had on the device.
  void look(const Moved& moved, Bytes room, Bytes limit);
  [[nodiscard]] bool follow() const { return rest_ <= 0; }
  /// Some of what has moved is none of the policy's.
  void restart() { in_vain_ = true; }
  void clear() { *this = {}; }

 private:
  LruGhost ghost_;
  Moved moved_;  ///< when the present round began
  Bytes ghost_moved_ = 0;
  Bytes room_ = 0;
  bool in_vain_ = true;  ///< the present round: it begins anew
  double rest_ = 0;      ///< rounds to go
  double next_rest_ = 4;
};

}  // namespace lms
