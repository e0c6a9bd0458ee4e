#include "adapters/torch/hook/filled_first.h"

#include <ATen/Context.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "adapters/torch/registry.h"
#include "adapters/torch/slices/unmade.h"

namespace lms::torch {
namespace {

/// The value with which PyTorch fills tensors of such a type.
bool is_filling(const c10::Scalar& value, c10::ScalarType type) {
  if (c10::isFloatingType(type)) return value.isFloatingPoint() && std::isnan(value.toDouble());
  if (c10::isComplexType(type)) {
    // C++ has no limits of theirs, and gives 0 for any.
    return value.isComplex() && (std::isnan(value.toComplexDouble().real()) || value.equal(0));
  }
  if (!value.isIntegral(/*includeBool=*/true)) return false;
  switch (type) {
    case c10::kBool:
      return value.toBool();
    case c10::kByte:
      return value.toLong() == std::numeric_limits<std::uint8_t>::max();
    case c10::kChar:
      return value.toLong() == std::numeric_limits<std::int8_t>::max();
    case c10::kShort:
      return value.toLong() == std::numeric_limits<std::int16_t>::max();
    case c10::kUInt16:
      return value.toLong() == std::numeric_limits<std::uint16_t>::max();
    case c10::kUInt32:
      return value.toLong() == std::numeric_limits<std::uint32_t>::max();
    case c10::kUInt64:
      return value.toUInt64() == std::numeric_limits<std::uint64_t>::max();
    case c10::kInt:
      return value.toLong() == std::numeric_limits<std::int32_t>::max();
    case c10::kLong:
      return value.toLong() == std::numeric_limits<std::int64_t>::max();
    default:
      return false;
  }
}

}  // namespace

bool may_fill_new_memory(const OpInfo& info) {
  const at::Context& context = at::globalContext();
  return context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory() &&
         info.name == "aten::fill_.Scalar";
}

bool fills_new_memory(const c10::Stack& stack) {
  if (stack.size() < 2) return false;
  // What is larger than any signed number is no scalar to it.
  if (!stack.back().isScalar() && !stack.back().isUnsigned()) return false;
  const c10::IValue& filled = stack[stack.size() - 2];
  if (!filled.isTensor() || !filled.toTensor().has_storage()) return false;
  const at::Tensor& tensor = filled.toTensor();
  if (!is_filling(stack.back().toScalar(), tensor.scalar_type())) return false;
  DeviceManager* const manager = active_manager(tensor.device());
  if (manager == nullptr) return false;
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  if (has_no_memory(storage)) return false;  // an operator that waits will make it
  EngineLock lock = manager->engine().lock();
  const Block* const block = manager->find(lock, storage);
  return block == nullptr || block->state == BlockState::kFresh;
}

}  // namespace lms::torch
