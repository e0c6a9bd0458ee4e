#include <algorithm>
#include <array>

#include "adapters/torch/fused/rule.h"

namespace lms::torch {

// A line each; their order is FusedRole::rule.
extern const FusedKind kNormKind;  // norm_rule.cpp
extern const FusedKind kPassKind;  // pass_rule.cpp

namespace {

constexpr std::array kKinds{&kNormKind, &kPassKind};

}  // namespace

FusedRole fused_role(std::string_view name) {
  for (std::size_t rule = 0; rule < kKinds.size(); ++rule) {
    const auto& names = kKinds[rule]->operators;
    if (const auto found = std::ranges::find(names, name); found != names.end()) {
      return {static_cast<std::uint8_t>(rule), static_cast<std::uint8_t>(found - names.begin())};
    }
  }
  return {};
}

std::vector<std::unique_ptr<FusedRule>> make_fused_rules(c10::Device device, Kernels& kernels) {
  std::vector<std::unique_ptr<FusedRule>> rules;
  for (const FusedKind* kind : kKinds) rules.push_back(kind->make(device, kernels));
  return rules;
}

}  // namespace lms::torch
