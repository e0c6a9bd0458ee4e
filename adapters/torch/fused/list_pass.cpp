#include "adapters/torch/fused/list_pass.h"

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <utility>

#include "base/error.h"

namespace lms::torch {
namespace {

constexpr std::uint32_t kListThreads = 256;
constexpr std::uint32_t kListRounds = 4;
constexpr std::size_t kListPositions = 24;  // of a launch: their table is an argument of the kernel

/// As the kernel has it.
struct PassTable {
  std::array<std::array<void*, PassKernels::kMostAddresses>, kListPositions> addresses{};
  std::array<std::uint64_t, kListPositions> elements{};
  std::array<std::array<float, PassKernels::kMostNumbers>, kListPositions> numbers{};
  std::array<std::uint32_t, kListPositions> ends{};  ///< of its blocks
};

/// Defined outside: TYPE (0: bfloat16, 1: half, 2: float), LANES, THREADS, ROUNDS, POSITIONS,
/// ADDRESSES, NUMBERS. Followed by the kernel, which is written for each program.
constexpr const char* kListPassHead = R"cuda(
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;

struct PassTable {
  void* addresses[POSITIONS][ADDRESSES];
  u64 elements[POSITIONS];
  float numbers[POSITIONS][NUMBERS];
  u32 ends[POSITIONS];
};

#if TYPE == 2
typedef float Stored;
__device__ __forceinline__ float widened(Stored value) { return value; }
__device__ __forceinline__ Stored narrowed(float value) { return value; }
#elif TYPE == 1
typedef u16 Stored;
__device__ __forceinline__ float widened(Stored bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
__device__ __forceinline__ Stored narrowed(float value) {
  u32 word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(0.0f), "f"(value));
  return static_cast<Stored>(word);
}
#else
typedef u16 Stored;
__device__ __forceinline__ float widened(Stored bits) {
  return __uint_as_float(static_cast<u32>(bits) << 16);
}
__device__ __forceinline__ Stored narrowed(float value) {
  u32 word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(0.0f), "f"(value));
  return static_cast<Stored>(word);
}
#endif
__device__ __forceinline__ float rounded(float value) { return widened(narrowed(value)); }

struct alignas(sizeof(Stored) * LANES) Vector { Stored of[LANES]; };

// As PyTorch's kernels round: a product that is added is not rounded by itself.
__device__ __forceinline__ float add(float a, float b, float n) { return __fmaf_rn(n, b, a); }
__device__ __forceinline__ float sub(float a, float b, float n) { return __fmaf_rn(-n, b, a); }
__device__ __forceinline__ float lerp(float a, float b, float n) {
  const float way = __fsub_rn(b, a);
  return fabsf(n) < 0.5f ? __fmaf_rn(n, way, a) : __fmaf_rn(-way, __fsub_rn(1.0f, n), b);
}
__device__ __forceinline__ float addcmul(float a, float b, float c, float n) {
  return n == 1.0f ? __fmaf_rn(b, c, a) : __fmaf_rn(n, __fmul_rn(b, c), a);
}
__device__ __forceinline__ float addcdiv(float a, float b, float c, float n) {
  return __fmaf_rn(n, __fdiv_rn(b, c), a);
}
__device__ __forceinline__ float maximum(float a, float b) { return a != a || a > b ? a : b; }
__device__ __forceinline__ float minimum(float a, float b) { return a != a || a < b ? a : b; }
)cuda";

std::string reg(std::uint8_t which) { return "r" + std::to_string(which); }
std::string number(std::uint8_t which) { return "n" + std::to_string(which); }

