#include "adapters/torch/numerics.h"

#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/util/Exception.h>

#include <utility>

namespace lms::torch {
namespace {

using Backend = at::Float32Backend;
using Op = at::Float32Op;
constexpr std::array<std::pair<Backend, Op>, 9> kPrecisions{{{Backend::GENERIC, Op::ALL},
                                                             {Backend::MKLDNN, Op::ALL},
                                                             {Backend::MKLDNN, Op::CONV},
                                                             {Backend::MKLDNN, Op::RNN},
                                                             {Backend::MKLDNN, Op::MATMUL},
                                                             {Backend::CUDA, Op::ALL},
                                                             {Backend::CUDA, Op::CONV},
                                                             {Backend::CUDA, Op::RNN},
                                                             {Backend::CUDA, Op::MATMUL}}};

const char* name_of(at::Float32MatmulPrecision precision) {
  switch (precision) {
    case at::Float32MatmulPrecision::HIGH:
      return "high";
    case at::Float32MatmulPrecision::MEDIUM:
      return "medium";
    default:
      return "highest";
  }
}

std::pair<bool, bool> flags_of(at::CuBLASReductionOption option) {
  return {option == at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK,
          option != at::CuBLASReductionOption::DisallowReducedPrecisionDisallowSplitK};
}

/// Sets what differs between the two.
void change(const Numerics& from, const Numerics& to) {
  at::Context& context = at::globalContext();
  if (from.cudnn != to.cudnn) context.setUserEnabledCuDNN(to.cudnn);
  if (from.cudnn_benchmark != to.cudnn_benchmark) context.setBenchmarkCuDNN(to.cudnn_benchmark);
  if (from.cudnn_deterministic != to.cudnn_deterministic) {
    context.setDeterministicCuDNN(to.cudnn_deterministic);
  }
  if (from.mkldnn != to.mkldnn) context.setUserEnabledMkldnn(to.mkldnn);
  if (from.mkldnn_deterministic != to.mkldnn_deterministic) {
    context.setDeterministicMkldnn(to.mkldnn_deterministic);
  }
  if (from.nnpack != to.nnpack) context.setUserEnabledNNPACK(to.nnpack);
  if (std::pair(from.deterministic, from.deterministic_warns) !=
      std::pair(to.deterministic, to.deterministic_warns)) {
    context.setDeterministicAlgorithms(to.deterministic, to.deterministic_warns);
  }
  if (from.half_accumulation != to.half_accumulation) {
    context.setAllowFP16AccumulationCuBLAS(to.half_accumulation);
  }
  if (from.half_reduction_on_cpu != to.half_reduction_on_cpu) {
    context.setAllowFP16ReductionCPU(to.half_reduction_on_cpu);
  }
  if (from.half_reduction != to.half_reduction) {
    const auto [reduced, split] = flags_of(to.half_reduction);
    context.setAllowFP16ReductionCuBLAS(reduced, split);
  }
  if (from.bfloat_reduction != to.bfloat_reduction) {
    const auto [reduced, split] = flags_of(to.bfloat_reduction);
    context.setAllowBF16ReductionCuBLAS(reduced, split);
  }
  if (from.blas != to.blas) context.setBlasPreferredBackend(to.blas);
  if (from.default_type != to.default_type) {
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(to.default_type));
  }
  // The older way first: it sets some of the newer one's.
  if (from.matmul != to.matmul) context.setFloat32MatmulPrecision(name_of(to.matmul));
  if (from.matmul != to.matmul || from.precisions != to.precisions) {
    for (std::size_t i = 0; i < kPrecisions.size(); ++i) {
      const auto [backend, op] = kPrecisions.at(i);
      if (context.float32Precision(backend, op) == to.precisions.at(i)) continue;
      context.setFloat32Precision(backend, op, to.precisions.at(i));
    }
  }
  if (from.threads != to.threads) at::set_num_threads(to.threads);
}

}  // namespace

std::optional<Numerics> Numerics::now() {
  at::Context& context = at::globalContext();
  Numerics now;
  now.cudnn = context.userEnabledCuDNN();
  now.cudnn_benchmark = context.benchmarkCuDNN();
  now.cudnn_deterministic = context.deterministicCuDNN();
  now.mkldnn = context.userEnabledMkldnn();
  now.mkldnn_deterministic = context.deterministicMkldnn();
  now.nnpack = context.userEnabledNNPACK();
  now.deterministic = context.deterministicAlgorithms();
  now.deterministic_warns = context.deterministicAlgorithmsWarnOnly();
  now.half_accumulation = context.allowFP16AccumulationCuBLAS();
  now.half_reduction_on_cpu = context.allowFP16ReductionCPU();
  now.half_reduction = context.allowFP16ReductionCuBLAS();
  now.bfloat_reduction = context.allowBF16ReductionCuBLAS();
  now.blas = context.blasPreferredBackend();
  now.default_type = c10::get_default_dtype_as_scalartype();
  now.threads = at::get_num_threads();
  try {
    now.matmul = context.float32MatmulPrecision();
    for (std::size_t i = 0; i < kPrecisions.size(); ++i) {
      const auto [backend, op] = kPrecisions.at(i);
      now.precisions.at(i) = context.float32Precision(backend, op);
    }
  } catch (const c10::Error&) {
    return std::nullopt;
  }
  return now;
}

NumericsScope::NumericsScope(const Numerics& wanted) {
  auto now = Numerics::now();
  if (!now || *now == wanted) return;
  before_ = std::move(now);
  change(*before_, wanted);
}

NumericsScope::~NumericsScope() {
  if (!before_) return;
  try {
    if (const auto now = Numerics::now()) change(*now, *before_);
  } catch (const std::exception&) {
    // Values that were in force before are never refused.
  }
}

}  // namespace lms::torch
