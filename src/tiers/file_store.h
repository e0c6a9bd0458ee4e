#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "tiers/file_io.h"

namespace lms {

class FileSlot;

/// Bytes on disk: extents of one unlinked temporary file, which vanishes with the process.
///
/// Extents are multiples of 4 KiB, best fit, coalesced when freed. Data is transferred past the
/// page cache (O_DIRECT) where the file system allows it; elsewhere the cache is written out and
/// dropped after every transfer. Blocks of the disk are allocated when the file grows, so a full
/// disk is found by acquire(), before a byte depends on it. Thread-safe; transfers run without a
/// lock. Slots share ownership of the file and may outlive the store.
///
/// Forks: a child sees the parent's file. Extents in use at a fork are never handed out again, nor
/// reported as may_overwrite(), while a child of that fork (or a descendant, as long as it has not
/// called exec) may be alive. Wire on_fork_prepare / on_fork_parent / on_fork_child to
/// pthread_atfork or call them around fork(). In the child the store only reads: acquire() and
/// write() throw, slots return nothing.
class FileStore {
 public:
  static constexpr Bytes kAlignment = 4 * kKiB;

  struct Options {
    std::string directory;
    Bytes limit = 0;                        ///< most bytes the file may have; rounded down to 4 KiB
    Bytes step = 256 * kMiB;                ///< growth of the file, as far as limit and disk allow
    bool direct = true;                     ///< try O_DIRECT
    bool allow_memory_file_system = false;  ///< accept tmpfs, which frees no memory
  };

  struct Stats {
    Bytes limit = 0;
    Bytes reserved = 0;     ///< the file's length
    Bytes used = 0;         ///< in live slots, after rounding
    Bytes peak_used = 0;    ///< most `used` since the start or reset_peak()
    Bytes quarantined = 0;  ///< freed, but a forked child may still read them
    Bytes written = 0;      ///< bytes written by write(), ever
    Bytes read = 0;         ///< bytes read by read(), ever
    bool direct = false;    ///< transfers go past the page cache
  };

  /// Creates the file. `io`: the system calls to use, null for the real ones. Throws BadSetting
  /// when the directory cannot hold such a file or is kept in memory.
  explicit FileStore(Options options, std::shared_ptr<FileIo> io = nullptr);
  ~FileStore();
  FileStore(FileStore&&) noexcept;
  FileStore& operator=(FileStore&&) noexcept;

  /// An extent of at least `n` bytes (n >= 0), with disk blocks behind it. TierFull when the limit
  /// or the disk's free space does not allow it; the message names both.
  [[nodiscard]] FileSlot acquire(Bytes n);

  /// Writes `n` bytes to the beginning of the slot (n <= slot.size() rounded up to 4 KiB). Fastest
  /// when `data` and `n` are multiples of 4 KiB. On an error the extent's contents are unspecified:
  /// TierFull for a full disk or quota, else Error.
  void write(const FileSlot& slot, const void* data, std::size_t n);

  /// Reads `n` bytes from the beginning of the slot; sees what was written to the range through
  /// shared mappings.
  void read(const FileSlot& slot, void* data, std::size_t n) const;

  /// Drops the slot's pages from the page cache (writing dirty ones out first). Never fails: what
  /// cannot be dropped stays cached.
  void drop_cache(const FileSlot& slot) const noexcept;

  /// Whether no living child of a fork can see this slot's bytes.
  [[nodiscard]] bool may_overwrite(const FileSlot& slot);

  /// Whether `slot` is one of this store's.
  [[nodiscard]] bool owns(const FileSlot& slot) const;

  /// For mapping extents: mmap(..., fd(), slot.offset()).
  [[nodiscard]] int fd() const;

  /// Whether this process is a child of the one that made the store.
  [[nodiscard]] bool in_child() const noexcept;

  [[nodiscard]] Stats stats() const;
  void reset_peak();
  void set_limit(Bytes limit);
  /// Shortens the file by its free tail.
  void trim() noexcept;

  /// Before a fork: takes the store's lock, which on_fork_parent / on_fork_child release. A fork
  /// that fails calls on_fork_parent.
  void on_fork_prepare() noexcept;
  void on_fork_parent() noexcept;
  void on_fork_child() noexcept;

 private:
  friend class FileSlot;
  class Impl;
  std::shared_ptr<Impl> impl_;
};

/// A move-only extent of a FileStore; destruction frees it.
class FileSlot {
 public:
  FileSlot() = default;
  ~FileSlot() { release(); }
  FileSlot(FileSlot&& other) noexcept;
  FileSlot& operator=(FileSlot&& other) noexcept;

  /// Position in the file, a multiple of 4 KiB.
  [[nodiscard]] Bytes offset() const { return offset_; }
  /// The size that was asked for.
  [[nodiscard]] Bytes size() const { return size_; }
  /// The file; -1 for an empty slot. Async-signal-safe.
  [[nodiscard]] int fd() const noexcept;
  explicit operator bool() const { return impl_ != nullptr; }

  /// Frees the extent (or puts it into quarantine); empty afterwards.
  void release() noexcept;

 private:
  friend class FileStore;
  friend class FileStore::Impl;
  std::shared_ptr<FileStore::Impl> impl_;
  Bytes offset_ = 0;
  Bytes size_ = 0;
  std::uint64_t born_ = 0;  // forks counted when it was acquired
};

}  // namespace lms
