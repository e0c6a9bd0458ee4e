#include "pilot/step_threads.h"

#include <algorithm>

namespace lms {
namespace {

constexpr int kNumberBits = 20;
constexpr int kWeightBits = 43;
constexpr std::uint64_t kMostWeight = (std::uint64_t{1} << kWeightBits) - 1;
constexpr std::uint32_t kNumbers = 1U << kNumberBits;
constexpr auto kRelaxed = std::memory_order_relaxed;

/// A loader may run more operators than the model has, but none of a backward pass.
constexpr std::uint64_t kBackward = 1000;

}  // namespace

std::uint32_t StepThreads::next_number() {
  static std::atomic<std::uint32_t> last{0};
  return last.fetch_add(1, kRelaxed) % (kNumbers - 1) + 1;
}

StepThreads::Word StepThreads::word_of(const Thread& thread) {
  const Word number_and_serves = Word{thread.number} << 1U | Word{thread.serves ? 1U : 0U};
  return number_and_serves << kWeightBits | std::min(thread.weight, kMostWeight);
}

std::uint32_t StepThreads::number_in(Word word) {
  return static_cast<std::uint32_t>(word >> (kWeightBits + 1));
}

bool StepThreads::serves(Word word) { return (word >> kWeightBits & 1U) != 0; }

std::uint64_t StepThreads::weight_in(Word word) { return word & kMostWeight; }

/// Of two threads whose operators run at once, the one is beside the step.
bool StepThreads::loses(Word one, Word other) const {
  if (serves(one)) return false;
  if (serves(other)) return number_in(one) != number_in(heaviest_.load(kRelaxed));
  return weight_in(one) < weight_in(other);
}

bool StepThreads::outweighs(const Thread& thread) const {
  constexpr std::uint64_t kMargin = 1000;
  const std::uint64_t most = weight_in(heaviest_.load(kRelaxed));
  return thread.weight > most + most / 8 + kMargin;
}

bool StepThreads::begin(Thread& thread, bool backward) {
  thread.weight += backward ? kBackward : 1;
  if (thread.beside) {
    if (!outweighs(thread)) return false;
    thread.beside = false;
  }
  if (leaving_.load(kRelaxed) == thread.number) {
    leaving_.store(0, kRelaxed);
    thread.beside = true;
    return false;
  }
  const Word mine = word_of(thread);
  const Word other = running_.load(kRelaxed);
  if (other != 0 && number_in(other) != thread.number) {
    if (loses(mine, other)) {
      thread.beside = true;
      return false;
    }
    if (loses(other, mine)) leaving_.store(number_in(other), kRelaxed);
  }
  running_.store(mine, kRelaxed);
  if (!thread.serves) {
    const Word most = heaviest_.load(kRelaxed);
    if (number_in(most) == thread.number || weight_in(most) < thread.weight) {
      heaviest_.store(mine, kRelaxed);
    }
  }
  return true;
}

void StepThreads::end(const Thread& thread) {
  if (number_in(running_.load(kRelaxed)) == thread.number) running_.store(0, kRelaxed);
}

}  // namespace lms
