#include "adapters/torch/deferred/list_passes.h"

#include <ATen/Functions.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "adapters/torch/operators/call.h"
#include "adapters/torch/replay/replay.h"

namespace lms::torch {
namespace {

using Place = PassProgram::Place;

/// What the thread runs, for the operator's kernel.
ListPass*& pass_here() {
  static thread_local ListPass* pass = nullptr;
  return pass;
}

/// The operator, as the hook runs it.
struct PassOperator {
  OpInfo info;
  c10::OperatorHandle op;
  c10::SafeKernelFunction kernel;
};

const PassOperator& pass_operator(c10::DispatchKey key) {
  const auto make = [](c10::DispatchKey of) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("lms::list_pass", "");
    return PassOperator{describe(op, of), op, op.getComputedKernelForDispatchKey(of)};
  };
  static const PassOperator cpu = make(c10::DispatchKey::CPU);
  static const PassOperator cuda = make(c10::DispatchKey::CUDA);
  return key == c10::DispatchKey::CPU ? cpu : cuda;
}

bool lie_as_in_lists(const at::Tensor& one, const at::Tensor& other) {
  return one.sizes() == other.sizes() && one.strides() == other.strides() &&
         one.scalar_type() == other.scalar_type();
}

/// A number that becomes the same float by way of a double.
std::optional<double> real(const c10::IValue& value) {
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  if (value.isDouble()) return value.toDouble();
  if (value.isInt() && value.toInt() > -kMost && value.toInt() < kMost) {
    return static_cast<double>(value.toInt());
  }
  return std::nullopt;
}

bool in_memory(Place place) { return place != Place::kMade; }

/// Half of them of moderate size, a quarter of any, and a quarter odd ones, so that all pairs of
/// these meet in two lists, and each meets an ordinary one.
float any_float(std::minstd_rand& random) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr std::array kOdd{
      0.0F,   -0.0F,   kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(),
      1e-42F, -1e-40F, 3e38F};
  const auto draw = [&](int below) {
    return static_cast<int>(random() >> 8) % below;  // its lowest bits are the least random
  };
  const int kind = draw(4);
  if (kind == 0) return kOdd.at(static_cast<std::size_t>(draw(kOdd.size())));
  const int exponent = kind == 1 ? draw(250) - 126 : draw(24) - 12;
  const float mantissa = 1.0F + static_cast<float>(draw(1 << 20)) / static_cast<float>(1 << 20);
  return std::ldexp(draw(2) == 0 ? mantissa : -mantissa, exponent);
}

}  // namespace

std::optional<ListPass> ListPass::of(std::span<const std::shared_ptr<Part>> parts, Bytes most) {
  ListPass pass;
  for (const auto& part : parts) {
    if (!pass.take(part)) break;
  }
  if (pass.parts_.size() < 2 || !pass.is_connected() || pass.is_wanted_by_others() ||
      pass.bytes() > most) {
    return std::nullopt;
  }
  return pass;
}

