// One part of a call in slices: what it reads, what it makes, and where that goes.

#include <algorithm>
#include <array>
#include <utility>

#include "adapters/torch/device_manager.h"
#include "adapters/torch/errors.h"
#include "adapters/torch/slices/run_cuts.h"

namespace lms::torch {
at::Tensor Cutter::stage_rows(const CutOperand& operand, std::int64_t row, std::int64_t rows,
                              Pins& pins, std::vector<Below::Copy>& reads) {
  const at::Tensor& tensor = operand.tensor;
  std::vector<std::int64_t> sizes = operand.sizes;
  std::vector<std::int64_t> strides = operand.strides;
  sizes.insert(sizes.begin(), rows);
  strides.insert(strides.begin(), operand.row);
  const std::int64_t first = tensor.storage_offset() + row * operand.row;
  Block* const block = lent_block(tensor);
  if (block == nullptr && !is_made_here(tensor)) {
    return tensor_over(tensor.storage(), tensor, sizes, strides, first);
  }
  const Bytes element = element_bytes(tensor);
  const Bytes bytes = rows * operand.row * element;
  const Bytes shift = shift_of(operand, row);
  c10::Storage buffer = memory(shift + bytes);
  const StorageUse use{buffer.unsafeGetStorageImpl(), /*writes=*/false};
  pins.add({&use, 1});
  at::Tensor staged = tensor_over(std::move(buffer), tensor, sizes, strides, shift / element);
  if (block != nullptr && operand.reads) {
    reads.push_back(below_.read(*block, first * element, staged.mutable_data_ptr(), bytes));
    manager_.sliced_bytes += bytes;
  }
  return staged;
}

at::Tensor Cutter::make_rows(const CutOperand& operand, std::int64_t row, std::int64_t rows,
                             Pins& pins) {
  std::vector<Below::Copy> reads;
  if (!is_made_here(operand.tensor) || !operand.reads) {
    at::Tensor staged = stage_rows(operand, row, rows, pins, reads);
    for (const Below::Copy& copy : reads) below_.wait(copy);
    return staged;
  }
  const std::int64_t first = operand.tensor.storage_offset() + row * operand.row;
  const at::Tensor made = maker_->make(
      operand.tensor, first, first + rows * operand.row,
      [&](const CutOperand& one, std::int64_t from, std::int64_t count, Pins& held) {
        return make_rows(one, from, count, held);
      },
      pins);
  const auto address = reinterpret_cast<std::uintptr_t>(made.const_data_ptr());
  if (static_cast<Bytes>(address % kBoundary) == shift_of(operand, row)) {
    std::vector<std::int64_t> sizes = operand.sizes;
    std::vector<std::int64_t> strides = operand.strides;
    sizes.insert(sizes.begin(), rows);
    strides.insert(strides.begin(), operand.row);
    return tensor_over(made.storage(), made, sizes, strides, made.storage_offset());
  }
  at::Tensor staged = stage_rows(operand, row, rows, pins, reads);
  const std::array<std::int64_t, 1> size = {made.numel()};
  const std::array<std::int64_t, 1> stride = {1};
  tensor_over(staged.storage(), staged, size, stride, staged.storage_offset()).copy_(made);
  return staged;
}

void Cutter::stage(Part& part, const Cut& cut, std::int64_t row, std::int64_t rows) {
  part.arguments = arguments_;
  part.row = row;
  part.rows = rows;
  for (const CutOperand& operand : cut.operands) {
    // What is made here is made by kernels: when it is this part's turn.
    part.staged.push_back(is_made_here(operand.tensor)
                              ? at::Tensor()
                              : stage_rows(operand, row, rows, part.pins, part.reads));
  }
}

void Cutter::compute(const Cut& cut, Part& part) {
  for (const Below::Copy& copy : part.reads) below_.wait(copy);
  // What nested operators pin is the part's.
  ThreadState& state = thread_state();
  Pins outer;
  outer.swap(state.operator_pins);
  try {
    for (std::size_t i = 0; i < cut.operands.size(); ++i) {
      if (part.staged[i].defined()) continue;
      part.staged[i] = make_rows(cut.operands[i], part.row, part.rows, part.pins);
    }
    if (!cut.moves) set_operands(part.arguments, cut, part.staged);
    if (!cut.moves) called_.kernel.callBoxed(called_.op, called_.keys, &part.arguments);
  } catch (...) {
    state.operator_pins.release();
    state.operator_pins.swap(outer);
    throw;
  }
  state.operator_pins.hand_to(part.pins);
  state.operator_pins.swap(outer);
  if (cut.moves) part.made = part.staged;
  if (cut.moves || cut.results.empty()) return;
  for (const c10::IValue& value : part.arguments) {
    if (value.isTensorList()) {
      for (at::Tensor& tensor : value.toTensorVector()) part.made.push_back(std::move(tensor));
    } else {
      part.made.push_back(value.toTensor());
    }
  }
}

std::optional<c10::Storage> Cutter::room_here(Bytes bytes) const {
  if (bytes < manager_.min_block()) return memory(bytes);
  if (!here_) return std::nullopt;
  try {
    return memory(bytes);
  } catch (const std::exception& error) {
    if (!found_no_room(error)) throw;
    return std::nullopt;
  }
}

void Cutter::make_result(const CutResult& spec, const Cut& cut, const at::Tensor& part) {
  std::vector<std::int64_t> sizes = spec.sizes;
  if (sizes.empty()) {
    sizes = spec.leading;
    const auto row = part.sizes().slice(1 + spec.skip);
    sizes.insert(sizes.end(), row.begin(), row.end());
  }
  std::vector<std::int64_t> strides = spec.strides;
  if (strides.empty()) {
    strides.resize(sizes.size());
    std::int64_t stride = 1;
    for (std::size_t d = sizes.size(); d-- > 0;) {
      strides[d] = stride;
      stride *= std::max<std::int64_t>(sizes[d], 1);
    }
  }
  const Bytes bytes = product(sizes) * element_bytes(part);
  Result result;
  result.row = cut.moves ? 1 : part.numel() / part.size(0);
  if (!cut.moves && cut.rows * result.row != product(sizes)) {
    throw Error("LMS: parts of " + called_.info.name + " do not make up the whole");
  }
  c10::Storage storage;
  if (auto here = room_here(bytes)) {
    storage = *std::move(here);
    const StorageUse use{storage.unsafeGetStorageImpl(), /*writes=*/false};
    thread_state().operator_pins.add({&use, 1});
  } else {
    const Below::Made made = below_.make(bytes);
    lent_.push_back({made.storage.get(), {made.block, /*writes=*/true}});
    storage = c10::Storage(made.storage);
    result.block = made.block;
  }
  result.tensor = tensor_over(std::move(storage), part, sizes, strides, 0);
  results_.push_back(std::move(result));
}

void Cutter::write(Part& part, Block& block, Bytes offset, const at::Tensor& from) {
  const Bytes bytes = from.numel() * element_bytes(from);
  part.writes.push_back(below_.write(block, offset, from.const_data_ptr(), bytes));
  manager_.sliced_bytes += bytes;
}

void Cutter::take_results(const Cut& cut, Part& part) {
  if (cut.results.empty()) {
    for (std::size_t i = 0; i < cut.operands.size(); ++i) {
      const CutOperand& operand = cut.operands[i];
      Block* const block = lent_block(operand.tensor);
      if (!operand.writes || block == nullptr) continue;
      const std::int64_t first = operand.tensor.storage_offset() + part.row * operand.row;
      write(part, *block, first * element_bytes(operand.tensor), part.staged[i]);
    }
    return;
  }
  for (std::size_t i = 0; i < part.made.size(); ++i) {
    at::Tensor& made = part.made[i];
    if (!cut.moves && made.size(0) != part.rows) {
      throw Error("LMS: a part of " + called_.info.name + " has another size than its operands");
    }
    if (!made.is_contiguous()) made = made.contiguous();
    const StorageUse use{storage_of(made), /*writes=*/false};
    part.pins.add({&use, 1});
    if (results_.size() == i) make_result(cut.results[i], cut, made);
    const Result& result = results_[i];
    const std::int64_t first = cut.place + part.row * result.row;
    if (result.block != nullptr) {
      write(part, *result.block, first * element_bytes(made), made);
      continue;
    }
    const std::array<std::int64_t, 1> sizes = {made.numel()};
    const std::array<std::int64_t, 1> strides = {1};
    at::Tensor to = tensor_over(result.tensor.storage(), made, sizes, strides, first);
    to.copy_(made.view(-1));
  }
}

void Cutter::retire(Part& part) {
  for (const Below::Copy& copy : part.writes) below_.wait(copy);
  part.writes.clear();
}

}  // namespace lms::torch
