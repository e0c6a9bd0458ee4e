#include "tiers/file_store.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tiers/extent_map.h"
#include "tiers/fork_epochs.h"
#include "tiers/mapped_memory.h"

namespace lms {
namespace {

constexpr Bytes kAlignment = FileStore::kAlignment;
constexpr Bytes kMaxTransfer = 1 * kGiB;  // below the 2 GiB that one call moves at most
constexpr Bytes kBounce = 1 * kMiB;

Bytes file_slot_bytes(Bytes n) { return round_up(std::max<Bytes>(n, 1), kAlignment); }

bool aligned(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p) % static_cast<std::uintptr_t>(kAlignment) == 0;
}

bool no_space(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_ = -1;
};

UniqueFd open_unlinked(const std::string& directory) {
  UniqueFd fd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd.get() >= 0) return fd;
  const int error = errno;
  if (error == EOPNOTSUPP || error == EISDIR || error == EINVAL) {
    std::string name = directory + "/lms-XXXXXX";
    UniqueFd named(::mkostemp(name.data(), O_CLOEXEC));
    if (named.get() >= 0) {
      ::unlink(name.c_str());
      return named;
    }
  }
  throw BadSetting("file store: no file can be made in directory \"" + directory +
                   "\": " + std::strerror(error) + ". Name a writable directory on a disk");
}

void refuse_memory_file_system(int fd, const std::string& directory) {
  struct statfs system {};
  if (::fstatfs(fd, &system) != 0) return;
  const auto type = static_cast<std::uint64_t>(system.f_type);
  if (type != TMPFS_MAGIC && type != RAMFS_MAGIC) return;
  throw BadSetting("file store: directory \"" + directory +
                   "\" is kept in memory (tmpfs), so that bytes that leave for it would free none. "
                   "Name a directory on a disk (often /var/tmp)");
}

// Some file systems accept the flag and refuse the transfer.
bool enable_direct(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_DIRECT) != 0) return false;
  const auto page = MappedMemory::anonymous(kAlignment);
  const bool works = page && ::pwrite(fd, page.data(), kAlignment, 0) == kAlignment &&
                     ::pread(fd, page.data(), kAlignment, 0) == kAlignment;
  if (!works) ::fcntl(fd, F_SETFL, flags);
  // Only the probe is lost if this fails; growing sets the length again.
  [[maybe_unused]] const int ignored = ::ftruncate(fd, 0);
  return works;
}

struct Quarantined {
  Bytes offset;
  Bytes size;
  std::uint64_t born;   // forks counted when it was acquired ...
  std::uint64_t freed;  // ... and when it was freed: those in between may have seen it
};

}  // namespace

class FileStore::Impl {
 public:
  Impl(Options options, std::shared_ptr<FileIo> io)
      : options_(std::move(options)),
        io_(io ? std::move(io) : std::make_shared<FileIo>()),
        owner_(::getpid()) {
    if (options_.limit < 0) throw BadSetting("file store: the limit must not be negative");
    if (options_.step <= 0) throw BadSetting("file store: the step must be positive");
    options_.limit = round_down(options_.limit, kAlignment);
    options_.step = round_up(options_.step, kAlignment);
    file_ = open_unlinked(options_.directory);
    if (!options_.allow_memory_file_system) {
      refuse_memory_file_system(file_.get(), options_.directory);
    }
    direct_ = options_.direct && enable_direct(file_.get());
  }

  [[nodiscard]] int fd() const noexcept { return file_.get(); }
  [[nodiscard]] bool in_child() const noexcept { return ::getpid() != owner_; }

  static FileSlot acquire(const std::shared_ptr<Impl>& self, Bytes n) {
    self->refuse_in_child();
    if (n < 0) throw BadSetting("file store: a negative size was asked for");
    FileSlot slot;
    const std::lock_guard lock(self->mutex_);
    slot.offset_ = self->obtain(n);
    slot.size_ = n;
    slot.born_ = self->epochs_.count();
    slot.impl_ = self;
    return slot;
  }

  void release(Bytes offset, Bytes n, std::uint64_t born) noexcept {
    // The child's idea of what is free means nothing, and its lock may be held for ever.
    if (in_child()) return;
    const Bytes size = file_slot_bytes(n);
    const std::lock_guard lock(mutex_);
    used_ -= size;
    const auto now = epochs_.count();
    if (epochs_.any_living(born, now)) {
      quarantine_.push_back({offset, size, born, now});
      quarantined_ += size;
    } else {
      free_.put(offset, size);
    }
  }

