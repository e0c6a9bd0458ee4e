#include "adapters/torch/operators/op_info.h"

#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include "plan/updates.h"

namespace lms::torch {
namespace {

bool can_hold_tensors(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
    case c10::TypeKind::StorageType:
    case c10::TypeKind::AnyType:
      return true;
    case c10::TypeKind::OptionalType:
    case c10::TypeKind::ListType:
    case c10::TypeKind::TupleType:
    case c10::TypeKind::DictType:
      return std::ranges::any_of(type.containedTypes(),
                                 [](const auto& inner) { return can_hold_tensors(*inner); });
    default:
      return false;
  }
}

bool is_generator(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::GeneratorType) return true;
  return type.kind() == c10::TypeKind::OptionalType &&
         std::ranges::any_of(type.containedTypes(),
                             [](const auto& inner) { return is_generator(*inner); });
}

bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> prefixes) {
  return std::ranges::any_of(prefixes, [&](auto prefix) { return name.starts_with(prefix); });
}

/// Arguments that ATen kernels write although the schema does not say so: running statistics of
/// the batch norms, and the like. LMS_VERIFY over PyTorch's own operator samples keeps it complete.
bool written_in_silence(std::string_view argument) {
  return argument.starts_with("running_") || argument == "noise" || argument == "weight_buf" ||
         argument == "dropout_state" || argument == "workspace";
}

/// They only read the statistics of the batch norms.
bool reads_statistics(std::string_view name) {
  return name.find("batch_norm") != std::string_view::npos && name.ends_with("_backward");
}

bool is_keep_key(c10::DispatchKey key) {
  return key != c10::DispatchKey::CPU && key != c10::DispatchKey::CUDA;
}

bool is_sparse_key(c10::DispatchKey key) {
  using K = c10::DispatchKey;
  return key == K::SparseCPU || key == K::SparseCUDA || key == K::SparseCsrCPU ||
         key == K::SparseCsrCUDA;
}

bool is_collective(std::string_view name) {
  return starts_with_any(
      name, {"c10d::", "_c10d_functional::", "c10d_functional::", "symm_mem::", "_dtensor::"});
}

/// For tests: operators over lists are treated on the CPU as on GPUs.
bool lists_are_whole() {
  static const bool whole = std::getenv("TEST_WHOLE_LISTS") != nullptr;
  return whole;
}

OpKind kind_of(std::string_view name, c10::DispatchKey key) {
  if (is_keep_key(key)) return OpKind::kKeep;
  // Copy on write changes hands inside later kernels, where the hook cannot follow.
  if (name.starts_with("aten::_lazy_clone")) return OpKind::kKeep;
  if (is_collective(name)) return OpKind::kKeep;
  if (name.starts_with("aten::_foreach_")) {
    return key == c10::DispatchKey::CPU && !lists_are_whole() ? OpKind::kTransparent
                                                              : OpKind::kList;
  }
  if (starts_with_any(name, {"aten::_fused_adam", "aten::_fused_sgd", "aten::_fused_adagrad",
                             "aten::_amp_foreach_"})) {
    return OpKind::kList;
  }
  return OpKind::kPlain;
}

/// Makers of tensors that their callers fill, perhaps through raw pointers.
bool is_factory(std::string_view name) {
  return starts_with_any(name, {"aten::empty", "aten::new_", "aten::zeros", "aten::ones",
                                "aten::full", "aten::resize", "aten::set_", "aten::rand"}) ||
         name.find("_like") != std::string_view::npos;
}

/// Operators of strided tensors that look at no byte: their results lie in their argument's
/// storage, with a geometry of their own.
bool only_views(std::string_view name) {
  static constexpr std::array kViews = {"aten::_conj",
                                        "aten::_neg_view",
                                        "aten::_reshape_alias",
                                        "aten::_unsafe_view",
                                        "aten::alias",
                                        "aten::as_strided",
                                        "aten::detach",
                                        "aten::diagonal",
                                        "aten::expand",
                                        "aten::permute",
                                        "aten::select.int",
                                        "aten::slice.Tensor",
                                        "aten::split.Tensor",
                                        "aten::split_with_sizes",
                                        "aten::squeeze",
                                        "aten::squeeze.dim",
                                        "aten::squeeze.dims",
                                        "aten::t",
                                        "aten::transpose.int",
                                        "aten::unbind.int",
                                        "aten::unfold",
                                        "aten::unsafe_split.Tensor",
                                        "aten::unsafe_split_with_sizes",
                                        "aten::unsqueeze",
                                        "aten::view",
                                        "aten::view.dtype",
                                        "aten::view_as_complex",
                                        "aten::view_as_real"};
  return std::ranges::find(kViews, name) != kViews.end();
}

