#include "adapters/torch/operators/numerics.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <utility>

#include "base/error.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#include <cfenv>
#endif

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
  if (from.flash_3 != to.flash_3) context.setSDPUseFA3(to.flash_3);
  if (from.spared_processors != to.spared_processors) {
    context._setSMCarveout_EXPERIMENTAL(to.spared_processors);
  }
  if (from.environment != to.environment) set_float_environment(to.environment);
}

std::atomic<bool> all_plain{true};

/// Runs `work` in each of the threads that an operator of the calling thread runs in, with what is
/// kept of that thread.
void for_each_helper(std::vector<std::uint32_t>& kept, void (*work)(std::uint32_t&)) {
  // PyTorch's own loop over elements: only there the threads are those of its kernels.
  const auto count = static_cast<std::int64_t>(kept.size());
  at::Tensor elements = at::from_blob(kept.data(), {count}, at::kInt);
  auto loop = at::TensorIterator::nullary_op(elements);
  loop.for_each(
      [&](char**, const std::int64_t*, std::int64_t, std::int64_t) {
        work(kept.at(static_cast<std::size_t>(at::get_thread_num())));
      },
      /*grain_size=*/1);
}

}  // namespace

#if defined(__x86_64__)
namespace {

constexpr std::uint32_t kFlushResults = 0x8000;
constexpr std::uint32_t kFlushInputs = 0x0040;
constexpr std::uint32_t kRounding = 0x6000;
constexpr std::uint32_t kEnvironment = kFlushResults | kFlushInputs | kRounding;

}  // namespace

std::uint32_t float_environment() noexcept { return _mm_getcsr() & kEnvironment; }

void set_float_environment(std::uint32_t environment) noexcept {
  _mm_setcsr((_mm_getcsr() & ~kEnvironment) | environment);
}
#elif defined(__aarch64__)
namespace {

// Flush to zero, its variant for 16 bits, and the rounding.
constexpr std::uint64_t kEnvironment = (1U << 24U) | (1U << 19U) | (3U << 22U);

std::uint64_t control() noexcept {
  std::uint64_t bits = 0;
  asm volatile("mrs %0, fpcr" : "=r"(bits));
  return bits;
}

}  // namespace

std::uint32_t float_environment() noexcept {
  return static_cast<std::uint32_t>(control() & kEnvironment);
}

void set_float_environment(std::uint32_t environment) noexcept {
  const std::uint64_t bits = (control() & ~kEnvironment) | environment;
  asm volatile("msr fpcr, %0" : : "r"(bits));
}
#else
std::uint32_t float_environment() noexcept {
  return std::fegetround() == FE_TONEAREST ? 0 : static_cast<std::uint32_t>(std::fegetround()) + 1;
}

void set_float_environment(std::uint32_t environment) noexcept {
  std::fesetround(environment == 0 ? FE_TONEAREST : static_cast<int>(environment - 1));
}
#endif

bool plain_environments() noexcept {
  if (float_environment() != 0) all_plain.store(false, std::memory_order_relaxed);
  return all_plain.load(std::memory_order_relaxed);
}

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
  now.flash_3 = context.userEnabledFA3SDP();
  now.spared_processors = context._SMCarveout_EXPERIMENTAL();
  now.environment = float_environment();
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
  const bool plain = plain_environments();
  auto now = Numerics::now();
  if (!now) {
    throw Error(
        "LMS: a tensor has to be computed again as it was first, which cannot be told while "
        "PyTorch's older and newer settings of float32 precision contradict each other");
  }
  if (*now != wanted) {
    before_ = std::move(now);
    change(*before_, wanted);
  }
  if (!plain) plain_helpers();
}

void NumericsScope::plain_helpers() {
  helpers_.resize(static_cast<std::size_t>(at::get_num_threads()));
  const std::uint32_t own = float_environment();
  for_each_helper(helpers_, [](std::uint32_t& environment) {
    environment = float_environment();
    set_float_environment(0);
  });
  set_float_environment(own);
}

NumericsScope::~NumericsScope() {
  if (!helpers_.empty()) {
    const std::uint32_t own = float_environment();
    for_each_helper(helpers_,
                    [](std::uint32_t& environment) { set_float_environment(environment); });
    set_float_environment(own);
  }
  if (!before_) return;
  try {
    if (const auto now = Numerics::now()) change(*now, *before_);
  } catch (const std::exception&) {
    // Values that were in force before are never refused.
  }
}

}  // namespace lms::torch
