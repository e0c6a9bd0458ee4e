#pragma once

#include <vector>

#include "steps/step_log.h"

namespace lms {

/// Which operators of a step are run again as one with those that have made the block that they
/// write. Such a chain is: an operator of place 1 (ReplayCost::place), which allocates one block,
/// and then operators of ever higher places that write nothing but all of this block, in place,
/// allocate nothing, and read beside it as many other blocks, of its size, as they have operands.
/// Nobody else writes the block in between; whoever reads it does not matter, since a lineage is
/// run from its start.
std::vector<bool> joined_operators(const StepShape& shape);

/// Has conversions of products read, when they are run again, what the product was computed from
/// (TraceOperator::replay_reads): where each makes one block from one, nobody writes what the
/// product was computed from, and that lives no shorter than the product.
void fold_products(StepShape& shape);

/// Sets what it takes to run each operator again (TraceOperator::replay_ms and replay_reads), from
/// the times of the trace and from the shape's ReplayCosts.
void price_replays(StepShape& shape);

}  // namespace lms
