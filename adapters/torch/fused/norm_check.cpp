#include "adapters/torch/fused/norm_check.h"

namespace lms::torch {
namespace {

/// Trials of a kind whose numbers do not tell, or for which there is no memory.
constexpr int kMostTries = 3;

}  // namespace

NormChecks::Kind NormChecks::kind_of(at::IntArrayRef sizes, at::IntArrayRef strides) {
  NormChecks::Kind kind(sizes.begin(), sizes.end());
  kind.insert(kind.end(), strides.begin(), strides.end());
  return kind;
}

Rounding NormChecks::rounding_of(const Call& call) const {
  const TensorSpec& input = call.tensors.front();
  if (!input.keys.has_backend(c10::BackendComponent::CUDABit)) return Rounding::kOther;
  if (call.op->operator_name().name != kOperator) return Rounding::kPlain;
  if (c10::typeMetaToScalarType(input.type) != at::kFloat || input.offset != 0) {
    return Rounding::kOther;
  }
  return find(kind_of(input.sizes, input.strides)).rounding;
}

float NormChecks::ms_of(const at::Tensor& input) const {
  if (input.scalar_type() != at::kFloat || input.storage_offset() != 0) return -1;
  const NormTrial trial = find(kind_of(input.sizes(), input.strides()));
  return trial.rounding == Rounding::kOther ? -1 : trial.ms;
}

NormTrial NormChecks::find(const Kind& kind) const {
  const std::lock_guard guard(mutex_);
  const auto found = known_.find(kind);
  return found == known_.end() ? NormTrial{} : found->second.trial;
}

bool NormChecks::begin_trial(const Kind& kind) {
  const std::lock_guard guard(mutex_);
  Known& known = known_[kind];
  return !known.trial.certain && known.tries++ < kMostTries;
}

void NormChecks::end_trial(const Kind& kind, const NormTrial& trial) {
  const std::lock_guard guard(mutex_);
  known_[kind].trial = trial;
}

}  // namespace lms::torch
