#include "tiers/paged_region.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "base/error.h"
#include "tiers/mapped_memory.h"

namespace lms {

PagedRegion PagedRegion::make(Bytes n) {
  if (n < 0) throw BadSetting("paged region: a negative size was asked for");
  const Bytes most = std::numeric_limits<Bytes>::max() - MappedMemory::kPage;
  MappedMemory memory;
  errno = ENOMEM;
  if (n <= most) {
    memory = MappedMemory::anonymous(round_up(std::max<Bytes>(n, 1), MappedMemory::kPage));
  }
  if (!memory) {
    throw OutOfMemory("paged region: the system refused to map " + format_bytes(n) + ": " +
                      MappedMemory::why_refused());
  }
  PagedRegion region;
  region.size_ = n;
  region.mapped_ = memory.size();
  region.data_ = memory.release();
  return region;
}

PagedRegion PagedRegion::make_below(FileStore& store, Bytes n) {
  PagedRegion region = make(n);
  FileSlot slot = store.acquire(region.mapped_);
  auto file = MappedMemory::of_file(store.fd(), slot.offset(), region.mapped_);
  if (!file || !file.move_over(region.data_)) {
    throw TierFull("the file could not be mapped for " + format_bytes(n) + ": " +
                   MappedMemory::why_refused());
  }
  region.slot_ = std::move(slot);
  region.present_ = false;
  return region;
}

PagedRegion::~PagedRegion() {
  if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(mapped_));
}

PagedRegion::PagedRegion(PagedRegion&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(std::exchange(other.mapped_, 0)),
      present_(std::exchange(other.present_, true)),
      discarded_(std::exchange(other.discarded_, false)),
      isolated_(std::exchange(other.isolated_, false)),
      slot_(std::move(other.slot_)),
      copied_(other.copied_) {}

PagedRegion& PagedRegion::operator=(PagedRegion&& other) noexcept {
  PagedRegion taken(std::move(other));
  std::swap(data_, taken.data_);
  std::swap(size_, taken.size_);
  std::swap(mapped_, taken.mapped_);
  std::swap(present_, taken.present_);
  std::swap(discarded_, taken.discarded_);
  std::swap(isolated_, taken.isolated_);
  std::swap(slot_, taken.slot_);
  std::swap(copied_, taken.copied_);
  return *this;
}

Bytes PagedRegion::leave(FileStore& store, bool dirty) {
  if (data_ == nullptr || discarded_ || (!present_ && store.owns(slot_))) return 0;
  if (store.in_child()) throw Error("paged region: bytes cannot leave in a forked child");

  const bool ours = slot_ && store.owns(slot_);
  const auto mapped = static_cast<std::size_t>(mapped_);
  Bytes written = 0;
  if (dirty || !ours || digest_of(data_, mapped) != copied_) {
    if (ours && store.may_overwrite(slot_)) {
      try {
        store.write(slot_, data_, mapped);
      } catch (...) {
        slot_.release();
        throw;
      }
    } else {
      FileSlot fresh = store.acquire(mapped_);
      store.write(fresh, data_, mapped);
      slot_ = std::move(fresh);
    }
    written = size_;
  }
  auto file = MappedMemory::of_file(store.fd(), slot_.offset(), mapped_);
  if (!file || !file.move_over(data_)) {
    const std::string why = MappedMemory::why_refused();
    if (written > 0) slot_.release();  // it is no copy of what came back
    throw TierFull("the file could not be mapped over " + format_bytes(size_) + ": " + why);
  }
  present_ = isolated_ = false;
  return written;
}

Bytes PagedRegion::come_back(FileStore& store, bool keep_copy) {
  if (data_ == nullptr || present_ || discarded_) return 0;
  const bool readable = !isolated_ && store.owns(slot_);

  const auto stay_below = [&]() -> Bytes {
    const std::string why = MappedMemory::why_refused();
    if (usable_below(store)) return 0;
    throw OutOfMemory("paged region: the system refused to map " + format_bytes(size_) + ": " +
                      why);
  };
  auto fresh = MappedMemory::anonymous(mapped_);
  if (!fresh) return stay_below();
  if (!readable) {
    // In another store's file, or a child's own writes in its private mapping.
    std::memcpy(fresh.data(), data_, static_cast<std::size_t>(mapped_));
  } else {
    store.read(slot_, fresh.data(), static_cast<std::size_t>(mapped_));
    // Of what was read, not of what once left: somebody may have written in between.
    if (keep_copy) copied_ = digest_of(fresh.data(), static_cast<std::size_t>(mapped_));
  }
  if (!fresh.move_over(data_)) return stay_below();
  present_ = true;
  // Only now are the pages that were read through the mapping free to go.
  store.drop_cache(slot_);
  if (!keep_copy || !readable) slot_.release();
  isolated_ = false;
  return size_;
}

bool PagedRegion::usable_below(FileStore& store) const {
  return data_ != nullptr && !present_ && !discarded_ && (isolated_ || store.may_overwrite(slot_));
}

void PagedRegion::discard() {
  if (data_ == nullptr || discarded_) return;
  // A private mapping without access costs nothing, and is fenced.
  if (::mmap(data_, static_cast<std::size_t>(mapped_), PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    throw Error("paged region: " + format_bytes(size_) +
                " could not be given back: " + std::strerror(errno));
  }
  slot_.release();
  present_ = false;
  discarded_ = true;
}

void PagedRegion::renew() {
  if (!discarded_) return;
  auto fresh = MappedMemory::anonymous(mapped_);
  // What lies there is private memory as well, though less of it in huge pages.
  const auto n = static_cast<std::size_t>(mapped_);
  if ((!fresh || !fresh.move_over(data_)) && ::mprotect(data_, n, PROT_READ | PROT_WRITE) != 0) {
    throw OutOfMemory("paged region: the system refused to map " + format_bytes(size_) + ": " +
                      MappedMemory::why_refused());
  }
  present_ = true;
  discarded_ = false;
}

bool PagedRegion::renew_with(PagedRegion& other) {
  if (!discarded_ || !other.present_ || other.mapped_ != mapped_) return false;
  const auto n = static_cast<std::size_t>(mapped_);
  if (::mremap(other.data_, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, data_) == MAP_FAILED) return false;
  other.data_ = nullptr;
  other = PagedRegion();
  present_ = true;
  discarded_ = false;
  return true;
}

bool PagedRegion::copy_matches(FileStore& store) const {
  if (!has_copy()) return true;
  const MappedMemory copy = MappedMemory::anonymous(mapped_);
  if (!copy) throw OutOfMemory("paged region: no memory to check a copy with");
  store.read(slot_, copy.data(), static_cast<std::size_t>(size_));
  return std::memcmp(copy.data(), data_, static_cast<std::size_t>(size_)) == 0;
}

void PagedRegion::drop_copy() noexcept {
  if (present_) slot_.release();
}

void PagedRegion::isolate_in_child() noexcept {
  if (data_ == nullptr || present_ || discarded_ || isolated_) return;
  const auto n = static_cast<std::size_t>(mapped_);
  isolated_ = true;
  if (::mmap(data_, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, slot_.fd(),
             slot_.offset()) == MAP_FAILED) {
    // A fault of the child is better than a write into the parent's bytes.
    ::mprotect(data_, n, PROT_READ);
  }
}

}  // namespace lms
