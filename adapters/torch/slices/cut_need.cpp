// What an operator in slices needs at least.

#include <ATen/EmptyTensor.h>

#include <algorithm>

#include "adapters/torch/device_manager.h"
#include "adapters/torch/operators/results.h"
#include "adapters/torch/slices/run_cuts.h"

namespace lms::torch {

std::vector<Bytes> Cutter::made_by_part(const Cut& cut, std::int64_t rows) const {
  std::vector<Bytes> made;
  if (cut.results.empty() || cut.moves) return made;
  for (const Result& result : results_) {
    made.push_back(rows * result.row * element_bytes(result.tensor));
  }
  if (!made.empty()) return made;
  c10::Stack arguments = arguments_;
  std::vector<at::Tensor> staged;
  Bytes largest = 0;
  for (const CutOperand& operand : cut.operands) {
    std::vector<std::int64_t> sizes = operand.sizes;
    std::vector<std::int64_t> strides = operand.strides;
    sizes.insert(sizes.begin(), rows);
    strides.insert(strides.begin(), operand.row);
    staged.emplace_back(
        at::detail::empty_strided_meta(sizes, strides, operand.tensor.scalar_type()));
    largest = std::max(largest, static_cast<Bytes>(staged.back().storage().nbytes()));
  }
  set_operands(arguments, cut, staged);
  made = result_bytes(called_.op, arguments, manager_.device());
  // Where nobody can tell: as large as the largest operand.
  if (made.empty()) made.assign(cut.results.size(), largest);
  return made;
}

Bytes Cutter::room_of_parts() const {
  // After so many parts their places against the boundary are the same again.
  constexpr std::int64_t kPlaces = 512;
  Bytes most = 0;
  for (const Cut& cut : cuts_) {
    const std::int64_t unit = std::min(cut.unit, cut.rows);
    Bytes made = 0;
    for (const Bytes bytes : made_by_part(cut, unit)) made += manager_.room_of(bytes);
    const std::int64_t chunk = std::min(cut.chunk, cut.rows);
    for (std::int64_t begin = 0; begin < cut.rows; begin += chunk) {
      const std::int64_t end = std::min(cut.rows, begin + chunk);
      for (std::int64_t at = 0; at < kPlaces && begin + at * unit < end; ++at) {
        const std::int64_t row = begin + at * unit;
        const std::int64_t rows = std::min(unit, end - row);
        Bytes sum = made;
        for (const CutOperand& operand : cut.operands) {
          if (!away_.contains(operand.tensor.storage().unsafeGetStorageImpl())) continue;
          sum += manager_.room_of(shift_of(operand, row) +
                                  rows * operand.row * element_bytes(operand.tensor));
        }
        most = std::max(most, sum);
      }
    }
  }
  return most;
}

void Cutter::throw_short() {
  Bytes requested = room_of_parts();
  manager_.reclaim_everything();  // what is to come must not be there
  {
    EngineLock lock = manager_.engine().lock();
    for (c10::StorageImpl* const storage : away_) {
      // What was dropped is computed on the device, before it is lent.
      const Block* const block = manager_.find(lock, *storage);
      const bool dropped = block != nullptr && block->state == BlockState::kDropped;
      if (dropped) requested = std::max(requested, block->size);
    }
    requested += Pins::bytes_to_come(lock, manager_, what_stays());
  }
  throw_out_of_memory(manager_, {.requested = requested,
                                 .least_limit = limit_named_,
                                 .reason = full_below_,
                                 .written = half_written() ? Written::kPart : Written::kNothing});
}

}  // namespace lms::torch
