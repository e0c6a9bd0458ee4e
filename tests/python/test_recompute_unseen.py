"""What nobody tells of: writes through older pointers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from recompute_support import N, counts, numbers
from stress.compare import bits_of, differences
from torch import Tensor

import torch_lms


def _numpy(one: Tensor) -> Callable[[int, float], None]:
    array = one.numpy()

    def write(at: int, value: float) -> None:
        array[at] = value

    return write


def _through(other: Tensor) -> Callable[[int, float], None]:
    array = other.numpy()

    def write(at: int, value: float) -> None:
        array.reshape(-1)[at] = value

    return write


WAYS: dict[str, Callable[[Tensor], tuple[Tensor, Callable[[int, float], None]]]] = {
    "numpy": lambda one: (one, _numpy(one)),
    "from_numpy": lambda one: (torch.from_numpy(array := one.numpy().copy()), array.__setitem__),
    "dlpack": lambda one: (one, _through(torch.from_dlpack(one))),
    "a view's array": lambda one: (one, _through(one.view(2, 2))),
    "frombuffer": lambda one: (
        torch.frombuffer(memory := bytearray(one.numpy().tobytes()), dtype=torch.float32),
        _through(torch.frombuffer(memory, dtype=torch.float32)),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_small_tensors_are_written_through_what_is_older_than_management(way: str) -> None:
    def program(w: Tensor, write: Callable[[int, float], None]) -> Any:
        x = numbers(1, 1024, 4)
        y = x * w
        write(0, 7)
        z = x * w
        u = x + w
        write(1, 8)
        v = x * w
        return y, z, u, v, w.clone()

    expected = bits_of(program(*WAYS[way](torch.arange(4.0))))
    w, write = WAYS[way](torch.arange(4.0))
    with torch_lms.managed(device="cpu", limit="256MiB", min_block=N, stress="drop"):
        before = counts()
        result = program(w, write)
        assert not differences(expected, bits_of(result))
        assert counts(before)["remakes"] > 0, "nothing was dropped: it shows nothing"
