// Operators whose results are, element by element, of the elements at their place.

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "adapters/torch/slices/cut.h"

namespace lms::torch {
namespace {

/// Elements that kernels of the CPU take at a time, or a multiple: what is left at the end of a
/// thread's share may be computed by other code, and have other bits.
constexpr std::int64_t kStride = 4096;
/// Of what is no larger, no kernel gives part to another thread.
constexpr std::int64_t kOneThread = 16384;

std::optional<std::size_t> argument_named(const CallToCut& call, std::string_view name) {
  const auto& arguments = call.op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == name) return i;
  }
  return std::nullopt;
}

struct Inputs {
  std::vector<std::size_t> positions;
  std::vector<at::Tensor> tensors;
  at::Tensor first;  ///< that has dimensions
};

/// Every tensor, on one device or without dimensions. Nothing: there are others.
std::optional<Inputs> inputs_of(const CallToCut& call) {
  Inputs inputs;
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    if (call.arguments[i].isNone()) continue;
    if (!call.arguments[i].isTensor()) continue;
    at::Tensor tensor = plain_tensor(call.arguments[i]);
    if (!tensor.defined()) return std::nullopt;
    if (tensor.dim() > 0) {
      if (!inputs.first.defined()) inputs.first = tensor;
      if (tensor.device() != inputs.first.device()) return std::nullopt;
    }
    inputs.positions.push_back(i);
    inputs.tensors.push_back(std::move(tensor));
  }
  if (!inputs.first.defined()) return std::nullopt;
  return inputs;
}

std::vector<std::int64_t> dense_strides(c10::IntArrayRef sizes) {
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t stride = 1;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<std::int64_t>(sizes[d], 1);
  }
  return strides;
}

/// Kernels whose TensorIterator has the second argument first: it says how the result lies, where
/// the two do not agree.
bool iterates_second_first(std::string_view name) {
  return name == "aten::threshold_backward" || name == "aten::leaky_relu_backward";
}

/// Comparisons, for which a number is a tensor of no dimension.
bool iterates_its_number(std::string_view name) {
  return name.ends_with(".Scalar") && name != "aten::lerp.Scalar";
}

/// Where TensorIterator would lay the result out.
std::vector<std::int64_t> iterated_strides(const CallToCut& call, const Inputs& inputs) {
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false).declare_static_dtype(at::kFloat);
  std::vector<at::Tensor> metas;
  for (const at::Tensor& tensor : inputs.tensors) {
    metas.emplace_back(
        at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), at::kFloat));
  }
  if (iterates_second_first(call.name)) std::swap(metas.at(0), metas.at(1));
  if (iterates_its_number(call.name)) {
    metas.emplace_back(at::detail::empty_strided_meta({}, {}, at::kFloat));
  }
  config.add_owned_output(at::Tensor());
  for (const at::Tensor& meta : metas) config.add_owned_const_input(meta);
  return config.build().output(0).strides().vec();
}

/// Nothing: it cannot be told.
std::optional<std::vector<std::int64_t>> result_strides(const CallToCut& call, const Inputs& inputs,
                                                        c10::IntArrayRef sizes) {
  if (call.name == "aten::masked_fill.Scalar") return dense_strides(sizes);
  if (call.name == "aten::native_dropout_backward") {
    const bool all = std::ranges::all_of(inputs.tensors, [&](const at::Tensor& tensor) {
      return tensor.is_contiguous() && tensor.sizes() == sizes;
    });
    return all ? std::optional(dense_strides(sizes)) : std::nullopt;
  }
  if (call.name == "aten::clone" || call.name == "aten::_to_copy") {
    const auto& format = call.arguments[*argument_named(call, "memory_format")];
    const auto wanted = format.isNone() ? at::MemoryFormat::Preserve : format.toMemoryFormat();
    if (wanted == at::MemoryFormat::Contiguous) return dense_strides(sizes);
    const at::Tensor& self = inputs.first;
    if (wanted != at::MemoryFormat::Preserve || !self.is_non_overlapping_and_dense()) {
      return std::nullopt;
    }
    return self.strides().vec();
  }
  return iterated_strides(call, inputs);
}

