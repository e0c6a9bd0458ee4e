#include "adapters/torch/deferred/deferrable.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "adapters/torch/operators/call.h"
#include "adapters/torch/operators/storage_positions.h"
#include "adapters/torch/replay/replay.h"

namespace lms::torch {

bool strides_alike(c10::IntArrayRef sizes, c10::IntArrayRef one, c10::IntArrayRef other) {
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1 && one[d] != other[d]) return false;
  }
  return true;
}

at::Tensor alias_of(const at::Tensor& tensor) {
  return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/false));
}

at::Tensor unmade_like(const at::Tensor& tensor, c10::Device device, c10::Allocator* allocator) {
  // What was read from a file, or is over somebody's memory, has none.
  if (allocator == nullptr) allocator = c10::GetAllocator(device.type());
  auto made = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), tensor.numel() * tensor.element_size(),
      c10::DataPtr(nullptr, device), allocator, /*resizable=*/true);
  const auto key = device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(made)), c10::DispatchKeySet(key), tensor.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  return result;
}

bool has_plain_type(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case c10::kFloat:
    case c10::kDouble:
    case c10::kHalf:
    case c10::kBFloat16:
      return true;
    default:
      return false;
  }
}

bool may_wait_for(EngineLock& lock, DeviceManager& manager, const at::Tensor& tensor) {
  if (has_no_memory(*storage_of(tensor))) return true;
  Block* const block = manager.find_or_track(lock, *storage_of(tensor));
  return block != nullptr && !block->kept && !block->died && block->state != BlockState::kFresh;
}

at::Tensor copy_of(const at::Tensor& tensor) {
  at::Tensor copy = tensor.clone();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return copy;
}

namespace {

/// A number that kernels refuse for tensors of real numbers, or of some types.
bool may_be_refused(const c10::IValue& number) {
  if (number.isComplexDouble()) return true;
  constexpr double kMost = std::numeric_limits<float>::max();
  return number.isDouble() && std::isfinite(number.toDouble()) &&
         std::abs(number.toDouble()) > kMost;
}

/// A tensor that is a number: kernels take it along with any other. (Of no dimension, or they might
/// refuse it.)
bool is_number(const at::Tensor& tensor, const DeviceManager& manager) {
  return tensor.dim() == 0 && is_plain(tensor) && !tensor.is_complex() &&
         (tensor.device() == manager.device() || tensor.device().is_cpu());
}

/// The arguments of one call, by what they are to a part.
class Caller {
 public:
  Caller(DeviceManager& manager, const OpInfo& info, const c10::OperatorHandle& op,
         const c10::Stack& stack)
      : manager_(manager),
        info_(info),
        makes_(info.deferral == Deferral::kMakes),
        arguments_(stack.end() - info.argument_count, stack.end()),
        reads_only_(info.argument_count, true),
        copies_(op.operator_name().name == "aten::copy_" ||
                op.operator_name().name == "aten::_foreach_copy_") {
    for (const auto& argument : info.arguments) reads_only_[argument.index] = !argument.writes;
  }

  /// False: nothing of it may wait.
  bool read() {
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      const c10::IValue& value = arguments_[i];
      if (value.isTensor() && value.toTensor().defined()) {
        if (!read_tensor(i, value.toTensor())) return false;
      } else if (value.isTensorList()) {
        if (!read_list(i, value.toTensorVector())) return false;
      } else if (value.isOptionalTensorList() || may_be_refused(value)) {
        return false;
      }
    }
    if (!read_scalars()) return false;
    // What it makes is as its first list.
    if (makes_ && (lists_.empty() || lists_.front().numbers)) return false;
    if (lists_.empty()) return !tensors_.empty();
    return tensors_.empty() && lists_alike() && !positions_overlap();
  }

  [[nodiscard]] bool over_lists() const { return !lists_.empty(); }
  [[nodiscard]] std::size_t length() const { return length_; }

  /// Where the lists (0, if there are none) are cut: by position, which piece it is in. Four lists,
  /// as optimizers have, of one piece take no more than `most` bytes, or the piece is one position.
  [[nodiscard]] std::vector<std::size_t> pieces(Bytes most) const {
    std::vector<std::size_t> pieces(std::max<std::size_t>(length_, 1), 0);
    const auto list = std::ranges::find(lists_, false, &List::numbers);
    if (list == lists_.end()) return pieces;
    Bytes bytes = 0;
    std::size_t piece = 0;
    for (std::size_t k = 0; k < length_; ++k) {
      const auto more = 4 * static_cast<Bytes>(list->tensors[k].nbytes());
      if (bytes > 0 && bytes + more > most) {
        bytes = 0;
        ++piece;
      }
      bytes += more;
      pieces[k] = piece;
    }
    return pieces;
  }