std::string expression(const PassProgram::Step& step) {
  const bool with_list = step.b != PassProgram::kNone;
  const std::string a = reg(step.a);
  const std::string b = with_list ? reg(step.b) : std::string();
  const std::string n = step.number != PassProgram::kNone ? number(step.number) : std::string();
  const std::string& other = with_list ? b : n;
  const auto call = [&](const char* function, std::initializer_list<std::string> operands) {
    std::string text = function;
    const char* separator = "(";
    for (const std::string& operand : operands) {
      text += separator + operand;
      separator = ", ";
    }
    return text + ")";
  };
  switch (step.kind) {
    case StepKind::kAdd:
      return with_list ? call("add", {a, b, n}) : call("__fadd_rn", {a, n});
    case StepKind::kSub:
      return with_list ? call("sub", {a, b, n}) : call("__fsub_rn", {a, n});
    case StepKind::kMul:
      return call("__fmul_rn", {a, other});
    case StepKind::kDiv:
      return call("__fdiv_rn", {a, other});
    case StepKind::kLerp:
      return call("lerp", {a, b, n});
    case StepKind::kAddcmul:
      return call("addcmul", {a, b, reg(step.c), n});
    case StepKind::kAddcdiv:
      return call("addcdiv", {a, b, reg(step.c), n});
    case StepKind::kMaximum:
      return call("maximum", {a, b});
    case StepKind::kMinimum:
      return call("minimum", {a, b});
    case StepKind::kSqrt:
      return call("__fsqrt_rn", {a});
    case StepKind::kReciprocal:
      return call("__fdiv_rn", {"1.0f", a});
    case StepKind::kNeg:
      return "-" + a;
    case StepKind::kNone:
      break;
  }
  return a;
}

bool in_lists(PassProgram::Place place) {
  return place == PassProgram::Place::kRead || place == PassProgram::Place::kWritten;
}

std::uint32_t bytes_of(c10::ScalarType type) {
  return static_cast<std::uint32_t>(c10::elementSize(type));
}

}  // namespace

