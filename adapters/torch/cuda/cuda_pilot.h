#pragma once

#include "adapters/torch/cuda/cuda_memory.h"
#include "cuda/profiler.h"
#include "pilot/pilot.h"

namespace lms::torch {

class CudaManager;

/// What planning asks of a CUDA device.
class CudaPilotDevice final : public PilotDevice {
 public:
  CudaPilotDevice(CudaManager& manager, CudaMemory& memory, c10::Device device)
      : manager_(manager), memory_(memory), device_(device) {}

  void start_laps() override;
  void begin_lap() override;
  void restart_lap() override;
  void lap() override;
  Laps finish_laps() override;
  void drop_laps() override;
  Room room(bool first) override;
  Bytes still_room(Bytes room) override;
  [[nodiscard]] bool obstructed(Bytes bytes) override;
  void clear_way() override;
  [[nodiscard]] std::int64_t misplaced() const override;
  [[nodiscard]] bool at_home(const Block& block) override;
  LinkModel link() override;
  [[nodiscard]] bool copies_beside() const override { return true; }
  bool make_room_ahead(EngineLock& lock, Engine& engine, Bytes bytes,
                       const std::function<bool(const Block&)>& spare) override;
  void remake_ghost(BlockUid uid, const std::vector<Bytes>& addresses) override;
  void drop_ghost(BlockUid uid) override;
  void drop_ghosts() override;
  void defer_updates(const std::vector<BlockUid>& written) override;
  void show(Stage stage, bool begins) noexcept override;
  void say(const std::string& line) override;

 private:
  void begin_anew();
  void give_back_cached();
  [[nodiscard]] bool holds_what_stays();

  CudaManager& manager_;
  CudaMemory& memory_;
  const c10::Device device_;
  LinkModel link_;                ///< the planning thread's
  cuda::RangeId step_range_ = 0;  ///< guarded by the pilot's lock
};

}  // namespace lms::torch
