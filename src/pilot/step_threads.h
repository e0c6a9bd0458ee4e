#pragma once

#include <atomic>
#include <cstdint>

namespace lms {

/// Tells whose operators make up the step, where several threads run some. Those of threads that
/// take turns all do (one waits while another runs its model). But operators of two that run at the
/// same time interleave differently in every step: then one is the step's, and what the other does
/// (receive batches, save weights) is beside it, until it does more than the step's.
///
/// Of one device's operators; but a thread that is beside the step on one is so on all.
/// Thread-safe; what it goes by is relaxed, since a wrong answer costs a plan.
class StepThreads {
 public:
  /// What is known of one thread. Of that thread alone.
  struct Thread {
    std::uint32_t number = next_number();
    bool serves = false;  ///< one of autograd's: the step's thread waits for it
    bool beside = false;  ///< what it does is not the step's
    std::uint64_t weight = 0;
  };

  /// An outermost operator of the thread begins; `backward`: of a backward pass, which (where
  /// autograd has no threads of its own: on the CPU) only who trains runs. Returns true if it is
  /// the step's; sets Thread::beside.
  bool begin(Thread& thread, bool backward);
  /// It has ended.
  void end(const Thread& thread);

 private:
  /// A thread's number, whether it serves, and its weight, in one word; 0: none.
  using Word = std::uint64_t;
  [[nodiscard]] static Word word_of(const Thread& thread);
  [[nodiscard]] static std::uint32_t number_in(Word word);
  [[nodiscard]] static bool serves(Word word);
  [[nodiscard]] static std::uint64_t weight_in(Word word);
  [[nodiscard]] static std::uint32_t next_number();
  [[nodiscard]] bool loses(Word one, Word other) const;
  [[nodiscard]] bool outweighs(const Thread& thread) const;

  std::atomic<Word> running_{0};           ///< whose operator runs that is the step's
  std::atomic<Word> heaviest_{0};          ///< of the step's, but for those that serve
  std::atomic<std::uint32_t> leaving_{0};  ///< number of one that is beside from its next operator
};

}  // namespace lms