bool ListPass::take(const std::shared_ptr<Part>& part) {
  const PassStep& step = part->info->step;
  if (step.kind == StepKind::kNone || part->rows || !part->waits || part->runs) return false;
  if (!parts_.empty() && part->grad_mode != parts_.front()->grad_mode) return false;
  const c10::Stack& arguments = part->arguments;
  std::array<c10::ArrayRef<c10::IValue>, 3> lists;
  for (std::size_t i = 0; i < step.lists; ++i) lists[i] = arguments[i].toListRef();
  const std::size_t count = lists.front().size();
  if (parts_.empty()) {
    positions_ = count;
    program_.type = lists.front()[0].toTensor().scalar_type();
    if (program_.type == c10::ScalarType::Double) return false;
    numbers_.resize(count);
  }
  if (count != positions_ || program_.steps.size() >= 64) return false;

  // Nothing of the pass changes before all of the part is known to fit.
  std::vector<Place> registers = program_.registers;
  std::vector<std::vector<at::Tensor>> added;
  const auto tensors_of = [&](std::size_t which) -> const std::vector<at::Tensor>& {
    return which < tensors_.size() ? tensors_[which] : added[which - tensors_.size()];
  };
  // A storage is at one position of one register, or who writes it is not known.
  std::vector<const c10::StorageImpl*> noted;
  bool accepted = false;
  const auto forget = c10::make_scope_exit([&] {
    if (accepted) return;
    for (const c10::StorageImpl* const storage : noted) places_.erase(storage);
  });
  const auto add = [&](std::vector<at::Tensor> list, Place place) {
    const auto which = static_cast<std::uint8_t>(registers.size());
    for (std::size_t k = 0; k < list.size(); ++k) {
      if (!places_.try_emplace(storage_of(list[k]), which, k).second) return PassProgram::kNone;
      noted.push_back(storage_of(list[k]));
    }
    registers.push_back(place);
    added.push_back(std::move(list));
    return which;
  };
  const auto find = [&](c10::ArrayRef<c10::IValue> list) {
    const auto known = places_.find(storage_of(list[0].toTensor()));
    if (known == places_.end()) {
      std::vector<at::Tensor> tensors;
      tensors.reserve(list.size());
      for (const c10::IValue& tensor : list) tensors.push_back(tensor.toTensor());
      return add(std::move(tensors), Place::kRead);
    }
    const std::uint8_t which = known->second.first;
    for (std::size_t k = 0; k < list.size(); ++k) {
      const at::Tensor& tensor = list[k].toTensor();
      const auto same = places_.find(storage_of(tensor));
      if (same == places_.end() || same->second != std::pair(which, k) ||
          tensors_of(which)[k].storage_offset() != tensor.storage_offset()) {
        return PassProgram::kNone;
      }
    }
    return which;
  };

  PassProgram::Step taken{step.kind,          PassProgram::kNone, PassProgram::kNone,
                          PassProgram::kNone, PassProgram::kNone, PassProgram::kNone,
                          /*each=*/false};
  const std::array operands{&taken.a, &taken.b, &taken.c};
  for (std::size_t i = 0; i < step.lists; ++i) {
    if (lists[i].size() != count) return false;
    for (std::size_t k = 0; k < count; ++k) {
      const at::Tensor& like = tensors_.empty() ? lists.front()[k].toTensor() : tensors_.front()[k];
      if (!lie_as_in_lists(lists[i][k].toTensor(), like)) return false;
    }
    const std::uint8_t found = find(lists[i]);
    if (found == PassProgram::kNone || registers[found] == Place::kOne) return false;
    *operands.at(i) = found;
  }
  if (step.tensor != PassStep::kNowhere) {
    const c10::IValue& value = arguments[step.tensor];
    if (!value.isTensor() || value.toTensor().scalar_type() != program_.type ||
        value.toTensor().dim() != 0 ||
        value.toTensor().device() != lists.front()[0].toTensor().device()) {
      return false;
    }
    taken.b = add({value.toTensor()}, Place::kOne);
    if (taken.b == PassProgram::kNone) return false;
  }
  std::vector<double> numbers;
  if (step.number != PassStep::kNowhere) {
    const c10::IValue& value = arguments[step.number];
    const bool each = value.isList();
    if (each && value.toListRef().size() != count) return false;
    for (std::size_t k = 0; k < count; ++k) {
      const auto number = real(each ? value.toListRef()[k] : value);
      if (!number) return false;
      numbers.push_back(*number);
    }
    taken.number = program_.numbers;
    taken.each = each;
  }
  if (part->makes.empty()) {
    taken.to = taken.a;
    if (registers[taken.a] == Place::kRead) registers[taken.a] = Place::kWritten;
  } else {
    taken.to = add(part->makes, Place::kMade);
    if (taken.to == PassProgram::kNone) return false;
  }
  const auto addresses = static_cast<std::size_t>(std::ranges::count_if(registers, in_memory));
  if (registers.size() > PassKernels::kMostRegisters || addresses > PassKernels::kMostAddresses ||
      program_.numbers + (numbers.empty() ? 0U : 1U) > PassKernels::kMostNumbers) {
    return false;
  }
  program_.registers = std::move(registers);
  program_.steps.push_back(taken);
  std::ranges::move(added, std::back_inserter(tensors_));
  if (!numbers.empty()) {
    ++program_.numbers;
    for (std::size_t k = 0; k < count; ++k) numbers_[k].push_back(numbers[k]);
  }
  parts_.push_back(part);
  accepted = true;
  return true;
}