  bool may_overwrite(std::uint64_t born) {
    if (in_child()) return false;
    const std::lock_guard lock(mutex_);
    return !epochs_.any_living(born, epochs_.count());
  }

  void write(Bytes offset, Bytes room, const void* data, std::size_t n) {
    refuse_in_child();
    const auto* from = static_cast<const char*>(data);
    const auto size = static_cast<Bytes>(n);
    check_size(size, room);
    if (!direct_) {
      write_all(from, size, offset);
      flush(offset, size);
      drop(offset, size);
    } else {
      const Bytes straight = aligned(from) ? round_down(size, kAlignment) : 0;
      write_all(from, straight, offset);
      if (straight < size) {
        auto bounce = make_bounce(size - straight);
        for (Bytes at = straight; at < size; at += bounce.size()) {
          const Bytes part = std::min(bounce.size(), size - at);
          const Bytes whole = round_up(part, kAlignment);
          auto* buffer = static_cast<char*>(bounce.data());
          std::memcpy(buffer, from + at, static_cast<std::size_t>(part));
          std::memset(buffer + part, 0, static_cast<std::size_t>(whole - part));
          write_all(buffer, whole, offset + at);
        }
      }
    }
    written_ += size;
  }

  void read(Bytes offset, Bytes room, void* data, std::size_t n) {
    auto* to = static_cast<char*>(data);
    const auto size = static_cast<Bytes>(n);
    check_size(size, room);
    if (!direct_) {
      read_all(to, size, offset);
      drop(offset, size);
    } else {
      // What was written through a mapping is in the page cache, where a direct read does not look.
      flush(offset, size);
      const Bytes straight = aligned(to) ? round_down(size, kAlignment) : 0;
      read_all(to, straight, offset);
      if (straight < size) {
        auto bounce = make_bounce(size - straight);
        for (Bytes at = straight; at < size; at += bounce.size()) {
          const Bytes part = std::min(bounce.size(), size - at);
          read_all(static_cast<char*>(bounce.data()), round_up(part, kAlignment), offset + at);
          std::memcpy(to + at, bounce.data(), static_cast<std::size_t>(part));
        }
      }
    }
    read_ += size;
  }

  void drop_cache(Bytes offset, Bytes n) noexcept {
    ::sync_file_range(fd(), offset, file_slot_bytes(n), kWriteAndWait);
    drop(offset, file_slot_bytes(n));
  }

  [[nodiscard]] Stats stats() const {
    const std::lock_guard lock(mutex_);
    Stats s;
    s.limit = options_.limit;
    s.reserved = length_;
    s.used = used_;
    s.peak_used = peak_used_;
    s.quarantined = quarantined_;
    s.written = written_;
    s.read = read_;
    s.direct = direct_;
    return s;
  }

  void reset_peak() {
    const std::lock_guard lock(mutex_);
    peak_used_ = used_;
  }

  void set_limit(Bytes limit) {
    if (limit < 0) throw BadSetting("file store: the limit must not be negative");
    {
      const std::lock_guard lock(mutex_);
      options_.limit = round_down(limit, kAlignment);
    }
    trim();
  }

  void trim() noexcept {
    if (in_child()) return;
    const std::lock_guard lock(mutex_);
    end_quarantine();
    const Bytes tail = free_.tail(length_);
    if (tail == 0 || ::ftruncate(fd(), length_ - tail) != 0) return;
    free_.cut_tail(length_, tail);
    length_ -= tail;
  }

  void on_fork_prepare() noexcept {
    mutex_.lock();
    epochs_.prepare(used_ > 0);
  }
  void on_fork_parent() noexcept {
    epochs_.parent();
    mutex_.unlock();
  }
  void on_fork_child() noexcept {
    epochs_.child();
    mutex_.unlock();
  }

 private:
  static constexpr unsigned kWriteAndWait =
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;

  void refuse_in_child() const {
    if (in_child()) throw Error("file store: belongs to the parent process; a child only reads");
  }

  static void check_size(Bytes size, Bytes room) {
    if (size < 0 || size > file_slot_bytes(room)) {
      throw Error("file store: a transfer of " + format_bytes(size) + " in a slot of " +
                  format_bytes(room));
    }
  }

