#include "foresight/lru_ghost.h"

namespace lms {

void LruGhost::touch(BlockUid uid, Bytes bytes, bool writes) {
  const auto [found, is_new] = known_.try_emplace(uid);
  Known& known = found->second;
  if (is_new) {
    known.bytes = bytes;
  } else if (!known.here) {
    moved_ += known.bytes;
  }
  if (known.here) {
    oldest_first_.splice(oldest_first_.end(), oldest_first_, known.place);
  } else {
    known.here = true;
    known.place = oldest_first_.insert(oldest_first_.end(), uid);
    here_ += known.bytes;
  }
  if (writes) known.clean = false;
}

void LruGhost::squeeze() {
  while (here_ > room_ && oldest_first_.size() > 1) {
    Known& known = known_.find(oldest_first_.front())->second;
    oldest_first_.pop_front();
    known.here = false;
    here_ -= known.bytes;
    if (!known.clean) moved_ += known.bytes;
    known.clean = true;
  }
}

void LruGhost::released(BlockUid uid) {
  const auto found = known_.find(uid);
  if (found == known_.end()) return;
  squeeze();  // it was here while its last operator ran
  if (found->second.here) {
    oldest_first_.erase(found->second.place);
    here_ -= found->second.bytes;
  }
  known_.erase(found);
}

void LruGhost::set_room(Bytes bytes) {
  room_ = bytes;
  squeeze();
}

void LruGhost::clear() { *this = {}; }

}  // namespace lms
