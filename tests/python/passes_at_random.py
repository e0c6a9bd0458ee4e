"""Random chains of operators over lists, which run in one pass over memory as far as they may.

For ``test_lists_that_wait.py``. On a GPU the kernels are LMS's own; their bits are PyTorch's.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch
from stress import harness
from stress.compare import bits_of, differences

import torch_lms

DEVICE = os.environ.get("TEST_DEVICE", "cpu")
WIDTH = {"cpu": 64, "cuda": 1024}[DEVICE]
SMALL = {"cpu": {"min_block": "4KiB"}, "cuda": {}}[DEVICE]
COUNT = 6

# Number of lists, and which numbers: one for all (s), one for each position (l), a factor (a).
OPERATORS = {
    "add": (1, "sl"),
    "sub": (1, "sl"),
    "mul": (1, "slt"),
    "div": (1, "slt"),
    "sqrt": (1, ""),
    "neg": (1, ""),
    "reciprocal": (1, ""),
    "lerp": (2, "s"),
    "addcmul": (3, "sl"),
    "addcdiv": (3, "sl"),
    "maximum": (2, ""),
    "minimum": (2, ""),
    "exp": (1, ""),  # is in no pass
}
OF_TWO = ("add", "sub", "mul", "div")


def _step(draw: random.Random, lists: list[list[torch.Tensor]]) -> None:
    """One operator, in place or not."""
    name = draw.choice(sorted(OPERATORS))
    count, numbers = OPERATORS[name]
    two = name in OF_TWO and draw.random() < 0.4
    chosen = [draw.choice(lists) for _ in range(2 if two else count)]
    arguments: list[Any] = list(chosen)
    keywords: dict[str, Any] = {}
    kind = draw.choice(numbers) if numbers and not two else ""
    value = draw.choice([1.0, -1.0, 0.1, 0.5, 0.9, 3, -0.25, 1e-8])
    if two and name in ("add", "sub"):
        keywords["alpha"] = value
    elif kind == "l":
        arguments.append([value * (i + 1) for i in range(COUNT)])
    elif kind == "t":
        arguments.append(torch.tensor(value, dtype=chosen[0][0].dtype, device=DEVICE))
    elif kind == "s":
        arguments.append(value)
    in_place = draw.random() < 0.6 and all(chosen[0] is not other for other in chosen[1:])
    if name in ("maximum", "minimum", "exp") and not in_place:
        return
    made = getattr(torch, f"_foreach_{name}{'_' if in_place else ''}")(*arguments, **keywords)
    if not in_place:
        # Its name may be the last of another list.
        lists[draw.randrange(len(lists)) if len(lists) > 4 else len(lists) - 1] = list(made)


def _run(seed: int, dtype: torch.dtype) -> Any:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    with torch.no_grad(), torch.device(DEVICE):
        sizes = [(WIDTH, WIDTH), (WIDTH + 1, WIDTH - 3), (WIDTH, 2 * WIDTH)]
        shapes = [draw.choice(sizes) for _ in range(COUNT)]
        lists = [[torch.randn(shape).to(dtype) for shape in shapes] for _ in range(5)]
        for tensors in lists:
            for tensor in tensors:
                tensor.add_(0)  # an operator has used it
        looks = []
        for _ in range(draw.randrange(8, 24)):
            _step(draw, lists)
            if draw.random() < 0.08:
                looks.append(draw.choice(draw.choice(lists)).float().sum())
        return {"lists": lists, "looks": looks}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("first", range(0, 60, 10))
def test_random_chains(first: int, dtype: torch.dtype) -> None:
    passes = 0
    for seed in range(first, first + 10):
        expected = bits_of(_run(seed, dtype))
        most = 2 * WIDTH * WIDTH * COUNT * torch.tensor([], dtype=dtype).element_size()
        with harness.managed(DEVICE, limit=5 * most, plan=False, plan_cache="off",
                             deferred_updates="true", **SMALL):  # fmt: skip
            with torch.device(DEVICE):
                # Something has to leave, and lists are large against what is left.
                others = [torch.ones(most // 4) for _ in range(4)]
                for other in others:
                    other.add_(1)
            wrong = differences(expected, bits_of(_run(seed, dtype)))
            passes += torch_lms.memory_stats(DEVICE)["deferred.in_passes"]
            del others
        assert not wrong, (seed, wrong[:5])
    assert passes > 0
