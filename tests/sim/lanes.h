#pragma once

#include <limits>
#include <memory>
#include <string>

#include "engine/engine.h"

namespace lms {

/// A device whose copies run beside the computation, a lane each way, in stream order as on CUDA;
/// no contents. What leaves without a valid copy has its room wait for the copy, and so does what
/// is computed next. The clock is the computation's.
class LaneDevice final : public Mover {
 public:
  struct Options {
    double out_bytes_per_ms = 1;
    double in_bytes_per_ms = 1;
    double latency_ms = 0;  ///< of every copy
  };
  class LaneBlock final : public Block {
   public:
    explicit LaneBlock(Bytes size) : Block(size) {}

   private:
    friend class LaneDevice;
    double arrives_ms_ = 0;
    double copied_ms_ = 0;
  };

  explicit LaneDevice(Options options) : options_(options) {}

  std::optional<Bytes> page_out(Block& block, bool clean) override;
  std::optional<Bytes> copy_below(Block& block) override;
  std::optional<Bytes> page_in(Block& block, bool ahead) override;
  void drop_copy(Block& /*block*/) noexcept override {}
  bool copy_matches(Block& /*block*/) override { return true; }

  /// The computation uses a block that is on the device.
  void use(const Block& block);
  void advance(double ms) { now_ms_ += ms; }
  [[nodiscard]] double now_ms() const { return now_ms_; }
  [[nodiscard]] double waited_ms() const { return waited_ms_; }

 private:
  void wait_until(double ms);
  double copy(double& lane, double after, Bytes bytes, double rate) const;

  const Options options_;
  double now_ms_ = 0;
  double waited_ms_ = 0;
  double out_ms_ = 0;
  double in_ms_ = 0;
};

}  // namespace lms
