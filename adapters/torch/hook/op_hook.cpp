#include "adapters/torch/hook/op_hook.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "adapters/torch/fused/rule.h"
#include "adapters/torch/hook/fused_groups.h"
#include "adapters/torch/hook/held_arguments.h"
#include "adapters/torch/hook/op_run.h"
#include "adapters/torch/hook/typed_kernel.h"
#include "adapters/torch/operators/op_info.h"
#include "adapters/torch/slices/cut.h"
#include "adapters/torch/slices/in_place_rule.h"
#include "adapters/torch/slices/in_slices.h"
#include "adapters/torch/version.h"

namespace lms::torch {
namespace {

/// Keys whose kernels see raw memory of a device type. The first is the ordinary one.
std::vector<c10::DispatchKey> backend_keys(c10::DeviceType type) {
  using K = c10::DispatchKey;
  if (type == c10::DeviceType::CUDA) {
    return {K::CUDA, K::SparseCUDA, K::SparseCsrCUDA, K::QuantizedCUDA, K::NestedTensorCUDA};
  }
  return {K::CPU, K::SparseCPU, K::SparseCsrCPU, K::QuantizedCPU, K::NestedTensorCPU, K::MkldnnCPU};
}

/// Bumped when an operator is defined or its definition taken back, so that running hooks look
/// again.
std::atomic<std::uint64_t> registrations{0};
std::atomic<std::uint64_t> registrations_seen{0};

void wrap_new_operators();

}  // namespace

bool notice_new_operators() {
  if (registrations.load(std::memory_order_relaxed) ==
      registrations_seen.load(std::memory_order_relaxed)) {
    return false;
  }
  wrap_new_operators();
  return true;
}

namespace {

class HookedKernel final : public c10::OperatorKernel {
 public:
  HookedKernel(OpInfo info, c10::SafeKernelFunction kernel)
      : info_(std::move(info)), kernel_(std::move(kernel)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) {
    if (notice_new_operators() && !token(kernel_)->isValid()) {
      op.redispatchBoxed(keys, stack);
      return;
    }
    run_operator(info_, kernel_, op, keys, *stack);
  }

 private:
  OpInfo info_;
  c10::SafeKernelFunction kernel_;
};

class HookedHolder final : public c10::OperatorKernel {
 public:
  HookedHolder(HoldingKernel info, c10::SafeKernelFunction kernel)
      : info_(std::move(info)), kernel_(std::move(kernel)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) {
    run_holding(info_, kernel_, op, keys, *stack);
  }

 private:
  HoldingKernel info_;
  c10::SafeKernelFunction kernel_;
};

class Listener final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle& /*op*/) override { ++registrations; }
  void onOperatorDeregistered(const c10::OperatorHandle& /*op*/) override { ++registrations; }
};

/// Its composite kernels do all through other operators. Others' may use addresses themselves.
bool is_of_pytorch(const c10::OperatorHandle& op) {
  static constexpr std::array kSpaces = std::to_array<std::string_view>(
      {"aten", "inductor", "mkldnn", "prepacked", "prim", "prims", "quantized", "sparse"});
  const std::string_view name = op.operator_name().name;
  return std::ranges::binary_search(kSpaces, name.substr(0, name.find("::")));
}

/// Composite kernels do their work through other operators, which are hooked themselves.
bool only_composite(const c10::OperatorHandle& op, c10::DispatchKey key) {
  using K = c10::DispatchKey;
  return !op.hasKernelForDispatchKey(key) &&
         !op.hasKernelForDispatchKey(K::CompositeExplicitAutograd) &&
         !op.hasKernelForDispatchKey(K::CompositeExplicitAutogradNonFunctional);
}

/// Replacing kernels is what we are here for; PyTorch's warning about it would only alarm users.
class Silence final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

/// A kernel of ours, and what it wraps.
struct Wrapped {
  c10::SafeKernelFunction own;
  c10::KernelFunction kernel;
};

/// Where a kernel is registered. An operator's name stays where it is as long as the operator
/// lives; PyTorch's own live as long as the process.
struct Place {
  const c10::OperatorName* op;
  c10::DispatchKey key;

  bool operator==(const Place&) const = default;
};

