"""The limit that an out-of-memory error names is one at which the operator does run.

``LMS_NAMED_LIMITS`` is the number of random programs; ``survey()`` does more of them, and says what
it finds.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
import torch
from named_limits import (
    KIB,
    PAGE,
    Outcome,
    Program,
    bits,
    follow,
    numbers,
    program,
    run_at,
    settings,
    smallest,
    too_small,
)
from torch import Tensor
from torch.nn import functional

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]
PROGRAMS = int(os.environ.get("LMS_NAMED_LIMITS", "60"))
HOW = {"device": "cpu", "plan": "off", "plan_cache": "off", "min_block": 64}

# What kernels allocate beside their results is not known before they ask for it.
WITH_TEMPORARIES = (
    "aten::convolution",
    "aten::native_batch_norm",
)


def _follow(seed: int) -> list[Outcome]:
    it, how = program(seed), settings(seed)
    plain = bits(it.run())
    limit = random.Random(7 * seed + 1).choice([16, 32, 64, 128, 256, 1024]) * KIB
    outcomes = follow(it, limit, **how)
    assert outcomes[-1].bits == plain, (how, [o.limit for o in outcomes])
    return outcomes


@pytest.mark.parametrize("part", range(4))
def test_random_programs_run_at_the_limits_that_errors_name(part: int) -> None:
    """Every operator that fails runs under the limit of its own error; the last one runs all."""
    followed = 0
    for seed in range(part, PROGRAMS, 4):
        outcomes = _follow(seed)
        followed += len(outcomes) > 1
        for named, again in zip(outcomes, outcomes[1:], strict=False):
            assert again.limit % PAGE == 0 and again.limit >= named.limit + 4, (seed, named.text)
        wrong = [o for o in too_small(outcomes) if not o.operator.startswith(WITH_TEMPORARIES)]
        assert not wrong, (seed, settings(seed), [(o.limit, o.text) for o in wrong])
    assert followed > PROGRAMS // 16, "most programs fit at once"