  /// Whether this position of the lists (0, if there are none) may wait. Under the engine's lock.
  bool may_wait(EngineLock& lock, std::size_t position) const {
    const Operands operands = operands_at(position);
    if (operands.empty() || is_small(*operands.front().tensor)) return false;
    bool writes = makes_;
    for (const Operand& one : operands) {
      if (!agrees(*operands.front().tensor, *one.tensor) ||
          !may_wait_for(lock, manager_, *one.tensor)) {
        return false;
      }
      if (!one.writes) continue;
      writes = true;
      for (const Operand& other : operands) {
        if (&one != &other && storage_of(*one.tensor) == storage_of(*other.tensor)) return false;
      }
      if (!one.tensor->is_non_overlapping_and_dense()) return false;
      // A number that lies in what is written is refused at the call.
      if (is_storage_of_number(*storage_of(*one.tensor), position)) return false;
    }
    return writes;
  }

  /// Whether it writes one of these blocks at this position. Under the engine's lock.
  bool writes_one_of(EngineLock& lock, const std::unordered_set<BlockUid>& blocks,
                     std::size_t position) const {
    return std::ranges::any_of(operands_at(position), [&](const Operand& one) {
      if (!one.writes) return false;
      const Block* const block = manager_.find(lock, *storage_of(*one.tensor));
      return block != nullptr && blocks.contains(block->uid);  // none: nothing has been made yet
    });
  }

  [[nodiscard]] StorageUses uses_at(std::size_t position) const {
    StorageUses uses;
    for (const Operand& one : operands_at(position)) {
      uses.push_back({storage_of(*one.tensor), one.writes});
    }
    return uses;
  }

  /// What is small, as it is now; nothing of it is looked at later.
  void copy_numbers(const std::vector<std::size_t>& positions) {
    for (const std::size_t i : numbers_) arguments_[i] = copy_of(arguments_[i].toTensor());
    for (auto& list : lists_) {
      if (!list.numbers) continue;
      std::vector<at::Tensor> wanted;
      for (const std::size_t position : positions) wanted.push_back(list.tensors[position]);
      const std::vector<at::Tensor> copies = at::stack(wanted).unbind();
      for (std::size_t k = 0; k < positions.size(); ++k) {
        list.tensors[positions[k]] = copies[k];
      }
    }
  }

  /// The program's tensors that it writes at these positions.
  [[nodiscard]] std::vector<at::Tensor> written_at(
      const std::vector<std::size_t>& positions) const {
    std::vector<at::Tensor> written;
    for (const auto& list : lists_) {
      if (reads_only_[list.index]) continue;
      for (const std::size_t position : positions) written.push_back(list.tensors[position]);
    }
    return written;
  }

  [[nodiscard]] std::unique_ptr<Part> part_for(const std::vector<std::size_t>& positions) const {
    auto part = std::make_unique<Part>();
    part->arguments = arguments_;
    for (const std::size_t i : tensors_) {
      part->arguments[i] = alias_of(arguments_[i].toTensor());
    }
    for (const auto& list : lists_) {
      c10::List<at::Tensor> some;
      some.reserve(positions.size());
      for (const std::size_t position : positions) {
        const at::Tensor& tensor = list.tensors[position];
        some.push_back(list.numbers ? tensor : alias_of(tensor));
      }
      part->arguments[list.index] = std::move(some);
    }
    take_scalars(positions, part->arguments);
    for (const std::size_t position : positions) {
      part->uses.append(uses_at(position));
      if (!makes_) continue;
      const at::Tensor& like = *operands_at(position).front().tensor;
      part->makes.push_back(unmade_like(like, like.device(), storage_of(like)->allocator()));
      part->uses.push_back({storage_of(part->makes.back()), true});
    }
    return part;
  }

  /// The call for these positions alone, on the program's own tensors.
  [[nodiscard]] c10::Stack call_for(const c10::Stack& stack,
                                    const std::vector<std::size_t>& positions) const {
    c10::Stack call(stack.end() - info_.argument_count, stack.end());
    for (const auto& list : lists_) {
      const auto all = call[list.index].toTensorVector();
      c10::List<at::Tensor> some;
      for (const std::size_t position : positions) some.push_back(all[position]);
      call[list.index] = std::move(some);
    }
    take_scalars(positions, call);
    return call;
  }

