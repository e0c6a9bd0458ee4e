#include "adapters/torch/hook/typed_kernel.h"

#include <string>
#include <unordered_map>

#include "adapters/torch/hook/typed_operators.h"

namespace lms::torch {

std::optional<c10::KernelFunction> typed_kernel(const OpInfo& info,
                                                const c10::SafeKernelFunction& kernel,
                                                const c10::OperatorHandle& op) {
  using All = std::unordered_map<std::string, const TypedOperator*>;
  static const All all = [] {
    All found;
    for (const auto group : {typed_matrices(), typed_layers(), typed_pointwise(), typed_lists()}) {
      for (const TypedOperator& entry : group) {
        std::string name(entry.name);
        if (!entry.overload.empty()) name.append(".").append(entry.overload);
        found.emplace(std::move(name), &entry);
      }
    }
    return found;
  }();
  if (info.kind == OpKind::kKeep || info.takes_stream || info.goes_on) return std::nullopt;
  const auto found = all.find(info.name);
  if (found == all.end()) return std::nullopt;
  return found->second->make(info, kernel, op);
}

}  // namespace lms::torch