struct PlaceHash {
  std::size_t operator()(const Place& place) const noexcept {
    return std::hash<const void*>{}(place.op) * 31 + static_cast<std::size_t>(place.key);
  }
};

/// The hooks that live, for operators that are registered later.
struct Hooks {
  std::mutex mutex;
  std::vector<OpHook::State*> live;
  /// PyTorch's operators. Threads may still be inside the kernels of a hook that is gone, so they
  /// are kept; the next hook registers them again.
  std::unordered_map<Place, Wrapped, PlaceHash> wrapped;
  /// Those that wrap what has been replaced since, or what may get another schema.
  std::vector<c10::KernelFunction> retired;
  /// All of ours that have ever been, and those of them that hold arguments (HookedHolder). They
  /// are kept, so none is taken for another.
  std::unordered_set<const void*> ours;
  std::unordered_set<const void*> holding;
  std::optional<c10::RegistrationHandleRAII> listener;
};

Hooks& hooks() {
  static auto* hooks = new Hooks;  // never destroyed: operators run during process exit
  return *hooks;
}

}  // namespace

struct OpHook::State {
  explicit State(c10::DeviceType type) : keys(backend_keys(type)) {}

  void wrap_all() {
    Silence silence;
    c10::WarningUtils::WarningHandlerGuard quiet(&silence);
    auto& dispatcher = c10::Dispatcher::singleton();
    let_go_of_stale();
    for (const auto& name : dispatcher.getAllOpNames()) {
      if (std::string_view(name.name).starts_with("lms::")) continue;
      const auto op = dispatcher.findSchema(name);
      if (!op) continue;
      for (const c10::DispatchKey key : keys) wrap(*op, key);
      if (wraps_composites) wrap_composite(*op);
      if (keys.front() == c10::DispatchKey::CPU) wrap_holding(*op);
    }
  }

  /// What wraps a kernel that has been taken back: it would be in the way of a newer one.
  void let_go_of_stale() {
    // Not by erasing alone: a handle that another is moved into forgets what it has to do.
    for (auto& each : registered) {
      if (!each.own->isValid()) each.handle.reset();
    }
    std::erase_if(registered, [](const auto& each) { return !each.handle; });
  }

  void wrap(const c10::OperatorHandle& op, c10::DispatchKey key) {
    if (only_composite(op, key) || !op.hasComputedKernelForDispatchKey(key)) return;
    const auto own = op.getComputedKernelForDispatchKey(key);
    if (hooks().ours.contains(identity(own)) || put_again(op, key, own)) return;
    OpInfo info = describe(op, key);
    info.fused = fused_role(info.name);
    if (key == keys.front()) {
      info.cut = cut_rule(info.name);
      info.reads_rows = SlicedCall::reads_rows(info.name, info.cut);
      info.in_place = in_place_rule(op, info);
    }
    if (info.arguments.empty()) return;
    auto typed = typed_kernel(info, own, op);
    put(op, key, own,
        typed ? *std::move(typed)
              : c10::KernelFunction::makeFromBoxedFunctor(
                    std::make_unique<HookedKernel>(std::move(info), own)));
  }

  void wrap_composite(const c10::OperatorHandle& op) {
    constexpr auto kComposite = c10::DispatchKey::CompositeImplicitAutograd;
    const c10::DispatchKey key = keys.front();
    if (is_of_pytorch(op) || !only_composite(op, key) || !op.hasKernelForDispatchKey(kComposite)) {
      return;
    }
    const auto own = op.getComputedKernelForDispatchKey(key);
    if (hooks().ours.contains(identity(own))) return;
    OpInfo info = describe(op, key);
    if (info.arguments.empty()) return;
    info.may_go_unseen = true;
    put(op, kComposite, own,
        c10::KernelFunction::makeFromBoxedFunctor(
            std::make_unique<HookedKernel>(std::move(info), own)));
  }

  void wrap_holding(const c10::OperatorHandle& op) {
    for (HoldingKernel& info : holding_kernels(op)) {
      const c10::DispatchKey at = info.at;
      const auto own = op.getComputedKernelForDispatchKey(info.computed);
      if (hooks().holding.contains(identity(own)) || put_again(op, at, own)) continue;
      auto kernel = c10::KernelFunction::makeFromBoxedFunctor(
          std::make_unique<HookedHolder>(std::move(info), own));
      hooks().holding.insert(identity(kernel));
      put(op, at, own, kernel);
    }
  }