 private:
  /// Of the lists of scalars, those at these positions.
  void take_scalars(const std::vector<std::size_t>& positions, c10::Stack& arguments) const {
    for (const std::size_t i : scalar_lists_) {
      const auto all = arguments_[i].toList();
      auto some = c10::impl::GenericList(all.elementType());
      some.reserve(positions.size());
      for (const std::size_t position : positions) some.push_back(all.get(position));
      arguments[i] = std::move(some);
    }
  }

  [[nodiscard]] bool is_storage_of_number(const c10::StorageImpl& storage,
                                          std::size_t position) const {
    const auto lies_there = [&](const at::Tensor& tensor) {
      return storage_of(tensor) == &storage;
    };
    return std::ranges::any_of(
               numbers_, [&](std::size_t i) { return lies_there(arguments_[i].toTensor()); }) ||
           std::ranges::any_of(lists_, [&](const List& list) {
             return list.numbers && lies_there(list.tensors[position]);
           });
  }

  struct Operand {
    const at::Tensor* tensor;
    bool writes;
  };
  using Operands = c10::SmallVector<Operand, 6>;
  struct List {
    std::size_t index;
    std::vector<at::Tensor> tensors;
    bool numbers;  ///< copied, and not looked at later
  };

  bool read_tensor(std::size_t i, const at::Tensor& tensor) {
    if (!is_plain(tensor)) return false;
    if (reads_only_[i] && is_number(tensor, manager_)) {
      if (copies_ && tensor.device() != manager_.device()) return false;
      numbers_.push_back(i);
      return true;
    }
    tensors_.push_back(i);
    return tensor.device() == manager_.device() && has_plain_type(tensor);
  }

  bool read_list(std::size_t i, std::vector<at::Tensor> tensors) {
    if (tensors.empty()) return true;
    if (length_ != 0 && tensors.size() != length_) return false;
    length_ = tensors.size();
    const at::Tensor& first = tensors.front();
    bool numbers = reads_only_[i];
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.defined() || !is_plain(tensor) || tensor.device() != first.device() ||
          tensor.scalar_type() != first.scalar_type()) {
        return false;  // as in the splitter of lists: parts might take another path
      }
      if (!reads_only_[i] && is_refused_in_lists(tensor)) return false;
      numbers = numbers && is_number(tensor, manager_);
    }
    if (!numbers && (first.device() != manager_.device() || !has_plain_type(first))) return false;
    lists_.push_back({i, std::move(tensors), numbers});
    return true;
  }

  /// The lists of scalars; false: one that is not as long as the others.
  bool read_scalars() {
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      const c10::IValue& value = arguments_[i];
      if (!value.isList() || value.isTensorList()) continue;
      if (lists_.empty() || value.toListRef().size() != length_) return false;
      for (const c10::IValue& element : value.toListRef()) {
        if (may_be_refused(element)) return false;
      }
      scalar_lists_.push_back(i);
    }
    return true;
  }

  /// Kernels look at the whole of their lists when they choose between a fast path and a slow one:
  /// as in the splitter of lists, a part must not take another than the whole.
  [[nodiscard]] bool lists_alike() const {
    for (std::size_t k = 0; k < length_; ++k) {
      const at::Tensor* first = nullptr;
      for (const auto& list : lists_) {
        if (list.numbers) continue;
        const at::Tensor& tensor = list.tensors[k];
        if (first == nullptr) first = &tensor;
        if (!tensor.is_non_overlapping_and_dense() || !agrees(*first, tensor)) return false;
      }
    }
    return true;
  }

  /// What one position writes another uses as well: in which order, the kernel says.
  [[nodiscard]] bool positions_overlap() const { return !storages_differ() && ranges_overlap(); }

  /// Whether each tensor of the lists has a storage of its own: nearly always.
  [[nodiscard]] bool storages_differ() const {
    StoragePositions met(lists_.size() * length_);
    std::size_t tensors = 0;
    for (const auto& list : lists_) {
      if (list.numbers) continue;
      for (const at::Tensor& tensor : list.tensors) {
        if (met.first(storage_of(tensor), tensors) != tensors) return false;
        ++tensors;
      }
    }
    return true;
  }

  [[nodiscard]] bool ranges_overlap() const {
    struct Range {
      const c10::StorageImpl* storage;
      std::int64_t begin;
      std::int64_t end;
      std::size_t position;
      bool writes;
    };
    std::vector<Range> ranges;
    for (const auto& list : lists_) {
      for (std::size_t k = 0; !list.numbers && k < length_; ++k) {
        const at::Tensor& tensor = list.tensors[k];
        if (tensor.numel() == 0) continue;
        const std::int64_t begin = tensor.storage_offset();  // dense: see lists_alike()
        ranges.push_back({storage_of(tensor), begin * tensor.element_size(),
                          (begin + tensor.numel()) * tensor.element_size(), k,
                          !reads_only_[list.index]});
      }
    }
    std::ranges::sort(ranges, {},
                      [](const Range& one) { return std::pair(one.storage, one.begin); });
    const Range* longest = nullptr;  // of those before in the storage
    for (const Range& one : ranges) {
      const bool meets =
          longest != nullptr && longest->storage == one.storage && one.begin < longest->end;
      if (meets && longest->position != one.position && (longest->writes || one.writes))
        return true;
      if (!meets || one.end > longest->end) longest = &one;
    }
    return false;
  }

  [[nodiscard]] Operands operands_at(std::size_t position) const {
    Operands operands;
    for (const std::size_t i : tensors_) {
      operands.push_back({&arguments_[i].toTensor(), !reads_only_[i]});
    }
    for (const auto& list : lists_) {
      if (!list.numbers) operands.push_back({&list.tensors[position], !reads_only_[list.index]});
    }
    return operands;
  }

  [[nodiscard]] bool agrees(const at::Tensor& one, const at::Tensor& other) const {
    return one.sizes() == other.sizes() && one.scalar_type() == other.scalar_type() &&
           (lists_.empty() || one.strides() == other.strides());
  }

  /// Of a storage that is no block's.
  [[nodiscard]] bool is_small(const at::Tensor& tensor) const {
    return static_cast<Bytes>(storage_of(tensor)->nbytes()) < manager_.min_block();
  }

  DeviceManager& manager_;
  const OpInfo& info_;
  const bool makes_;
  c10::Stack arguments_;
  std::vector<bool> reads_only_;
  const bool copies_;
  std::size_t length_ = 0;
  std::vector<std::size_t> numbers_;  ///< positions of tensors that are copied
  std::vector<std::size_t> tensors_;  ///< of those that are not
  std::vector<List> lists_;
  std::vector<std::size_t> scalar_lists_;
};

}  // namespace

