#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <stdexcept>

#include "engine_fixture.h"

namespace lms::testing {

/// A world in which it is known of some blocks how their contents come about.
class EngineDrop : public ::testing::Test {
 protected:
  void SetUp() override { hook(world); }
  void hook(World& in) {
    in.sim.set_hooks({.drop =
                          [this](SimBlock& block) {
                            if (dropping) dropping(block);
                            return values.contains(&block);
                          },
                      .before_count =
                          [this] {
                            if (before_taking) before_taking();
                          },
                      .rematerialise = [this](SimBlock& block) { return compute(block); }});
  }
  /// A used block with a lineage.
  SimBlock& made(Bytes size, std::uint64_t value) {
    SimBlock& block = world.used(size, value);
    values[&block] = value;
    return block;
  }
  bool compute(SimBlock& block) {
    ++computed;
    if (during) during(block);
    if (fails > 0) {
      --fails;
      throw std::runtime_error("cannot compute now");
    }
    block.fill(values.at(&block));
    return true;
  }

  World world{40};
  std::map<SimBlock*, std::uint64_t> values;
  std::function<void(SimBlock&)> during;
  std::function<void(SimBlock&)> dropping;
  std::function<void()> before_taking;
  int computed = 0;
  int fails = 0;
};

}  // namespace lms::testing
