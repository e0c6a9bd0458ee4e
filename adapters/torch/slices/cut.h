#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace lms::torch {

/// Kernels may go another way where memory begins elsewhere against such a boundary, in bytes.
constexpr std::int64_t kBoundary = 512;

inline Bytes element_bytes(const at::Tensor& tensor) {
  return static_cast<Bytes>(tensor.element_size());
}

/// A tensor argument of which each part of a call sees some rows. Row `i` takes `row` elements of
/// memory, from the tensor's first element and `i * row` on, and nothing else lies between them.
struct CutOperand {
  std::size_t argument = 0;   ///< position among the operator's arguments
  std::int64_t element = -1;  ///< of a list of tensors; -1: it is no list
  at::Tensor tensor;
  std::int64_t row = 1;               ///< elements
  std::vector<std::int64_t> sizes;    ///< of a row, as a part has them after its own rows
  std::vector<std::int64_t> strides;  ///< likewise
  bool reads = true;                  ///< false: its old contents do not matter
  bool writes = false;
};

/// A result of which each part of a call makes some rows.
struct CutResult {
  /// The whole's sizes and strides; sizes empty: `leading`, and then what a row of a part's result
  /// has after `skip` dimensions; strides empty: contiguous.
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::vector<std::int64_t> leading;
  std::size_t skip = 0;
};

/// One call of an operator as calls for parts of its rows, which read and write nothing of each
/// other's and give the same bits.
struct Cut {
  std::int64_t rows = 0;
  std::vector<CutOperand> operands;
  std::vector<CutResult> results;  ///< none: it works in place, and returns its first argument
  /// Arguments that are others for a part than for the whole.
  std::vector<std::pair<std::size_t, c10::IValue>> replaced;

  // Parts end at multiples of `unit` rows from the beginning of a chunk, or at its end.
  std::int64_t unit = 1;
  std::int64_t chunk = INT64_MAX;
  std::int64_t most = INT64_MAX;  ///< rows of a part

  /// What the parts make is their one operand's bytes: no kernel runs. Such cuts follow each other,
  /// each with its place in the one result, in elements; the first says what that is.
  bool moves = false;
  std::int64_t place = 0;
  c10::ScalarType type = c10::ScalarType::Undefined;  ///< of the result, where nothing is run
};

/// A call that is to be cut.
struct CallToCut {
  std::string_view name;
  const c10::OperatorHandle& op;
  std::span<const c10::IValue> arguments;
  std::int64_t part_bytes;  ///< rows of more than that do not help
};

/// The parts of calls of some operators. No parts: the call cannot be cut.
using CutRule = std::vector<Cut> (*)(const CallToCut& call);

/// The rule of an operator, or null.
CutRule cut_rule(std::string_view name);
/// What calls with this rule make can be larger than all that they read.
bool looks_up(CutRule rule);

// For rules ---------------------------------------------------------------------------------------

/// The argument if it is a tensor that is there, of plain memory, without names; else undefined.
at::Tensor plain_tensor(const c10::IValue& value);
/// The tensor as rows: its first `leading` dimensions are one. Nothing if its memory is not.
std::optional<CutOperand> rows_of(const at::Tensor& tensor, std::size_t leading,
                                  std::size_t argument);
std::int64_t product(std::span<const std::int64_t> sizes);

std::vector<Cut> cut_pointwise(const CallToCut& call);
std::vector<Cut> cut_softmax(const CallToCut& call);
std::vector<Cut> cut_softmax_backward(const CallToCut& call);
std::vector<Cut> cut_layer_norm(const CallToCut& call);
std::vector<Cut> cut_planes(const CallToCut& call);
std::vector<Cut> cut_embedding(const CallToCut& call);
std::vector<Cut> cut_index_select(const CallToCut& call);
std::vector<Cut> cut_gather(const CallToCut& call);
std::vector<Cut> cut_index_add(const CallToCut& call);
std::vector<Cut> cut_scatter_add(const CallToCut& call);
std::vector<Cut> cut_nll_backward(const CallToCut& call);
std::vector<Cut> cut_cat(const CallToCut& call);
std::vector<Cut> cut_lists(const CallToCut& call);

}  // namespace lms::torch