Deferrable what_may_wait(DeviceManager& manager, const WhoWaits& who, const OpInfo& info,
                         const c10::SafeKernelFunction& kernel, const c10::OperatorHandle& op,
                         c10::DispatchKeySet keys, const c10::Stack& stack) {
  Deferrable result;
  Caller call(manager, info, op, stack);
  if (!call.read()) return result;
  if (call.over_lists() == (info.deferral == Deferral::kElements)) return result;
  const std::size_t length = std::max<std::size_t>(call.length(), 1);
  std::vector<bool> for_long(length, false);
  if (who.is_behind) {
    for (std::size_t k = 0; k < length; ++k) for_long[k] = who.is_behind(call.uses_at(k));
  }
  std::vector<std::size_t> waiting;
  std::vector<std::size_t> others;
  const bool all = who.chosen == nullptr || who.others_too;
  const bool any_chosen = who.chosen != nullptr && !who.chosen->empty();
  {
    EngineLock lock = manager.engine().lock();
    for (std::size_t k = 0; k < length; ++k) {
      const bool picked = any_chosen && call.writes_one_of(lock, *who.chosen, k);
      for_long[k] = for_long[k] || picked || who.chosen == nullptr;
      const bool waits = (all || picked) && call.may_wait(lock, k);
      (waits ? waiting : others).push_back(k);
    }
  }
  if (waiting.empty()) return result;
  if (!others.empty()) result.rest = call.call_for(stack, others);
  const bool makes = info.deferral == Deferral::kMakes;
  if (makes) result.made.resize(call.length());
  const std::span arguments(stack.end() - info.argument_count, stack.end());
  if (manager.counted_versions().counts(info, kernel, op, keys, arguments)) {
    result.counted = call.written_at(waiting);
  }
  {
    const c10::impl::ExcludeDispatchKeyGuard below(above_kernels());
    const c10::impl::DisablePythonDispatcher no_python;
    const InParts in_parts;
    call.copy_numbers(waiting);
  }
  const std::vector<std::size_t> pieces = call.pieces(who.piece);
  std::map<std::pair<std::size_t, bool>, std::vector<std::size_t>> bundles;
  for (const std::size_t k : waiting) bundles[{pieces[k], for_long[k]}].push_back(k);
  for (const auto& [key, positions] : bundles) {
    auto part = call.part_for(positions);
    part->for_long = key.second;
    part->info = &info;
    part->kernel = &kernel;
    part->op = op;
    part->keys = keys;
    part->grad_mode = c10::GradMode::is_enabled();
    for (std::size_t i = 0; i < part->makes.size(); ++i) {
      result.made[positions[i]] = alias_of(part->makes[i]);
    }
    result.parts.push_back(std::move(part));
  }
  return result;
}

}  // namespace lms::torch
