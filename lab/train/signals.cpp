#include "lab/train/signals.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>

namespace lms::train {
namespace {

constexpr std::array<int, 3> kEnding = {SIGINT, SIGTERM, SIGHUP};

// Signal handlers can reach nothing but globals.
std::atomic<int> g_stop = 0;
std::atomic<bool> g_wish = false;

void on_end(int signal) {
  int none = 0;
  if (!g_stop.compare_exchange_strong(none, signal)) ::_exit(128 + signal);
}

void on_wish(int /*signal*/) { g_wish = true; }

}  // namespace

struct Signals::Old {
  std::array<struct sigaction, kEnding.size()> ending;
  struct sigaction wish;
};

Signals::Signals() : old_(new Old()) {
  g_stop = 0;
  g_wish = false;
  struct sigaction action = {};
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  action.sa_handler = on_end;
  for (std::size_t i = 0; i < kEnding.size(); ++i) {
    ::sigaction(kEnding[i], &action, &old_->ending[i]);
  }
  action.sa_handler = on_wish;
  ::sigaction(SIGUSR1, &action, &old_->wish);
}

Signals::~Signals() {
  for (std::size_t i = 0; i < kEnding.size(); ++i) {
    ::sigaction(kEnding[i], &old_->ending[i], nullptr);
  }
  ::sigaction(SIGUSR1, &old_->wish, nullptr);
  delete old_;
}

int Signals::stop() { return g_stop; }

bool Signals::take_wish() { return g_wish.exchange(false); }

}  // namespace lms::train