  /// Whether there was a kernel of ours that wraps `own`.
  bool put_again(const c10::OperatorHandle& op, c10::DispatchKey key,
                 const c10::SafeKernelFunction& own) {
    const auto& known = hooks().wrapped;
    const auto found = known.find({&op.operator_name(), key});
    if (found == known.end() || !still_the_same(found->second.own, own)) return false;
    put(op, key, own, found->second.kernel, /*again=*/true);
    return true;
  }

  void put(const c10::OperatorHandle& op, c10::DispatchKey key, const c10::SafeKernelFunction& own,
           const c10::KernelFunction& kernel, bool again = false) {
    if (!again) keep(op, key, {own, kernel});
    registered.push_back({token(own), c10::Dispatcher::singleton().registerImpl(
                                          op.operator_name(), key, kernel, std::nullopt, nullptr,
                                          "LMS (Large Model Support)")});
  }

  static void keep(const c10::OperatorHandle& op, c10::DispatchKey key, Wrapped wrapped) {
    Hooks& all = hooks();
    all.ours.insert(identity(wrapped.kernel));
    if (!is_of_pytorch(op)) {
      all.retired.push_back(std::move(wrapped.kernel));
    } else if (const auto [at, fresh] =
                   all.wrapped.try_emplace({&op.operator_name(), key}, wrapped);
               !fresh) {
      all.retired.push_back(std::exchange(at->second, std::move(wrapped)).kernel);
    }
  }

  struct Registered {
    std::shared_ptr<c10::KernelToken> own;  ///< of what the kernel wraps
    std::optional<c10::RegistrationHandleRAII> handle;
  };

  /// They are of no device: one hook has them all.
  bool wraps_composites = false;
  std::vector<c10::DispatchKey> keys;
  std::vector<Registered> registered;
};

namespace {

void wrap_new_operators() {
  Hooks& all = hooks();
  std::lock_guard guard(all.mutex);
  const auto seen = registrations.load();
  if (seen == registrations_seen.load()) return;
  for (auto* state : all.live) state->wrap_all();
  registrations_seen = seen;
}

}  // namespace

OpHook::OpHook(c10::DeviceType type) : state_(std::make_unique<State>(type)) {
  hold_inputs_of_fused_groups();
  Hooks& all = hooks();
  std::lock_guard guard(all.mutex);
  if (!all.listener) {
    all.listener.emplace(
        c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Listener>()));
  }
  state_->wraps_composites = all.live.empty();
  state_->wrap_all();
  all.live.push_back(state_.get());
}

OpHook::~OpHook() {
  Hooks& all = hooks();
  std::lock_guard guard(all.mutex);
  std::erase(all.live, state_.get());
  if (!state_->wraps_composites || all.live.empty()) return;
  state_->registered.clear();
  all.live.front()->wraps_composites = true;
  all.live.front()->wrap_all();
}

std::vector<std::string> operator_facts(c10::DeviceType type) {
  const auto treatment = [](OpKind kind) {
    switch (kind) {
      case OpKind::kList:
        return "in parts";
      case OpKind::kTransparent:
        return "through its parts";
      case OpKind::kKeep:
        return "kept";
      default:
        return "pinned";
    }
  };
  auto& dispatcher = c10::Dispatcher::singleton();
  const c10::DispatchKey key = backend_keys(type).front();
  std::vector<std::string> facts;
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || !std::string_view(name.name).starts_with("aten::")) continue;
    if (only_composite(*op, key) || !op->hasComputedKernelForDispatchKey(key)) continue;
    const OpInfo info = describe(*op, key);
    facts.push_back(info.name + ": " +
                    (info.arguments.empty() ? "left alone" : treatment(info.kind)) +
                    (info.rerun == Rerun::kNever ? "" : ", may run again"));
  }
  return facts;
}

std::size_t OpHook::wrapped() const { return state_->registered.size(); }

}  // namespace lms::torch
