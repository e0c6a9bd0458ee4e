"""What the tests of operators that wait share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from stress.probe import DEVICES

import torch_lms

MODES = ("all", "random")


@pytest.fixture(autouse=True, params=DEVICES)
def on_device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device of the test, and of the tensors that it makes."""
    with torch.device(request.param):
        yield request.param


def _statistics() -> dict[str, int]:
    return torch_lms.memory_stats(torch.get_default_device().type)


def waiting() -> int:
    """How many parts wait now."""
    return _statistics()["deferred.waiting"]


def put_off() -> int:
    """How many parts have ever waited."""
    return _statistics()["deferred.parts"]


def managed_tensor(*shape: int, value: float = 1.0) -> torch.Tensor:
    """On the device, managed, and used by an operator before."""
    return torch.full(shape or (64, 64), float(value)) + 0