  static MappedMemory make_bounce(Bytes size) {
    auto bounce = MappedMemory::anonymous(std::min(kBounce, round_up(size, kAlignment)));
    if (!bounce) throw OutOfMemory("file store: no memory for a transfer buffer");
    return bounce;
  }

  // The functions below take the lock as held.

  Bytes obtain(Bytes n) {
    if (n > std::numeric_limits<Bytes>::max() - kAlignment) throw_full(n, 0);
    const Bytes size = file_slot_bytes(n);
    auto offset = free_.take(size);
    if (!offset) {
      end_quarantine();
      offset = free_.take(size);
    }
    if (!offset) {
      grow(size);
      offset = free_.take(size);
    }
    used_ += size;
    peak_used_ = std::max(peak_used_, used_);
    return offset.value();
  }

  void end_quarantine() noexcept {
    std::erase_if(quarantine_, [this](const Quarantined& q) {
      if (epochs_.any_living(q.born, q.freed)) return false;
      free_.put(q.offset, q.size);
      quarantined_ -= q.size;
      return true;
    });
  }

  // Lengthens the file until its free tail holds `size`.
  void grow(Bytes size) {
    const Bytes missing = size - free_.tail(length_);
    const Bytes room = options_.limit - length_;
    const Bytes disk = io_->disk_free(fd());
    if (missing > room || (disk >= 0 && missing > disk)) throw_full(size, 0);
    // Leave a nearly full disk to others.
    const Bytes step = disk < 0 ? options_.step : std::min(options_.step, disk / 2);
    const Bytes wanted = std::min(std::max(round_down(step, kAlignment), missing), room);
    int error = extend(wanted);
    if (error != 0 && wanted > missing) error = extend(missing);
    if (error != 0) throw_full(size, error);
  }

  // Returns an errno, 0 on success.
  int extend(Bytes n) {
    int error = 0;
    do {
      error = io_->fallocate(fd(), length_, n) == 0 ? 0 : errno;
    } while (error == EINTR);
    if (error == EOPNOTSUPP || error == ENOSYS) {
      error = ::ftruncate(fd(), length_ + n) == 0 ? 0 : errno;
    }
    if (error != 0) {
      // A failed call may have allocated a part.
      [[maybe_unused]] const int ignored = ::ftruncate(fd(), length_);
      return error;
    }
    free_.put(length_, n);
    length_ += n;
    return 0;
  }

  [[noreturn]] void throw_full(Bytes size, int error) {
    std::string text = "file store in \"" + options_.directory + "\" is full: wanted " +
                       format_bytes(size) + " in one piece, " + format_bytes(used_) +
                       " in use, limit " + format_bytes(options_.limit) + ", free on the disk ";
    const Bytes disk = io_->disk_free(fd());
    text += disk < 0 ? "unknown" : format_bytes(disk);
    if (quarantined_ > 0) {
      text += "; " + format_bytes(quarantined_) + " wait for forked processes to end";
    }
    if (error != 0) text += std::string(" (") + std::strerror(error) + ")";
    throw TierFull(text);
  }

  // The functions below run without the lock.

  void write_all(const char* from, Bytes n, Bytes offset) {
    for (Bytes done = 0; done < n;) {
      const auto part = static_cast<std::size_t>(std::min(n - done, kMaxTransfer));
      const auto moved = io_->pwrite(fd(), from + done, part, offset + done);
      if (moved < 0) {
        const int error = errno;
        if (error == EINTR) continue;
        const std::string text = "file store in \"" + options_.directory + "\": writing " +
                                 format_bytes(n) + " failed: " + std::strerror(error);
        if (no_space(error)) throw TierFull(text);
        throw Error(text);
      }
      done += progress(moved, n - done);
    }
  }

  void read_all(char* to, Bytes n, Bytes offset) {
    for (Bytes done = 0; done < n;) {
      const auto part = static_cast<std::size_t>(std::min(n - done, kMaxTransfer));
      const auto moved = io_->pread(fd(), to + done, part, offset + done);
      if (moved < 0) {
        const int error = errno;
        if (error == EINTR) continue;
        throw Error("file store in \"" + options_.directory + "\": reading " + format_bytes(n) +
                    " failed: " + std::strerror(error));
      }
      done += progress(moved, n - done);
    }
  }

