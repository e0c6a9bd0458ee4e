#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "adapters/torch/operators/draws.h"
#include "adapters/torch/operators/numerics.h"
#include "adapters/torch/operators/op_info.h"
#include "engine/block.h"
#include "steps/step_log.h"

namespace lms::torch {

/// Where the tensor's bytes are; it has a storage.
inline c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

struct Call;
class FusedRule;

/// A reference of one's own to the storage.
inline c10::intrusive_ptr<c10::StorageImpl> share(const c10::Storage& storage) {
  return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage.unsafeGetStorageImpl());
}

/// A strided tensor over a storage of its own kind: its bytes are all that it is.
inline bool is_plain(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return tensor.layout() == c10::kStrided && impl.has_storage() &&
         !impl.has_symbolic_sizes_strides() && !impl.key_set().has(c10::DispatchKey::Python) &&
         !impl.key_set().has(c10::DispatchKey::ZeroTensor) && !tensor.is_quantized() &&
         impl.unsafe_storage().unsafeGetStorageImpl() != nullptr;
}

/// Kernels over lists refuse to write it.
inline bool is_refused_in_lists(const at::Tensor& tensor) {
  return tensor.is_inference() && !c10::InferenceMode::is_enabled();
}

/// Who the bytes of one storage are to lineages: alive, dropped, or a ghost (its storage has died,
/// and others can only be computed again with what it held). Guarded by Lineages' lock.
struct Origin {
  static constexpr std::size_t kNoResult = SIZE_MAX;

  explicit Origin(c10::weak_intrusive_ptr<c10::StorageImpl> alive) : storage(std::move(alive)) {}
  /// Chains of lineages, however long, are taken apart one link after the other.
  ~Origin();
  Origin(const Origin&) = delete;
  Origin& operator=(const Origin&) = delete;

  BlockUid uid = 0;
  Bytes bytes = 0;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  ///< expired: a ghost
  c10::intrusive_ptr<c10::StorageImpl> ghost;         ///< a ghost's bytes, while there are any
  /// The lineage: how the bytes came about, in order. Empty: nobody knows.
  std::vector<std::shared_ptr<const Call>> calls;
  std::size_t result = kNoResult;  ///< of the first call; none: it writes to memory taken before
  /// The lineage until the operator that is just writing.
  std::vector<std::shared_ptr<const Call>> calls_before;
  std::uint32_t version = 0;  ///< writes so far
  std::uint32_t depth = 0;    ///< of lineages that need lineages; 0 without one
  bool dropped = false;
  /// Replays that are still to read it: it is not dropped.
  std::uint32_t wanted = 0;
  std::uint64_t visit = 0;  ///< the last walk through the graph that has been here
  std::vector<std::weak_ptr<Origin>> dependents;  ///< whose lineages read it as it is now
};

/// A small tensor's memory, which no block stands for: before it is written lineages get a copy; or
/// a copy at once.
struct SmallSource {
  explicit SmallSource(c10::Storage memory) : storage(std::move(memory)) {}
  c10::Storage storage;
};

/// What it takes to make a tensor over the same bytes again.
struct TensorSpec {
  enum class Source : std::uint8_t { kSelf, kOrigin, kSmall };
  Source source = Source::kSelf;
  std::shared_ptr<Origin> origin;
  std::uint32_t version = 0;  ///< of the origin's bytes
  /// Keeps a storage alive that would die unheard.
  c10::intrusive_ptr<c10::StorageImpl> held;
  std::shared_ptr<SmallSource> small;
  caffe2::TypeMeta type;
  c10::DispatchKeySet keys;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t offset = 0;
  bool requires_grad = false;
  bool wrapped_number = false;
};

/// How a batch norm's result comes from its saved statistics.
enum class Rounding : std::uint8_t {
  kOther,    ///< not known
  kPlain,    ///< as batch_norm_elemt does it: fma(weight * (x - mean), deviation, bias)
  kFlushed,  ///< likewise, but what is too small to be normal is 0
};

/// One run of an operator, ready to be run again.
struct Call {
  struct Argument {
    enum class Kind : std::uint8_t { kValue, kTensor, kTensors, kMaybeTensors };
    Kind kind = Kind::kValue;
    c10::IValue value;         ///< of kValue
    std::vector<int> tensors;  ///< positions in `tensors`; -1: undefined
  };
  const OpInfo* info = nullptr;
  const c10::SafeKernelFunction* kernel = nullptr;
  std::optional<c10::OperatorHandle> op;
  c10::DispatchKeySet keys;
  bool grad_mode = false;
  Numerics numerics;
  std::optional<Draws> draws;
  std::uint64_t epoch = 0;  ///< of hooks; the kernels of earlier ones are gone
  std::vector<Argument> arguments;
  std::vector<TensorSpec> tensors;
  /// Results that a cheaper way to the first result takes (batch norm's statistics), and whose way
  /// that is; null: there are none.
  std::vector<TensorSpec> saved;
  const FusedRule* saved_for = nullptr;
  Rounding rounding = Rounding::kOther;  ///< if there are `saved`
};

/// A block that stands for a tensor storage.
class StorageBlock : public Block {
 public:
  using Block::Block;
  std::shared_ptr<Origin> origin;  ///< guarded by Lineages' lock; null: it is in no lineage
};

}  // namespace lms::torch
