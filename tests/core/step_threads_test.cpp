#include "pilot/step_threads.h"

#include <gtest/gtest.h>

namespace lms {
namespace {

constexpr bool kBackward = true;
constexpr bool kForward = false;

/// One operator after another; true if all are the step's.
bool run(StepThreads& threads, StepThreads::Thread& thread, int operators,
         bool backward = kForward) {
  bool all = true;
  for (int i = 0; i < operators; ++i) {
    all = threads.begin(thread, backward) && all;
    threads.end(thread);
  }
  return all;
}

TEST(StepThreads, ThoseThatTakeTurnsAreAllTheSteps) {
  StepThreads threads;
  StepThreads::Thread main;
  StepThreads::Thread backward{.serves = true};
  EXPECT_TRUE(run(threads, main, 10));
  for (int step = 0; step < 20; ++step) {
    StepThreads::Thread replica;  // as of torch.nn.DataParallel, another one in each step
    EXPECT_TRUE(run(threads, replica, 10));
    EXPECT_TRUE(run(threads, backward, 10, kBackward));
    EXPECT_TRUE(run(threads, main, 10));
  }
}

TEST(StepThreads, WhoRunsLessAtTheSameTimeIsBeside) {
  StepThreads threads;
  StepThreads::Thread main;
  StepThreads::Thread loader;
  EXPECT_TRUE(run(threads, main, 100));
  EXPECT_TRUE(run(threads, loader, 3));  // nobody could know
  EXPECT_TRUE(threads.begin(main, kForward));
  EXPECT_FALSE(threads.begin(loader, kForward));
  threads.end(main);
  EXPECT_FALSE(run(threads, loader, 3));  // wherever it runs them from now on
  EXPECT_TRUE(run(threads, main, 10));
}

TEST(StepThreads, TheOneThatWasFirstGivesWay) {
  StepThreads threads;
  StepThreads::Thread main;
  StepThreads::Thread loader;
  EXPECT_TRUE(run(threads, main, 100));
  EXPECT_TRUE(run(threads, loader, 3));
  EXPECT_TRUE(threads.begin(loader, kForward));
  EXPECT_TRUE(threads.begin(main, kForward));
  EXPECT_FALSE(main.beside);
  EXPECT_FALSE(run(threads, loader, 1));
  EXPECT_TRUE(loader.beside);
  threads.end(main);
  EXPECT_TRUE(run(threads, main, 10));
}

TEST(StepThreads, WhoTrainsIsTheStepsHoweverMuchALoaderRuns) {
  StepThreads threads;
  StepThreads::Thread main;
  StepThreads::Thread loader;
  EXPECT_TRUE(run(threads, loader, 500));
  EXPECT_TRUE(run(threads, main, 20));
  EXPECT_TRUE(run(threads, main, 2, kBackward));
  EXPECT_TRUE(threads.begin(loader, kForward));
  EXPECT_TRUE(threads.begin(main, kForward));
  threads.end(main);
  EXPECT_FALSE(run(threads, loader, 100));
  EXPECT_TRUE(run(threads, main, 20));
}

TEST(StepThreads, AutogradsThreadsServeTheOneThatWaits) {
  StepThreads threads;
  StepThreads::Thread main;
  StepThreads::Thread backward{.serves = true};
  StepThreads::Thread loader;
  EXPECT_TRUE(run(threads, main, 100));
  EXPECT_TRUE(threads.begin(backward, kBackward));
  EXPECT_FALSE(threads.begin(loader, kForward));
  threads.end(backward);
  EXPECT_TRUE(threads.begin(backward, kBackward));
  EXPECT_TRUE(threads.begin(main, kForward))
      << "who does most goes on while its backward pass runs";
  EXPECT_TRUE(run(threads, backward, 10, kBackward));
}

TEST(StepThreads, WhoGoesOnAloneIsTheStepsInTheEnd) {
  StepThreads threads;
  StepThreads::Thread first;
  StepThreads::Thread trains;
  EXPECT_TRUE(run(threads, first, 100));
  EXPECT_TRUE(threads.begin(first, kForward));
  EXPECT_FALSE(threads.begin(trains, kForward));
  threads.end(first);
  EXPECT_FALSE(run(threads, trains, 100));
  (void)run(threads, trains, 100, kBackward);
  EXPECT_TRUE(run(threads, trains, 10));
  EXPECT_TRUE(threads.begin(trains, kForward));
  EXPECT_FALSE(threads.begin(first, kForward));
}

TEST(StepThreads, EachDeviceHasItsOwn) {
  StepThreads one;
  StepThreads other;
  StepThreads::Thread main;
  StepThreads::Thread second;
  EXPECT_TRUE(one.begin(main, kForward));
  EXPECT_TRUE(other.begin(second, kForward));
}

}  // namespace
}  // namespace lms