/// What several pieces run, call by call, is not one pass: it would read nothing less often.
bool ListPass::is_connected() const {
  std::vector<std::uint8_t> of(program_.registers.size());
  std::iota(of.begin(), of.end(), std::uint8_t{0});
  const auto join = [&](std::uint8_t one, std::uint8_t other) {
    if (other == PassProgram::kNone) return;
    const std::uint8_t from = of[other];
    std::ranges::replace(of, from, of[one]);
  };
  for (const PassProgram::Step& step : program_.steps) {
    for (const std::uint8_t operand : {step.b, step.c, step.to}) join(step.a, operand);
  }
  return std::ranges::all_of(of, [&](std::uint8_t set) { return set == of.front(); });
}

bool ListPass::is_wanted_by_others() const {
  // What parts hold of each storage (their copies of tensors here are no more).
  std::unordered_map<c10::StorageImpl*, std::size_t> ours;
  for (const auto& part : parts_) {
    for (const StorageUse& use : part->uses) {
      const auto place = places_.find(use.storage);
      const bool made =
          place != places_.end() && program_.registers[place->second.first] == Place::kMade;
      if (made) ++ours[use.storage];
    }
  }
  return std::ranges::any_of(ours, [](const auto& one) {
    return c10::raw::intrusive_ptr::use_count(one.first) > one.second;
  });
}

Bytes ListPass::bytes() const {
  Bytes all = 0;
  for (std::size_t which = 0; which < tensors_.size(); ++which) {
    if (!in_memory(program_.registers[which])) continue;
    for (const at::Tensor& tensor : tensors_[which]) all += static_cast<Bytes>(tensor.nbytes());
  }
  return all;
}

bool ListPass::may_run(PassKernels& kernels) const {
  return kernels.may_run(program_, [&] {
    const ReplayScope scope({});
    // Numbers of all the kinds that kernels tell apart, beside those of the call; and lists that go
    // through memory by vectors, or cannot.
    constexpr std::int64_t kEven = 4096;
    for (const std::optional<double> number :
         {std::optional<double>(), std::optional(1.0), std::optional(0.25), std::optional(-0.75)}) {
      for (const std::int64_t elements : {kEven, kEven + 3}) {
        if (!same_bits(kernels, elements, number)) return false;
      }
    }
    return true;
  });
}

bool ListPass::same_bits(PassKernels& kernels, std::int64_t elements,
                         std::optional<double> number) const {
  const at::Tensor& like = tensors_.front().front();
  std::vector<std::vector<at::Tensor>> by_operators(tensors_.size());
  PassPosition position{.elements = static_cast<std::uint64_t>(elements)};
  std::vector<std::vector<at::Tensor>> by_kernel(tensors_.size());
  std::minstd_rand random(12345);
  for (std::size_t which = 0; which < tensors_.size(); ++which) {
    const Place place = program_.registers[which];
    if (!in_memory(place)) continue;
    at::Tensor host = at::empty({place == Place::kOne ? 1 : elements}, at::kFloat);
    std::generate_n(host.mutable_data_ptr<float>(), host.numel(),
                    [&] { return any_float(random); });
    if (place == Place::kOne) host = host.reshape({}).fill_(-1.25);
    at::Tensor tensor = host.to(like.scalar_type()).to(like.device());
    by_kernel[which] = {tensor.clone()};
    by_operators[which] = {std::move(tensor)};
    position.addresses.push_back(by_kernel[which].front().mutable_data_ptr());
  }
  position.numbers = numbers_.front();
  if (number) std::ranges::fill(position.numbers, *number);
  run_operators(by_operators, 1, number);
  if (!kernels.run(program_, {&position, 1})) return false;
  const auto type = like.element_size() == sizeof(float) ? at::kInt : at::kShort;
  for (std::size_t which = 0; which < tensors_.size(); ++which) {
    if (program_.registers[which] != Place::kWritten) continue;
    if (!at::equal(by_operators[which].front().view(type), by_kernel[which].front().view(type))) {
      return false;
    }
  }
  return true;
}

