#include "tiers/fork_epochs.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <utility>

namespace lms {
namespace {

void close_end(int& fd) noexcept {
  if (fd >= 0) ::close(std::exchange(fd, -1));
}

bool hung_up(int read_end) noexcept {
  if (read_end < 0) return false;
  pollfd query{read_end, 0, 0};
  return ::poll(&query, 1, 0) == 1 && (query.revents & POLLHUP) != 0;
}

}  // namespace

ForkEpochs::~ForkEpochs() {
  for (auto& epoch : living_) close_end(epoch.read_end);
  close_end(write_end_);
}

void ForkEpochs::prepare(bool at_stake) noexcept {
  if (!at_stake) return;
  std::array<int, 2> ends = {-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) ends = {-1, -1};
  write_end_ = ends[1];
  living_.push_back({++count_, ends[0]});
}

void ForkEpochs::parent() noexcept { close_end(write_end_); }

void ForkEpochs::child() noexcept {
  // The write end stays open: it is what tells the parent that this process lives.
  write_end_ = -1;
  for (auto& epoch : living_) close_end(epoch.read_end);
  living_.clear();
}

bool ForkEpochs::any_living(std::uint64_t first, std::uint64_t last) noexcept {
  for (auto it = living_.begin(); it != living_.end();) {
    if (it->number > first && it->number <= last) {
      if (!hung_up(it->read_end)) return true;
      close_end(it->read_end);
      it = living_.erase(it);
    } else {
      ++it;
    }
  }
  return false;
}

}  // namespace lms
