#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <span>

namespace lms::torch {

/// How many nodes of autograd's this thread has made: those of a call are the later ones.
[[nodiscard]] std::uint64_t nodes_so_far();

/// True while this thread runs a node of a backward pass.
[[nodiscard]] bool in_backward_pass();

/// True if a call, before which `so_far` was nodes_so_far(), has made nodes whose backward passes
/// are C++ of others (torch::autograd::Function): these may use what it has taken and made by
/// addresses, with no operator of which the hook would hear. `results`: what it has returned, or
/// taken and perhaps written.
[[nodiscard]] bool made_unseen_nodes(std::span<const c10::IValue> results, std::uint64_t so_far);

}  // namespace lms::torch
