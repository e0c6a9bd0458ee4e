#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "adapters/torch/slices/cut.h"
#include "adapters/torch/slices/unmade.h"
#include "adapters/torch/thread_state.h"
#include "base/bytes.h"

namespace lms::torch {

/// Makes rows of what has not been made (UnmadeRows) for one call that runs in parts: the calls
/// that wait are run on rows of what they read, which may be unmade as well, and nothing of it is
/// there as a whole.
class RowMaker {
 public:
  explicit RowMaker(const UnmadeRows& rows) : rows_(rows) {}

  /// Finds out how rows of what these cuts read can be made. False: of something they cannot.
  /// `part_bytes`: rows of more than that do not help.
  bool prepare(const std::vector<Cut>& cuts, std::int64_t part_bytes);

  [[nodiscard]] bool makes(const c10::StorageImpl* storage) const {
    return nodes_.contains(storage);
  }
  /// Of the calls that make them.
  [[nodiscard]] const std::vector<const Cut*>& cuts() const { return cuts_; }
  /// The arguments of these calls that are needed as a whole.
  [[nodiscard]] const StorageUses& others() const { return others_; }

  /// What the rows behind so many of the tensor's elements take on the way; at most.
  [[nodiscard]] Bytes bytes_for(const at::Tensor& tensor, std::int64_t elements) const;
  /// Rows that begin at a multiple of so many elements begin at the boundary by which kernels
  /// choose their code, as what is made does: they need not be moved there.
  [[nodiscard]] std::int64_t unit_of(const at::Tensor& tensor) const;

  /// What of an operand is there, for rows [row, row + rows), as a tensor that begins where the
  /// rows do against the boundary by which kernels choose their code.
  using Stage = c10::function_ref<at::Tensor(const CutOperand&, std::int64_t row, std::int64_t rows,
                                             Pins& pins)>;
  /// Elements [begin, end) of the tensor's storage, one after the other. Runs kernels.
  at::Tensor make(const at::Tensor& tensor, std::int64_t begin, std::int64_t end, Stage stage,
                  Pins& pins) const;

 private:
  struct Node {
    const Unmade* unmade = nullptr;
    Cut cut;
    std::int64_t row = 0;         ///< of the result, in elements
    Bytes bytes_per_element = 0;  ///< for all that it takes
  };
  [[nodiscard]] const Node* node_of(const at::Tensor& tensor) const;
  bool add(const Unmade& unmade, std::int64_t part_bytes);
  bool add_operands(const std::vector<CutOperand>& operands, std::int64_t part_bytes);

  const UnmadeRows& rows_;
  std::unordered_map<const c10::StorageImpl*, Node> nodes_;
  std::vector<const Cut*> cuts_;
  StorageUses others_;
};

}  // namespace lms::torch
