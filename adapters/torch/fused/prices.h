#pragma once

/// What plans reckon for kernels of LMS's own, in parts of the time of the operator for which they
/// stand. All were measured on one H200, and stand here until something measures them where LMS
/// runs. What must be measured for each kind of input is none of these (NormChecks::ms_of).
namespace lms::torch::prices {

/// Batch norm from its saved statistics: 0.079 of 0.231 ms (limits of the H200, bf16).
inline constexpr float kNormFromStatistics = 0.35F;
/// An addition in the batch norm's kernel: of three passes over memory the one that reads the other
/// operand.
inline constexpr float kNormOtherOperand = 0.3F;
/// A relu there.
inline constexpr float kNormRelu = 0;
/// A product: PyTorch's kernel works out each element's place in what it broadcasts: 49.5 and 47.1
/// us for 64 MiB, where ours takes 32.3.
inline constexpr float kProduct = 0.67F;
/// Likewise a sum of two types: 65.2 us for 64 + 32 MiB, and 44.0.
inline constexpr float kSum = 0.67F;

}  // namespace lms::torch::prices