void ListPass::run_operators(std::vector<std::vector<at::Tensor>>& tensors, std::size_t positions,
                             std::optional<double> number) const {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = *parts_[i];
    const PassProgram::Step& of = program_.steps[i];
    const PassStep& step = part.info->step;
    c10::Stack stack = part.arguments;
    const std::array operands{of.a, of.b, of.c};
    for (std::size_t list = 0; list < step.lists; ++list) {
      stack[list] = c10::List<at::Tensor>(c10::ArrayRef<at::Tensor>(tensors[operands.at(list)]));
    }
    if (step.tensor != PassStep::kNowhere) stack[step.tensor] = tensors[of.b].front();
    if (step.number != PassStep::kNowhere) {
      c10::IValue& value = stack[step.number];
      if (value.isList()) {
        auto some = c10::impl::GenericList(value.toList().elementType());
        for (std::size_t k = 0; k < positions; ++k) {
          some.push_back(number ? c10::IValue(*number) : value.toListRef()[k]);
        }
        value = std::move(some);
      } else if (number) {
        value = *number;
      }
    }
    part.kernel->callBoxed(*part.op, part.keys, &stack);
    if (!part.makes.empty()) tensors[of.to] = stack.back().toTensorVector();
  }
}

bool ListPass::run(PassKernels* kernels) {
  kernels_ = kernels;
  // As lists of the optimizer's: those that are written first.
  c10::List<at::Tensor> written;
  c10::List<at::Tensor> read;
  for (std::size_t which = 0; which < tensors_.size(); ++which) {
    const Place place = program_.registers[which];
    if (!in_memory(place)) continue;
    for (const at::Tensor& tensor : tensors_[which]) {
      (place == Place::kWritten ? written : read).push_back(tensor);
    }
  }
  c10::Stack stack{std::move(written), std::move(read)};
  ListPass* const before = std::exchange(pass_here(), this);
  const auto restore = c10::make_scope_exit([&] { pass_here() = before; });
  const auto key =
      tensors_.front().front().is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  const PassOperator& of = pass_operator(key);
  first().run(of.info, of.kernel, of.op, c10::DispatchKeySet(key), stack);
  return has_run_;
}

void ListPass::compute(c10::Stack& stack) {
  TORCH_CHECK(pass_here() != nullptr, "lms::list_pass is LMS's own");
  pass_here()->compute_here();
  stack.resize(stack.size() - 2);
}

void ListPass::compute_here() {
  if (kernels_ == nullptr) {
    auto tensors = tensors_;
    has_run_ = true;
    run_operators(tensors, positions_, std::nullopt);
    return;
  }
  std::vector<PassPosition> positions(positions_);
  for (std::size_t k = 0; k < positions_; ++k) {
    positions[k].elements = static_cast<std::uint64_t>(tensors_.front()[k].numel());
    positions[k].numbers = numbers_[k];
    for (std::size_t which = 0; which < tensors_.size(); ++which) {
      const Place place = program_.registers[which];
      if (!in_memory(place)) continue;
      const at::Tensor& tensor = tensors_[which][place == Place::kOne ? 0 : k];
      positions[k].addresses.push_back(const_cast<void*>(tensor.const_data_ptr()));
    }
  }
  has_run_ = true;  // also where it throws: some of it may have been queued
  has_run_ = kernels_->run(program_, positions);
}

}  // namespace lms::torch