/// Makers of tensors like their argument, of which they ask no byte.
bool reads_geometry(std::string_view name) {
  static constexpr std::array kSuch = {
      "aten::empty_like", "aten::full_like",  "aten::new_empty", "aten::new_empty_strided",
      "aten::new_full",   "aten::new_ones",   "aten::new_zeros", "aten::ones_like",
      "aten::rand_like",  "aten::randn_like", "aten::zeros_like"};
  return std::ranges::find(kSuch, name) != kSuch.end();
}

/// FNV-1a: the same in every process, so that recorded steps can be met again.
std::uint64_t hash(std::string_view text) {
  std::uint64_t value = 0xcbf29ce484222325U;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return value;
}

}  // namespace

OpInfo describe(const c10::OperatorHandle& op, c10::DispatchKey key) {
  OpInfo info;
  const auto& schema = op.schema();
  info.name = c10::toString(op.operator_name());
  info.argument_count = static_cast<std::uint32_t>(schema.arguments().size());
  info.kind = kind_of(info.name, key);
  info.key = hash(info.name);
  if (info.kind == OpKind::kPlain && only_views(info.name)) return info;
  info.reads_geometry = info.kind == OpKind::kPlain && reads_geometry(info.name);

  // Outside ATen a schema is a promise that nobody checks.
  const bool trusted = starts_with_any(info.name, {"aten::", "prims::", kListPass});
  info.ends_alone = trusted;
  info.goes_on = is_collective(info.name);
  info.may_go_unseen = info.name == "lms_extension::call";
  bool writes_any = !trusted;
  bool in_place = false;
  for (std::uint32_t i = 0; i < info.argument_count; ++i) {
    const auto& argument = schema.arguments()[i];
    if (argument.type()->kind() == c10::TypeKind::StreamObjType) info.takes_stream = true;
    if (is_generator(*argument.real_type())) info.generator = i;
    if (argument.name() == "dropout_p") info.dropout = i;
    if (!can_hold_tensors(*argument.real_type())) continue;
    const bool silent = written_in_silence(argument.name()) && !reads_statistics(info.name);
    const bool writes = !trusted || silent ||
                        (argument.alias_info() != nullptr && argument.alias_info()->isWrite());
    writes_any = writes_any || writes;
    in_place = in_place || (trusted && writes && !silent && !argument.is_out());
    info.has_outputs = info.has_outputs || argument.is_out();
    info.arguments.push_back({i, writes});
  }
  const auto& tags = op.getTags();
  info.random = std::ranges::find(tags, at::Tag::nondeterministic_seeded) != tags.end();
  info.backward = info.name.find("_backward") != std::string::npos;
  // What goes element by element has all its memory before it begins.
  const bool pointwise = std::ranges::find(tags, at::Tag::pointwise) != tags.end();
  info.may_write_before_it_asks = in_place && !pointwise;
  info.keeps_inside = trusted && is_sparse_key(key) && !info.takes_stream && !info.goes_on &&
                      !info.name.starts_with("aten::_lazy_clone");
  info.completes_results = trusted && info.kind == OpKind::kPlain && !is_factory(info.name);
  if (trusted && info.kind == OpKind::kPlain) info.rerun = rerun_rule(op);
  if (trusted && !is_keep_key(key)) info.deferral = deferral_rule(info.name);
  info.step = pass_step(info.name);
  info.locks = info.random || info.generator != OpInfo::kNoArgument ||
               info.name.find("_fft_") != std::string::npos;
  info.may_rerun = !writes_any && !info.random && info.kind == OpKind::kPlain;
  const bool makes = std::ranges::any_of(
      schema.returns(), [](const c10::Argument& result) { return result.alias_info() == nullptr; });
  info.makes_once = trusted && makes && !info.may_rerun && info.kind == OpKind::kPlain;
  info.has_algorithms = info.may_rerun && info.name.find("conv") != std::string::npos;
  return info;
}

}  // namespace lms::torch
