#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>

#include "base/bytes.h"
#include "steps/known_blocks.h"

namespace lms {

/// What would have moved if the least recently used block had always left first. Constant cost per
/// use. Not thread-safe.
class LruGhost {
 public:
  /// The next operator begins. What one uses is here together: none of it leaves for another.
  void begin_operator() { squeeze(); }
  void touch(BlockUid uid, Bytes bytes, bool writes);
  void released(BlockUid uid);
  /// Bytes that there is room for.
  void set_room(Bytes bytes);
  void clear();
  /// Bytes that would have been copied, out and in.
  [[nodiscard]] Bytes moved() const { return moved_; }

 private:
  struct Known {
    Bytes bytes = 0;
    bool here = false;
    bool clean = false;
    std::list<BlockUid>::iterator place;
  };
  void squeeze();

  std::unordered_map<BlockUid, Known> known_;
  std::list<BlockUid> oldest_first_;
  Bytes room_ = 0;
  Bytes here_ = 0;
  Bytes moved_ = 0;
};

}  // namespace lms
