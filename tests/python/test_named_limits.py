"""The limit that an out-of-memory error names is one at which the operator does run.

``LMS_NAMED_LIMITS`` is the number of random programs.
"""

from __future__ import annotations

import os
import random
import re
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
    too_small,
)
from torch import Tensor
from torch.nn import functional

import torch_lms

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.pinned,
    pytest.mark.usefixtures("one_thread"),
]
PROGRAMS = int(os.environ.get("LMS_NAMED_LIMITS", "40"))
HOW = {"device": "cpu", "plan": "off", "plan_cache": "off", "min_block": 64, "slices": "parts"}

# What kernels allocate beside their results is not known before they ask for it.
WITH_TEMPORARIES = (
    "aten::convolution",
    "aten::native_batch_norm",
    "aten::native_dropout",
    "aten::sort",
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


@pytest.mark.parametrize("part", range(4))
def test_a_page_less_than_the_last_limit_is_too_small(part: int) -> None:
    """What the last error names is the smallest limit under which the program runs."""
    looked_at = 0
    for seed in range(1000 + part, 1000 + PROGRAMS // 2, 4):
        outcomes = _follow(seed)
        if len(outcomes) == 1:
            continue
        looked_at += 1
        failed, ran = outcomes[-2].limit // PAGE, outcomes[-1].limit // PAGE
        for pages in {ran - 1, random.Random(seed).randrange(failed, ran)}:
            again = run_at(program(seed), pages * PAGE, **settings(seed))
            assert again.bits is None, (seed, settings(seed), pages * PAGE, outcomes[-2].text)
    assert looked_at > PROGRAMS // 32


LARGE: dict[str, Callable[[], Tensor]] = {
    "what is made from what is away": lambda: numbers(256, 256) @ numbers(256, 256, seed=1),
    "several results": lambda: torch.cummax(numbers(256, 256), 0)[0],
    "a view": lambda: numbers(256, 300)[:, 44:].t() @ numbers(256, 256, seed=1),
    "parts of which two are made": lambda: functional.max_pool2d(numbers(1, 3, 256, 256), 2),
    "parts with small results": lambda: functional.layer_norm(numbers(40, 9000), (9000,)),
    "parts that begin anywhere": lambda: torch.softmax(numbers(1 + 61 * 5001)[1:].view(61, -1), 1),
    "parts beside what stays": lambda: numbers(64, 4096) * numbers(64, 4096)[:1].clone(),
    "parts of both": lambda: torch.cat([numbers(300, 301), numbers(300, 99, seed=1)], 1),
    "moved parts": lambda: torch.cat([numbers(1, 70001), numbers(1, 70003, seed=1)], 1),
    "embedding": lambda: functional.embedding(torch.arange(3000) % 200, numbers(200, 100)),
    "in place": lambda: numbers(512, 512).masked_fill_(numbers(512, 512, seed=1) > 0, 0.5),
}


@pytest.mark.parametrize("slices", ["off", "parts", "always"])
@pytest.mark.parametrize("name", LARGE)
def test_the_first_figure_of_an_operator_is_its_last(name: str, slices: str) -> None:
    """No operator fails twice, and under a page less than in the end the program does."""
    it = Program([(name, lambda world: world.put(LARGE[name]()))])
    how = HOW | {"slices": slices}
    plain = bits(it.run())
    outcomes = follow(it, 16 * KIB, **how)
    assert outcomes[-1].bits == plain
    assert len(outcomes) > 1
    again = [o for o in too_small(outcomes) if not o.operator.startswith(WITH_TEMPORARIES)]
    assert not again, [(o.limit, o.text) for o in outcomes]
    assert run_at(it, outcomes[-1].limit - PAGE, **how).bits is None
    assert run_at(it, outcomes[-1].limit + PAGE, **how).bits == plain


def _dropout() -> Tensor:
    torch.manual_seed(3)
    return torch.native_dropout(numbers(256, 256), 0.5, True)[0]


def _batch_norm() -> Tensor:
    return functional.batch_norm(
        numbers(256, 256), torch.zeros(256), torch.ones(256), training=True
    )


# What cannot be run again, with the bytes of its arguments and results.
ONCE: dict[str, tuple[Callable[[], Tensor], int]] = {
    "native_dropout": (_dropout, (256 + 256 + 64) * KIB),
    "native_batch_norm": (_batch_norm, (256 + 256) * KIB + 4 * PAGE),
}


@pytest.mark.parametrize("name", ONCE)
def test_the_figure_of_what_runs_once_has_room_for_all_its_results(name: str) -> None:
    """Its temporaries are what it may ask for beyond the first figure."""
    make, needed = ONCE[name]
    it = Program([(name, lambda world: world.put(make()))])
    plain = bits(it.run())
    outcomes = follow(it, 300 * KIB, **HOW)
    named = [o.named for o in outcomes if o.operator.startswith("aten::" + name)]
    assert named[0] >= needed, outcomes[0].text
    assert outcomes[-1].bits == plain


def test_the_figure_of_parts_grows_by_pages() -> None:
    """Parts that do not fit: no limit is named that is a byte more than there is."""
    it = Program([("", lambda world: world.put(LARGE["embedding"]()))])
    outcomes = follow(it, 16 * KIB, **HOW)
    assert all(o.limit % PAGE == 0 for o in outcomes), [o.limit for o in outcomes]


@pytest.mark.parametrize("count", [691_200, 131_072, 1_000_000, 2_621_439])
def test_the_figure_as_it_is_read_is_enough(count: int) -> None:
    """Three digits of it, as people copy them, and not the bytes behind."""
    how = HOW | {"slices": "off", "min_block": 4096}
    with (
        torch_lms.managed(limit=count * 4 * 5 // 3, **how),
        pytest.raises(torch.OutOfMemoryError) as error,
    ):
        torch.ones(count).exp()
    figure = re.search(r"smallest limit that could work here is (.*?) \(", str(error.value))[1]
    with torch_lms.managed(limit=figure, **how):
        torch.ones(count).exp()
