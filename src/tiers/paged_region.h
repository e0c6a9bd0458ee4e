#pragma once

#include "base/bytes.h"
#include "tiers/digest.h"
#include "tiers/file_store.h"

namespace lms {

/// Memory at an address that never changes, whose bytes can leave to a FileStore and come back.
///
/// Present: anonymous private memory. Absent: a shared mapping of a file extent at the same
/// address, so the address stays readable, with the right bytes, at every instant: other threads
/// may read it all the while. Reading while absent brings pages into the page cache; come_back()
/// drops them. An I/O error under such a read is a SIGBUS, as with every mapped file.
///
/// Writes: through this address at any time *except while leave() or come_back() runs*, when a
/// write could be lost (nothing is write-protected, since a fault in another's code would be
/// worse). So move only blocks that no one can be writing: whose pointer has not escaped, or that
/// are locked by the caller. Writes made while absent reach the file through the mapping and come
/// back. Writes made while present need not be announced: a kept copy counts only as long as the
/// digest of the bytes says that they are what came back.
///
/// One region is not thread-safe: its owner serialises leave, come_back, drop_copy and forks.
/// Distinct regions are independent. Move-only; destruction unmaps and frees the extent.
class PagedRegion {
 public:
  /// `n` bytes of zeros (n >= 0), aligned to 4 KiB (from 2 MiB on to 2 MiB, with huge pages).
  /// OutOfMemory when the system refuses.
  [[nodiscard]] static PagedRegion make(Bytes n);

  /// Likewise, but absent from the start: the bytes, of unspecified contents, are the store's.
  /// Throws TierFull where it has no room, or the system maps no more, or OutOfMemory.
  [[nodiscard]] static PagedRegion make_below(FileStore& store, Bytes n);

  PagedRegion() = default;
  ~PagedRegion();
  PagedRegion(PagedRegion&& other) noexcept;
  PagedRegion& operator=(PagedRegion&& other) noexcept;

  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] Bytes size() const { return size_; }
  [[nodiscard]] bool present() const { return present_; }
  /// Present, with a file extent that held the same bytes when they came back.
  [[nodiscard]] bool has_copy() const { return present_ && slot_; }
  explicit operator bool() const { return data_ != nullptr; }

  /// Bytes leave and their memory returns to the system. `dirty`: the region was written since it
  /// came back, so that a kept copy is no longer valid; without it a kept copy is compared, by its
  /// digest. What lies in another store, where it was used, leaves to this one. Returns the bytes
  /// written: size(), or 0 when a clean copy was kept (or when already absent). Throws TierFull
  /// (also where the system maps no more) or Error; the bytes are then still present, and a copy
  /// that may have been half overwritten is dropped.
  Bytes leave(FileStore& store, bool dirty);

  /// Bytes come back into fresh memory. `keep_copy`: the extent stays as a clean copy, for a free
  /// leave(store, false), and its digest is taken. Returns the bytes read: size(), or 0 when
  /// already present. What lies in another store is copied from its mapping. Where the system maps
  /// no more memory, 0 as well: the region stays absent, and is read and written where it lies.
  /// Throws OutOfMemory where it may not be written there (usable_below), or Error; likewise.
  Bytes come_back(FileStore& store, bool keep_copy);

  /// Of a region that was read or written where it lies, absent: gives the page cache back.
  void drop_cache(const FileStore& store) const noexcept {
    if (!present_ && slot_) store.drop_cache(slot_);
  }

  /// Absent, and may be written where the bytes lie: no forked child sees what is written there.
  [[nodiscard]] bool usable_below(FileStore& store) const;

  /// The bytes go for good, wherever they are, their memory and the extent with them; the address
  /// stays taken, and any access to it is a fault. No effect if they have.
  void discard();
  /// Memory of zeros at the address again. Throws OutOfMemory; still discarded then.
  void renew();
  /// The memory of `other`, which is present, moves to this address, copied by nobody; `other` is
  /// empty then. False, with nothing changed, unless this one is discarded and of the same size.
  bool renew_with(PagedRegion& other);

  /// Whether the kept copy holds the very bytes in memory; true where there is none. Reads the copy
  /// in pieces: for checks, not for the hot path.
  [[nodiscard]] bool copy_matches(FileStore& store) const;

  /// Frees the kept extent. No effect while absent.
  void drop_copy() noexcept;

  /// In the child, after a fork: from now on writes to an absent region stay in the child. Reads
  /// see the parent's bytes of the fork's time, unless the parent writes through its own mapping
  /// while absent. Async-signal-safe. In the child come_back() works, leave() throws.
  void isolate_in_child() noexcept;

 private:
  void* data_ = nullptr;
  Bytes size_ = 0;
  Bytes mapped_ = 0;
  bool present_ = true;
  bool discarded_ = false;  ///< not present either
  bool isolated_ = false;
  FileSlot slot_;
  Digest copied_;  ///< while there is a copy: of the bytes that came back
};

}  // namespace lms