/// A copy stays where it is, and is plain memory.
bool stays_here(const CallToCut& call, const at::Tensor& self) {
  if (call.name != "aten::_to_copy") return true;
  const auto& layout = call.arguments[*argument_named(call, "layout")];
  if (!layout.isNone() && layout.toLayout() != at::kStrided) return false;
  const auto& pins = call.arguments[*argument_named(call, "pin_memory")];
  if (!pins.isNone() && pins.toBool()) return false;
  const auto& device = call.arguments[*argument_named(call, "device")];
  return device.isNone() || device.toDevice() == self.device();
}

/// The dimensions, the one with the largest steps in memory first.
std::vector<std::int64_t> memory_order(c10::IntArrayRef strides) {
  std::vector<std::int64_t> order(strides.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) {
    return strides[static_cast<std::size_t>(a)] > strides[static_cast<std::size_t>(b)];
  });
  return order;
}

/// With the result's dimensions, in that order.
at::Tensor arranged(const at::Tensor& tensor, std::size_t dimensions,
                    const std::vector<std::int64_t>& order) {
  std::vector<std::int64_t> sizes(dimensions, 1);
  std::vector<std::int64_t> strides(dimensions, 0);
  const std::size_t missing = dimensions - static_cast<std::size_t>(tensor.dim());
  for (std::size_t d = missing; d < dimensions; ++d) {
    const auto own = static_cast<std::int64_t>(d - missing);
    sizes[d] = tensor.size(own);
    strides[d] = tensor.stride(own);
  }
  std::vector<std::int64_t> sizes_then;
  std::vector<std::int64_t> strides_then;
  for (const std::int64_t d : order) {
    sizes_then.push_back(sizes[static_cast<std::size_t>(d)]);
    strides_then.push_back(strides[static_cast<std::size_t>(d)]);
  }
  return tensor.as_strided(sizes_then, strides_then, tensor.storage_offset());
}

struct Arranged {
  std::vector<std::int64_t> sizes;  ///< of the result, in memory order
  std::vector<at::Tensor> tensors;  ///< beside Inputs; those without dimensions as they are
  bool in_place = false;
};

bool reads_its_result(std::string_view name) {
  return name != "aten::copy_" && name != "aten::zero_" && name != "aten::fill_.Scalar";
}

/// With the first `leading` dimensions as rows. Nothing: an operand is neither cut there nor whole.
std::optional<Cut> cut_at(const CallToCut& call, const Inputs& inputs, const Arranged& arranged,
                          std::size_t leading) {
  Cut cut;
  const auto first = std::span(arranged.sizes).first(leading);
  cut.rows = product(first);
  for (std::size_t i = 0; i < arranged.tensors.size(); ++i) {
    const at::Tensor& tensor = arranged.tensors[i];
    const std::size_t position = inputs.positions[i];
    if (tensor.numel() == 1 && inputs.tensors[i].dim() == 0) continue;
    const auto own = tensor.sizes().slice(0, leading);
    bool whole = true;
    for (std::size_t d = 0; d < leading; ++d) {
      whole = whole && (tensor.sizes()[d] == 1 || tensor.strides()[d] == 0);
    }
    if (whole && cut.rows > 1) {
      std::vector<std::int64_t> sizes = tensor.sizes().slice(leading).vec();
      std::vector<std::int64_t> strides = tensor.strides().slice(leading).vec();
      sizes.insert(sizes.begin(), 1);
      strides.insert(strides.begin(), 0);
      cut.replaced.emplace_back(position,
                                tensor.as_strided(sizes, strides, tensor.storage_offset()));
      if (arranged.in_place && i == 0) return std::nullopt;
      continue;
    }
    if (!std::ranges::equal(own, first)) return std::nullopt;
    auto operand = rows_of(tensor, leading, position);
    if (!operand) return std::nullopt;
    if (arranged.in_place && i == 0) {
      if (operand->row != product(operand->sizes)) return std::nullopt;
      operand->writes = true;
      operand->reads = reads_its_result(call.name);
    }
    cut.operands.push_back(std::move(*operand));
  }
  if (cut.operands.empty()) return std::nullopt;
  if (!inputs.first.device().is_cpu()) return cut;
  // Of what is contiguous, and of nothing else, oneDNN computes it.
  const bool by_layout = call.name == "aten::gelu" || call.name == "aten::gelu_backward";
  if (by_layout && !std::ranges::all_of(inputs.tensors, [](const at::Tensor& tensor) {
        return tensor.is_contiguous();
      })) {
    return std::nullopt;
  }
  // What is whole then is one element.
  const bool flat = leading == arranged.sizes.size();
  const std::int64_t threads = at::get_num_threads();
  if (!flat) return threads == 1 ? std::optional(cut) : std::nullopt;
  cut.unit = kStride;
  if (threads == 1) return cut;
  // Each thread has its share, at whose end other code may compute.
  const std::int64_t grain = at::internal::GRAIN_SIZE;
  if (cut.rows > kOneThread && cut.rows < threads * grain) return std::nullopt;
  if (cut.rows > kOneThread) cut.chunk = (cut.rows + threads - 1) / threads;
  cut.most = kOneThread;
  return cut;
}

