#include "adapters/torch/slices/run_cuts.h"

#include <ATen/Functions.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <utility>

#include "adapters/torch/device_manager.h"
#include "adapters/torch/errors.h"
#include "adapters/torch/registry.h"
#include "adapters/torch/replay/lineages.h"

namespace lms::torch {
namespace {

/// Rows of the first part, which tells what a row of a result takes.
constexpr std::int64_t kFirstRows = 16;

/// That the error names; 0: it names none.
Bytes limit_named(const std::exception& error) {
  const auto* shortage = dynamic_cast<const Shortage*>(&error);
  return shortage != nullptr ? shortage->least_limit : 0;
}

/// Why there is no room below either; empty: there is, or nobody has said.
std::string full_below(const std::exception& error) {
  if (const auto* full = dynamic_cast<const TierFull*>(&error)) return full->what();
  const auto* shortage = dynamic_cast<const Shortage*>(&error);
  return shortage != nullptr ? shortage->below : "";
}

}  // namespace

/// The parts that are under way: the last copies of the one before, the kernel of one, and the
/// first copies of the next. Waits for all copies when it ends.
class Cutter::Running {
 public:
  explicit Running(Cutter& cutter) : cutter_(cutter) {}
  ~Running() {
    for (Part& part : parts_) {
      for (const auto* copies : {&part.reads, &part.writes}) {
        for (const Below::Copy& copy : *copies) {
          try {
            cutter_.below_.wait(copy);
          } catch (const std::exception&) {
            // The device has failed: nothing runs any more.
          }
        }
      }
    }
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  Part& add() { return parts_.emplace_back(); }
  [[nodiscard]] std::size_t size() const { return parts_.size(); }
  void retire_first() {
    cutter_.retire(parts_.front());
    parts_.pop_front();
  }

 private:
  Cutter& cutter_;
  std::deque<Part> parts_;
};

Cutter::Cutter(DeviceManager& manager, CalledKernel called, const c10::Stack& arguments,
               std::vector<Cut> cuts, const RowMaker* maker)
    : manager_(manager),
      below_(*manager.below()),
      called_(called),
      arguments_(arguments),
      cuts_(std::move(cuts)),
      maker_(maker) {}

Cutter::~Cutter() { let_go(); }

void Cutter::let_go() noexcept {
  if (lent_.empty()) return;
  std::vector<Use> uses;
  for (const Lent& lent : std::exchange(lent_, {})) {
    try {
      below_.end(*lent.use.block, lent.use.writes);
    } catch (const std::exception&) {
      // The device has failed: nothing runs any more.
    }
    uses.push_back(lent.use);
  }
  EngineLock lock = manager_.engine().lock();
  manager_.engine().give_back(lock, uses);
}

// Before and after

std::vector<const Cut*> Cutter::all_cuts() const {
  std::vector<const Cut*> all;
  for (const Cut& cut : cuts_) all.push_back(&cut);
  if (maker_ != nullptr) all.insert(all.end(), maker_->cuts().begin(), maker_->cuts().end());
  return all;
}

StorageUses Cutter::storages_of_others() const {
  StorageUses storages;
  if (maker_ != nullptr) storages.append(maker_->others().begin(), maker_->others().end());
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const bool is_cut = std::ranges::any_of(cuts_, [&](const Cut& cut) {
      return std::ranges::find(cut.operands, i, &CutOperand::argument) != cut.operands.end();
    });
    if (!is_cut) collect_storages(arguments_[i], /*writes=*/false, /*inside=*/false, storages);
  }
  return storages;
}

std::vector<Cutter::Lent> Cutter::choose(Bytes whole) {
  // Kernels get what is not cut as it is, and may hand it to nested operators, which pin it.
  const StorageUses others = storages_of_others();
  std::vector<Lent> wanted;
  for (const bool writes : {true, false}) {  // what is written is moved twice, if it is below
    for (const Cut* const cut : all_cuts()) {
      for (const CutOperand& operand : cut->operands) {
        c10::StorageImpl* const storage = storage_of(operand.tensor);
        const bool known = is_made_here(operand.tensor) ||
                           std::ranges::find(wanted, storage, &Lent::storage) != wanted.end() ||
                           std::ranges::find(others, storage, &StorageUse::storage) != others.end();
        if (operand.writes == writes && !known) wanted.push_back({storage, {nullptr, writes}});
      }
    }
  }
  std::vector<Lent> chosen;
  EngineLock lock = manager_.engine().lock();
  for (Lent& one : wanted) {
    one.use.block = manager_.find_or_track(lock, *one.storage);
    if (one.use.block == nullptr || one.use.block->kept) continue;
    if (one.use.block->size <= whole) {
      whole -= one.use.block->size;
    } else {
      chosen.push_back(one);
    }
  }
  // First of all, so that nothing else has to leave for what stays.
  for (const Lent& one : chosen) evict_early(lock, manager_.engine(), *one.use.block);
  return chosen;
}

bool Cutter::lend(std::vector<Lent> chosen) {
  for (const Result& result : results_) {
    if (result.block != nullptr) {
      chosen.push_back({storage_of(result.tensor), {result.block, /*writes=*/true}});
    }
  }
  std::vector<c10::StorageImpl*> written;
  for (const Lent& one : chosen) {
    if (one.use.writes) written.push_back(one.storage);
  }
  if (!written.empty() && manager_.lineages().any()) manager_.lineages().before_write(written);
  Engine& engine = manager_.engine();
  EngineLock lock = engine.lock(may_wait_as());
  enter_engine(lock, engine);
  std::vector<Use> uses;
  for (const Lent& one : chosen) uses.push_back(one.use);
  if (!engine.lend(lock, uses)) return false;
  lent_ = std::move(chosen);
  manager_.pilot().used_below(lock, uses);
  return std::ranges::all_of(
      uses, [&](const Use& use) { return !use.writes || below_.writable(*use.block); });
}

StorageUses Cutter::what_stays() const {
  StorageUses storages;
  for (const OpInfo::Argument& argument : called_.info.arguments) {
    collect_storages(arguments_[argument.index], argument.writes, /*inside=*/false, storages);
  }
  if (maker_ != nullptr) {
    storages.append(maker_->others().begin(), maker_->others().end());
    for (const Cut* const cut : maker_->cuts()) {
      for (const CutOperand& operand : cut->operands) {
        storages.push_back({storage_of(operand.tensor), /*writes=*/false});
      }
    }
  }
  const auto away = [&](const StorageUse& use) {
    return away_.contains(use.storage) || (maker_ != nullptr && maker_->makes(use.storage));
  };
  storages.erase(std::remove_if(storages.begin(), storages.end(), away), storages.end());
  return storages;
}

Cutter::Outcome Cutter::run(const Room& wanted, std::vector<c10::IValue>& results) {
  mark_pressed();
  manager_.pilot().wake();
  const c10::OptionalDeviceGuard guard(
      manager_.device().is_cpu() ? std::nullopt : std::optional(manager_.device()));
  Room room = wanted;
  here_ = room.here;
  const auto begun = [&] { return cut_ > 0 || row_ > 0; };
  const auto full = [&](const std::exception& error) {
    return dynamic_cast<const TierFull*>(&error) != nullptr && !begun();
  };
  const auto ended = [&](Outcome outcome) {
    thread_state().operator_pins.release();
    let_go();
    return outcome;
  };
  const auto cannot = [&] {
    return ended(begun() || room.whole > 0 ? Outcome::kShort : Outcome::kCannot);
  };
  const auto ran_short = [&](const std::exception& error) {
    limit_named_ = limit_named(error);
    return ended(Outcome::kShort);
  };
  try {
    std::vector<Lent> chosen = choose(room.whole);
    if (chosen.empty() && cuts_.front().results.empty() && maker_ == nullptr) return cannot();
    // What stays comes first: whoever waits for what is lent to another must have lent nothing.
    away_.clear();
    for (const Lent& one : chosen) away_.insert(one.storage);
    thread_state().operator_pins.add(what_stays());
    if (!lend(std::move(chosen))) return cannot();
  } catch (const std::exception& error) {
    full_below_ = full_below(error);
    if (full(error)) return ended(Outcome::kCannot);
    if (!found_no_room(error)) throw;
    return ran_short(error);
  }
  while (cut_ < cuts_.size()) {
    try {
      run_cut(cuts_[cut_], room);
      ++cut_;
      row_ = 0;
    } catch (const std::exception& error) {
      full_below_ = full_below(error);
      if (full(error)) return ended(Outcome::kCannot);
      if (!found_no_room(error)) throw;
      if (smallest_ && room.alone) return ran_short(error);
      manager_.reclaim_everything();
      room.alone = smallest_;
      room.part /= 4;
      room.thirds = false;
    }
  }
  take_results(results);
  let_go();
  return Outcome::kDone;
}

void Cutter::take_results(std::vector<c10::IValue>& results) const {
  results.clear();
  const auto& returns = called_.op.schema().returns();
  if (results_.empty()) {
    if (!returns.empty()) results.push_back(arguments_.front());
    return;
  }
  c10::List<at::Tensor> list;
  for (const Result& result : results_) list.push_back(result.tensor);
  if (returns.front().type()->kind() == c10::TypeKind::ListType) {
    results.emplace_back(std::move(list));
  } else {
    for (const Result& result : results_) results.emplace_back(result.tensor);
  }
}

std::vector<Born> Cutter::born() const {
  std::vector<Born> born;
  for (const Result& result : results_) {
    if (result.block != nullptr) born.push_back({result.block->uid, result.block->size});
  }
  return born;
}

// Parts

Bytes Cutter::shift_of(const CutOperand& operand, std::int64_t row) {
  const std::int64_t first = operand.tensor.storage_offset() + row * operand.row;
  return first * element_bytes(operand.tensor) % kBoundary;
}

Block* Cutter::lent_block(const at::Tensor& tensor) const {
  const auto found = std::ranges::find(lent_, storage_of(tensor), &Lent::storage);
  return found == lent_.end() ? nullptr : found->use.block;
}

c10::Storage Cutter::memory(Bytes bytes) const {
  auto* const allocator = c10::GetAllocator(manager_.device().type());
  const auto size = static_cast<std::size_t>(std::max<Bytes>(bytes, 1));
  return {c10::Storage::use_byte_size_t(), size, allocator->allocate(size), allocator,
          /*resizable=*/true};
}

at::Tensor Cutter::tensor_over(c10::Storage storage, const at::Tensor& like, c10::IntArrayRef sizes,
                               c10::IntArrayRef strides, std::int64_t offset) const {
  const auto key = manager_.device().is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                         c10::DispatchKeySet(key), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

std::int64_t Cutter::rows_of_part(const Cut& cut, std::int64_t row, const Room& room) {
  Bytes bytes = 0;
  for (const CutOperand& operand : cut.operands) {
    const bool unmade = is_made_here(operand.tensor);
    if (lent_block(operand.tensor) != nullptr || unmade) {
      bytes += operand.row * element_bytes(operand.tensor);
    }
    if (unmade) bytes += maker_->bytes_for(operand.tensor, operand.row);
  }
  Bytes made = 0;
  for (const Result& result : results_) made += result.row * element_bytes(result.tensor);
  if (results_.empty() && !cut.results.empty()) {
    // Until they are known: as large as the largest operand.
    for (const CutOperand& operand : cut.operands) {
      made = std::max(made, operand.row * element_bytes(operand.tensor));
    }
    made *= static_cast<Bytes>(cut.results.size());
  }
  if (!cut.moves) bytes += made;
  bytes = std::max<Bytes>(bytes, 1);
  std::int64_t rows =
      room.thirds ? (cut.rows + 2) / 3 : std::max<std::int64_t>(room.part / bytes, 1);
  // What is made here is made in whole rows, from where it needs not be moved.
  std::int64_t unit = cut.unit;
  for (const CutOperand& operand : cut.operands) {
    if (cut.unit > 1 || !is_made_here(operand.tensor)) continue;
    unit = std::max(unit, maker_->unit_of(operand.tensor) / operand.row);
  }
  if (rows < unit) unit = cut.unit;
  if (results_.empty() && !cut.results.empty() && !cut.moves) {
    rows = std::min(rows, std::max(kFirstRows, unit));
  }
  rows = std::min(rows, cut.most);
  const std::int64_t end =
      std::min(cut.rows, cut.chunk == INT64_MAX ? cut.rows : (row / cut.chunk + 1) * cut.chunk);
  rows = std::max(rows / unit * unit, cut.unit);
  smallest_ = rows <= cut.unit;
  return std::min(rows, end - row);
}

void Cutter::set_operands(c10::Stack& arguments, const Cut& cut,
                          std::span<const at::Tensor> staged) {
  for (const auto& [position, value] : cut.replaced) arguments[position] = value;
  c10::List<at::Tensor> list;
  for (std::size_t i = 0; i < cut.operands.size(); ++i) {
    const CutOperand& operand = cut.operands[i];
    if (operand.element < 0) {
      arguments[operand.argument] = staged[i];
      continue;
    }
    if (operand.element == 0) list = c10::List<at::Tensor>();
    list.push_back(staged[i]);
    arguments[operand.argument] = list;
  }
}

void Cutter::run_cut(const Cut& cut, const Room& room) {
  Running running(*this);
  // Two more are under way beside the one that computes, where copies run beside it.
  const bool beside = below_.copies_beside() && !room.alone;
  const auto stage_at = [&](std::int64_t row) -> Part& {
    // Under way before its first copy: if there is no room for its second buffer, that is waited
    // for before the first one goes.
    Part& part = running.add();
    stage(part, cut, row, rows_of_part(cut, row, room));
    return part;
  };
  Part* ahead = nullptr;
  while (row_ < cut.rows) {
    while (!beside && running.size() > 0) running.retire_first();
    Part& now = ahead != nullptr ? *ahead : stage_at(row_);
    const std::int64_t after = now.row + now.rows;
    while (running.size() > 2) running.retire_first();
    ahead = beside && after < cut.rows ? &stage_at(after) : nullptr;
    compute(cut, now);
    take_results(cut, now);
    row_ = after;
  }
  while (running.size() > 0) running.retire_first();
}

}  // namespace lms::torch