  // What a short transfer counts for: a direct one can only go on at an aligned place.
  [[nodiscard]] Bytes progress(Bytes moved, Bytes asked) const {
    const Bytes counted = direct_ && moved < asked ? round_down(moved, kAlignment) : moved;
    if (counted <= 0) {
      throw Error("file store in \"" + options_.directory + "\": a transfer made no progress");
    }
    return counted;
  }

  void flush(Bytes offset, Bytes n) const {
    if (n == 0 || ::sync_file_range(fd(), offset, n, kWriteAndWait) == 0) return;
    const int error = errno;
    const bool unsupported = error == ENOSYS || error == EINVAL || error == ESPIPE;
    if (unsupported && ::fdatasync(fd()) == 0) return;
    throw Error("file store in \"" + options_.directory +
                "\": writing back failed: " + std::strerror(errno));
  }

  void drop(Bytes offset, Bytes n) const noexcept {
    if (n > 0) ::posix_fadvise(fd(), offset, n, POSIX_FADV_DONTNEED);
  }

  Options options_;
  std::shared_ptr<FileIo> io_;
  const pid_t owner_;
  UniqueFd file_;
  bool direct_ = false;

  mutable std::mutex mutex_;  // also held across fork()
  ExtentMap free_;
  ForkEpochs epochs_;
  std::vector<Quarantined> quarantine_;
  Bytes length_ = 0;
  Bytes used_ = 0;
  Bytes peak_used_ = 0;
  Bytes quarantined_ = 0;
  std::atomic<Bytes> written_ = 0;
  std::atomic<Bytes> read_ = 0;
};

FileStore::FileStore(Options options, std::shared_ptr<FileIo> io)
    : impl_(std::make_shared<Impl>(std::move(options), std::move(io))) {}
FileStore::~FileStore() = default;
FileStore::FileStore(FileStore&&) noexcept = default;
FileStore& FileStore::operator=(FileStore&&) noexcept = default;

FileSlot FileStore::acquire(Bytes n) { return Impl::acquire(impl_, n); }

void FileStore::write(const FileSlot& slot, const void* data, std::size_t n) {
  if (!owns(slot)) throw Error("file store: a slot of another store");
  impl_->write(slot.offset_, slot.size_, data, n);
}

void FileStore::read(const FileSlot& slot, void* data, std::size_t n) const {
  if (!owns(slot)) throw Error("file store: a slot of another store");
  impl_->read(slot.offset_, slot.size_, data, n);
}

void FileStore::drop_cache(const FileSlot& slot) const noexcept {
  if (owns(slot)) impl_->drop_cache(slot.offset_, slot.size_);
}

bool FileStore::may_overwrite(const FileSlot& slot) {
  return owns(slot) && impl_->may_overwrite(slot.born_);
}

bool FileStore::owns(const FileSlot& slot) const { return slot.impl_ == impl_; }
int FileStore::fd() const { return impl_->fd(); }
bool FileStore::in_child() const noexcept { return impl_->in_child(); }
FileStore::Stats FileStore::stats() const { return impl_->stats(); }
void FileStore::reset_peak() { impl_->reset_peak(); }
void FileStore::set_limit(Bytes limit) { impl_->set_limit(limit); }
void FileStore::trim() noexcept { impl_->trim(); }
void FileStore::on_fork_prepare() noexcept { impl_->on_fork_prepare(); }
void FileStore::on_fork_parent() noexcept { impl_->on_fork_parent(); }
void FileStore::on_fork_child() noexcept { impl_->on_fork_child(); }

FileSlot::FileSlot(FileSlot&& other) noexcept
    : impl_(std::move(other.impl_)),
      offset_(std::exchange(other.offset_, 0)),
      size_(std::exchange(other.size_, 0)),
      born_(std::exchange(other.born_, 0)) {}

FileSlot& FileSlot::operator=(FileSlot&& other) noexcept {
  if (this != &other) {
    release();
    impl_ = std::move(other.impl_);
    offset_ = std::exchange(other.offset_, 0);
    size_ = std::exchange(other.size_, 0);
    born_ = std::exchange(other.born_, 0);
  }
  return *this;
}

int FileSlot::fd() const noexcept { return impl_ ? impl_->fd() : -1; }

void FileSlot::release() noexcept {
  const auto impl = std::move(impl_);
  if (!impl) return;
  impl->release(std::exchange(offset_, 0), std::exchange(size_, 0), std::exchange(born_, 0));
}

}  // namespace lms
