#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <deque>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "adapters/torch/operators/op_info.h"
#include "adapters/torch/slices/below.h"
#include "adapters/torch/slices/cut.h"
#include "adapters/torch/slices/row_maker.h"
#include "adapters/torch/thread_state.h"

namespace lms::torch {

/// An operator's kernel, as the hook has it.
struct CalledKernel {
  const OpInfo& info;
  const c10::SafeKernelFunction& kernel;
  const c10::OperatorHandle& op;
  c10::DispatchKeySet keys;
};

/// Runs the cuts of one call, part by part. What has been done stays done: after kShort it goes on
/// from there. While it lives it holds what it makes below. Rows of what has not been made
/// (`maker`, which is prepared) are made as they are needed.
class Cutter {
 public:
  Cutter(DeviceManager& manager, CalledKernel called, const c10::Stack& arguments,
         std::vector<Cut> cuts, const RowMaker* maker = nullptr);
  ~Cutter();
  Cutter(const Cutter&) = delete;
  Cutter& operator=(const Cutter&) = delete;

  enum class Outcome : std::uint8_t {
    kDone,
    kCannot,  ///< some operand may not leave, or there is no room below: nothing has changed
    kShort,   ///< the smallest parts found no room
  };
  /// A part takes this part of the limit at most; operands that stay whole leave that one for
  /// parts.
  static constexpr Bytes kPartOfLimit = 16;
  static constexpr Bytes kWholeLeaves = 4;
  struct Room {
    Bytes part = 0;       ///< buffers of one part
    Bytes whole = 0;      ///< operands that stay on the device as they are, as many as fit
    bool alone = false;   ///< one part after the other, though copies would run beside them
    bool thirds = false;  ///< for tests: three parts, whatever they take
    bool here = false;    ///< results are made on the device, if they find room
  };
  /// `results` only if it is done.
  Outcome run(const Room& room, std::vector<c10::IValue>& results);
  /// The blocks of those results that were born below.
  [[nodiscard]] std::vector<Born> born() const;
  /// Why there was no room below, the last time that room was short; empty: there was.
  [[nodiscard]] const std::string& why_full_below() const { return full_below_; }
  /// It works in place, and has done a part of it.
  [[nodiscard]] bool half_written() const { return row_ > 0 && cuts_.front().results.empty(); }
  /// After kShort.
  [[noreturn]] void throw_short();

 private:
  struct Lent {
    c10::StorageImpl* storage;
    Use use;
  };
  struct Part {
    c10::Stack arguments;
    std::vector<at::Tensor> staged;  ///< beside the cut's operands; those that lie whole, in place
    std::vector<at::Tensor> made;
    std::vector<Below::Copy> reads;
    std::vector<Below::Copy> writes;
    Pins pins;
    std::int64_t row = 0;
    std::int64_t rows = 0;
  };
  struct Result {
    at::Tensor tensor;
    Block* block = nullptr;  ///< that is below; null: it is on the device
    std::int64_t row = 0;    ///< elements
  };
  class Running;

  [[nodiscard]] StorageUses storages_of_others() const;
  /// Those of the call, and of the calls whose results it reads unmade.
  [[nodiscard]] std::vector<const Cut*> all_cuts() const;
  [[nodiscard]] bool is_made_here(const at::Tensor& tensor) const {
    return maker_ != nullptr && maker_->makes(tensor.storage().unsafeGetStorageImpl());
  }
  [[nodiscard]] std::vector<Lent> choose(Bytes whole);
  /// On the device as a whole.
  [[nodiscard]] StorageUses what_stays() const;
  bool lend(std::vector<Lent> chosen);
  void let_go() noexcept;
  void run_cut(const Cut& cut, const Room& room);
  [[nodiscard]] std::int64_t rows_of_part(const Cut& cut, std::int64_t row, const Room& room);
  /// Of a part's buffer for the operand: bytes before its first row.
  [[nodiscard]] static Bytes shift_of(const CutOperand& operand, std::int64_t row);
  /// The arguments of a part, of which `staged` are the cut's operands.
  static void set_operands(c10::Stack& arguments, const Cut& cut,
                           std::span<const at::Tensor> staged);
  /// Of every result of a part.
  [[nodiscard]] std::vector<Bytes> made_by_part(const Cut& cut, std::int64_t rows) const;
  /// What the largest of the smallest parts takes at once.
  [[nodiscard]] Bytes room_of_parts() const;
  /// `part` is empty. If it throws, copies to some of its buffers are under way.
  void stage(Part& part, const Cut& cut, std::int64_t row, std::int64_t rows);
  /// Rows of an operand: where they lie, or a buffer to which a copy is under way.
  at::Tensor stage_rows(const CutOperand& operand, std::int64_t row, std::int64_t rows, Pins& pins,
                        std::vector<Below::Copy>& reads);
  /// Rows of an operand that has not been made.
  at::Tensor make_rows(const CutOperand& operand, std::int64_t row, std::int64_t rows, Pins& pins);
  void compute(const Cut& cut, Part& part);
  void take_results(const Cut& cut, Part& part);
  /// As the operator returns them.
  void take_results(std::vector<c10::IValue>& results) const;
  void make_result(const CutResult& spec, const Cut& cut, const at::Tensor& part);
  /// Room on the device for a result that may lie there; else nothing.
  [[nodiscard]] std::optional<c10::Storage> room_here(Bytes bytes) const;
  void write(Part& part, Block& block, Bytes offset, const at::Tensor& from);
  void retire(Part& part);
  [[nodiscard]] Block* lent_block(const at::Tensor& tensor) const;
  [[nodiscard]] at::Tensor tensor_over(c10::Storage storage, const at::Tensor& like,
                                       c10::IntArrayRef sizes, c10::IntArrayRef strides,
                                       std::int64_t offset) const;
  [[nodiscard]] c10::Storage memory(Bytes bytes) const;

  DeviceManager& manager_;
  Below& below_;
  const CalledKernel called_;
  const c10::Stack& arguments_;
  const std::vector<Cut> cuts_;
  const RowMaker* const maker_;  ///< null: everything has been made
  bool here_ = false;            ///< Room::here
  std::size_t cut_ = 0;          ///< that is being run
  std::int64_t row_ = 0;         ///< of it, that comes next
  std::vector<Lent> lent_;
  std::vector<Result> results_;
  std::set<c10::StorageImpl*> away_;  ///< of the operands: of these there are parts on the device
  bool smallest_ = false;             ///< there is no smaller part than the one that was tried
  // Of the error, the last time that room was short.
  std::string full_below_;  ///< why there was no room below
  Bytes limit_named_ = 0;
};

}  // namespace lms::torch
