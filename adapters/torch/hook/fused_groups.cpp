#include "adapters/torch/hook/fused_groups.h"

#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <array>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "adapters/torch/deferred/deferred.h"
#include "adapters/torch/errors.h"
#include "adapters/torch/registry.h"
#include "adapters/torch/thread_state.h"

namespace lms::torch {
namespace {

namespace jit = ::torch::jit;

constexpr auto kGroups =
    std::to_array<const char*>({"prim::TensorExprGroup", "prim::TensorExprDynamicGroup",
                                "prim::FusionGroup", "prim::oneDNNFusionGroup"});

using Originals = std::unordered_map<c10::Symbol, std::shared_ptr<jit::Operator>>;

Originals& originals() {
  static auto* originals = new Originals;  // never destroyed: programs compile during process exit
  return *originals;
}

/// The kernel's inputs are held, and what it makes: results, which under deterministic algorithms
/// PyTorch fills first, and which may else leave between that and the launch.
class Launch {
 public:
  Launch(const jit::Stack& stack, std::size_t inputs) : scopes_(thread_state().access_scopes) {
    StorageUses storages;
    for (std::size_t i = stack.size() - inputs; i < stack.size(); ++i) {
      collect_storages(stack[i], /*writes=*/false, /*inside=*/true, storages);
    }
    for (const StorageUse& use : storages) run_deferred(*use.storage, /*writes=*/false);
    Pins pins;
    pins.add(storages);
    scopes_.push_back({.pins = std::move(pins), .holds = true});
  }
  ~Launch() {
    AccessScope scope = std::move(scopes_.back());
    scopes_.pop_back();
    if (ended_) scope.pins.release_after_operator();
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  /// It has not thrown. What it made is complete: it may leave before anybody has used it.
  void end(const jit::Stack& stack, std::size_t outputs) {
    StorageUses storages;
    for (std::size_t i = stack.size() - outputs; i < stack.size(); ++i) {
      collect_storages(stack[i], /*writes=*/true, /*inside=*/true, storages);
    }
    scopes_.back().pins.add(storages);
    ended_ = true;
  }

 private:
  std::vector<AccessScope>& scopes_;
  bool ended_ = false;
};

/// For a node of a graph that is compiled.
jit::Operation operation_of(const jit::Node* node) {
  return [inner = originals().at(node->kind())->getOperation(node), inputs = node->inputs().size(),
          outputs = node->outputs().size()](jit::Stack& stack) mutable {
    if (!any_active()) {
      inner(stack);
      return;
    }
    guarded([&] {
      Launch launch(stack, inputs);
      inner(stack);
      launch.end(stack, outputs);
    });
  };
}

/// What creates the operation of a node, by the kind; PyTorch has one, or a build without it none.
std::shared_ptr<jit::Operator> original_of(c10::Symbol kind) {
  const auto& found = jit::getAllOperatorsFor(kind);
  return found.size() == 1 && !found.front()->hasOperation() ? found.front() : nullptr;
}

}  // namespace

void hold_inputs_of_fused_groups() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const char* const name : kGroups) {
      const auto kind = c10::Symbol::fromQualString(name);
      if (auto original = original_of(kind)) originals().emplace(kind, std::move(original));
    }
    // From here on other threads may look there.
    for (const auto& [kind, original] : originals()) {
      jit::deregisterOperator(original->schema());
      jit::registerOperator(jit::Operator(kind, &operation_of, original->aliasAnalysisKind()));
    }
  });
}

}  // namespace lms::torch
