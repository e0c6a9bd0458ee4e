"""Programs that are run plainly and with everything dropped, and held against each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from stress.compare import bits_of, differences
from torch import Tensor

import torch_lms

N = 4096
Program = Callable[[], Any]


class Programs(dict[str, tuple[Program, int]]):
    """By their names, with the ``min_block`` that decides which tensors are small to them."""

    def add(self, function: Program | None = None, *, min_block: int = 1) -> Any:
        """A decorator: the program's result is compared."""

        def put(one: Program) -> Program:
            self[one.__name__] = one, min_block
            return one

        return put if function is None else put(function)

    def check(self, name: str) -> None:
        """The program has the same bits with everything dropped, and something was."""
        one, min_block = self[name]
        stats = drop_everything(one, min_block)
        assert stats["drops"] > 0 and stats["remakes"] > 0, "nothing was dropped: it shows nothing"


def numbers(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers that an operator has made of others, so that it is known how they came about."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*(shape or (N,)), generator=generator, dtype=dtype) * 1


COUNTS = ("evictions", "drops", "remakes", "bytes_remade", "plan.steps")


def counts(before: dict[str, int] | None = None) -> dict[str, int]:
    """What has been counted since ``before``: counters go on from one enable() to the next."""
    stats = torch_lms.memory_stats("cpu")
    return {name: int(stats.get(name, 0)) - (before or {}).get(name, 0) for name in COUNTS}


def drop_everything(one: Program, min_block: int = 1, **settings: Any) -> dict[str, int]:
    """Runs it plainly and with everything dropped, holds both against each other; the counts."""
    expected = bits_of(one())
    with torch_lms.managed(
        device="cpu", limit="256MiB", min_block=min_block, stress="drop", **settings
    ):
        before = counts()
        result = one()
        assert not differences(expected, bits_of(result))
        stats = counts(before)
    assert not differences(expected, bits_of(result)), "after disable()"
    return stats
