#pragma once

#include "trace/trace.h"

namespace lms {

/// The step as it would be if each weight were updated as soon as its gradient is final: every
/// fused operator of the optimizer becomes one operator a weight, which follows the last one that
/// uses the weight, its gradient or its state before, and after which the gradient dies. Gradients
/// kept from step to step are no more. Times, and the order of all else, are as before.
///
/// An operator counts as one of the optimizer if its name has `_fused_` and it uses lists of equal
/// lengths of which the second is the gradients, all born in the step (as PyTorch's do). Throws
/// Error, with the reason, if there is none.
Trace with_updates_in_backward(const Trace& trace);

}  // namespace lms