std::string PassKernels::source_of(const PassProgram& program) {
  std::string text = kListPassHead;
  std::string addresses;
  std::string load;
  std::string store;
  std::string before;
  std::string steps;
  std::string after;
  for (std::uint8_t i = 0, at = 0; i < program.registers.size(); ++i) {
    const PassProgram::Place place = program.registers[i];
    const std::string which = std::to_string(i);
    if (place == PassProgram::Place::kMade) {
      before += "        float r" + which + ";\n";
      continue;
    }
    addresses += "  Stored* const p" + which + " = static_cast<Stored*>(at.addresses[p][" +
                 std::to_string(at++) + "]);\n";
    if (place == PassProgram::Place::kOne) {
      addresses += "  const float r" + which + " = widened(*p" + which + ");\n";
      continue;
    }
    load +=
        "      const Vector v" + which + " = reinterpret_cast<const Vector*>(p" + which + ")[i];\n";
    before += "        float r" + which + " = widened(v" + which + ".of[k]);\n";
    if (place != PassProgram::Place::kWritten) continue;
    load += "      Vector w" + which + ";\n";
    after += "        w" + which + ".of[k] = narrowed(r" + which + ");\n";
    store += "      reinterpret_cast<Vector*>(p" + which + ")[i] = w" + which + ";\n";
  }
  for (std::uint8_t n = 0; n < program.numbers; ++n) {
    addresses +=
        "  const float n" + std::to_string(n) + " = at.numbers[p][" + std::to_string(n) + "];\n";
  }
  for (const PassProgram::Step& step : program.steps) {
    steps += "        " + reg(step.to) + " = rounded(" + expression(step) + ");\n";
  }
  text += R"cuda(
extern "C" __global__ void __launch_bounds__(THREADS) list_pass(const PassTable at) {
  u32 p = 0;
  u32 first = 0;
  while (blockIdx.x >= at.ends[p]) first = at.ends[p++];
)cuda" + addresses +
          R"cuda(  const u64 vectors = at.elements[p] / LANES;
  const u64 begin = static_cast<u64>(blockIdx.x - first) * (THREADS * ROUNDS) + threadIdx.x;
#pragma unroll
  for (u32 round = 0; round < ROUNDS; ++round) {
    const u64 i = begin + round * THREADS;
    if (i < vectors) {
)cuda" + load +
          "#pragma unroll\n      for (u32 k = 0; k < LANES; ++k) {\n" + before + steps + after +
          "      }\n" + store + "    }\n  }\n}\n";
  return text;
}

Kernels::Kernel PassKernels::kernel_for(const PassProgram& program, bool vectors) {
  const std::lock_guard guard(mutex_);
  const std::pair key(program, vectors);
  if (const auto found = made_.find(key); found != made_.end()) return found->second;
  const std::uint32_t lanes =
      vectors ? static_cast<std::uint32_t>(Kernels::kVectorBytes) / bytes_of(program.type) : 1;
  const auto define = [](const char* name, std::size_t value) {
    return "-D" + std::string(name) + "=" + std::to_string(value);
  };
  const std::size_t type = program.type == c10::ScalarType::Float  ? 2
                           : program.type == c10::ScalarType::Half ? 1
                                                                   : 0;
  return made_[key] =
             kernels_.make(source_of(program).c_str(), "list_pass",
                           {"--std=c++17", "--fmad=false", "--ftz=false", define("TYPE", type),
                            define("LANES", lanes), define("THREADS", kListThreads),
                            define("ROUNDS", kListRounds), define("POSITIONS", kListPositions),
                            define("ADDRESSES", kMostAddresses), define("NUMBERS", kMostNumbers)});
}

bool PassKernels::may_run(const PassProgram& program, const std::function<bool()>& try_out) {
  const auto known = [&]() -> std::optional<bool> {
    const std::lock_guard guard(mutex_);
    const auto found = known_.find(program);
    return found == known_.end() ? std::nullopt : std::optional(found->second);
  };
  if (const auto answer = known()) return *answer;
  const std::unique_lock trial(trial_, std::try_to_lock);
  if (!trial) return false;
  if (const auto answer = known()) return *answer;
  const bool same = try_out();
  const std::lock_guard guard(mutex_);
  return known_[program] = same;
}

bool PassKernels::run(const PassProgram& program, std::span<const PassPosition> positions) {
  bool queued = false;
  try {
    for (std::size_t begin = 0; begin < positions.size(); begin += kListPositions) {
      const auto some =
          positions.subspan(begin, std::min(kListPositions, positions.size() - begin));
      const std::uint32_t lanes =
          static_cast<std::uint32_t>(Kernels::kVectorBytes) / bytes_of(program.type);
      bool vectors = true;
      for (const PassPosition& one : some) {
        vectors = vectors && one.elements % lanes == 0;
        for (std::size_t i = 0, at = 0; i < program.registers.size(); ++i) {
          if (program.registers[i] == PassProgram::Place::kMade) continue;
          const void* const address = one.addresses[at++];
          vectors = vectors && (!in_lists(program.registers[i]) || Kernels::is_vector(address));
        }
      }
      PassTable table;
      std::uint64_t blocks = 0;
      const std::uint64_t each = std::uint64_t{kListThreads} * kListRounds * (vectors ? lanes : 1);
      for (std::size_t p = 0; p < kListPositions; ++p) {
        if (p < some.size()) {
          std::ranges::copy(some[p].addresses, table.addresses[p].begin());
          std::ranges::transform(some[p].numbers, table.numbers[p].begin(),
                                 [](double value) { return static_cast<float>(value); });
          table.elements[p] = some[p].elements;
          blocks += (some[p].elements + each - 1) / each;
        }
        table.ends[p] = static_cast<std::uint32_t>(blocks);
      }
      if (blocks == 0) continue;
      const Kernels::Kernel kernel = kernel_for(program, vectors);
      std::array<void*, 1> arguments{&table};
      if (!kernels_.launch(kernel, static_cast<unsigned>(blocks), kListThreads, arguments.data())) {
        throw Error("CUDA refuses to launch a pass over lists");
      }
      queued = true;
    }
    return true;
  } catch (const std::exception&) {
    failed_ = true;
    // Some positions are done, and would be done again.
    if (queued) throw;
    return false;
  }
}

}  // namespace lms::torch