/// What is written is none of what else is read, but for the same elements.
bool apart(const std::vector<at::Tensor>& tensors) {
  const at::Tensor& written = tensors.front();
  return std::ranges::all_of(tensors, [&](const at::Tensor& tensor) {
    return !tensor.is_alias_of(written) ||
           (tensor.storage_offset() == written.storage_offset() &&
            tensor.element_size() == written.element_size() && tensor.sizes() == written.sizes() &&
            tensor.strides() == written.strides());
  });
}

}  // namespace

std::vector<Cut> cut_pointwise(const CallToCut& call) {
  const auto inputs = inputs_of(call);
  if (!inputs || !stays_here(call, inputs->first)) return {};
  // Of a tensor onto itself PyTorch copies nothing, and parts of it would be other tensors.
  if (call.name == "aten::copy_" &&
      call.arguments[0].toTensor().is_same(call.arguments[1].toTensor())) {
    return {};
  }
  const bool in_place = !call.op.schema().arguments().empty() &&
                        call.op.schema().arguments()[0].alias_info() != nullptr &&
                        call.op.schema().arguments()[0].alias_info()->isWrite();
  std::vector<std::int64_t> sizes;
  for (const at::Tensor& tensor : inputs->tensors) {
    sizes = sizes.empty() ? tensor.sizes().vec() : at::infer_size(sizes, tensor.sizes());
  }
  if (sizes.empty() || product(sizes) <= 1) return {};
  std::vector<std::int64_t> strides;
  if (in_place) {
    const at::Tensor& self = inputs->tensors.front();
    if (self.sizes() != sizes || !apart(inputs->tensors)) return {};
    strides = self.strides().vec();
  } else if (auto found = result_strides(call, *inputs, sizes)) {
    strides = std::move(*found);
  } else {
    return {};
  }
  const auto order = memory_order(strides);
  Arranged all{.in_place = in_place};
  for (const std::int64_t d : order) all.sizes.push_back(sizes[static_cast<std::size_t>(d)]);
  for (std::size_t i = 0; i < inputs->tensors.size(); ++i) {
    const at::Tensor& tensor = inputs->tensors[i];
    all.tensors.push_back(tensor.dim() == 0 ? tensor : arranged(tensor, sizes.size(), order));
  }
  CutResult result{.sizes = sizes, .strides = strides};
  const auto finished = [&](Cut cut) {
    if (!in_place) cut.results.push_back(result);
    // In this order a part's result is contiguous, whatever the whole's is.
    if (const auto format = argument_named(call, "memory_format")) {
      cut.replaced.emplace_back(*format, at::MemoryFormat::Contiguous);
    }
    return std::vector<Cut>{std::move(cut)};
  };
  if (auto flat = cut_at(call, *inputs, all, sizes.size())) return finished(std::move(*flat));
  for (std::size_t leading = 1; leading < sizes.size(); ++leading) {
    auto cut = cut_at(call, *inputs, all, leading);
    if (!cut || cut->rows < 2) continue;
    const auto bytes = [](const CutOperand& operand) {
      return operand.row * element_bytes(operand.tensor);
    };
    std::int64_t row = 0;
    for (const CutOperand& operand : cut->operands) row = std::max(row, bytes(operand));
    if (row <= call.part_bytes) return finished(std::move(*cut));
  }
  return {};
}

}  // namespace lms::torch
