"""What the tests of operators that wait share."""

from __future__ import annotations

import torch

import torch_lms

MODES = ("all", "random")


def waiting() -> int:
    """How many parts wait now."""
    return torch_lms.memory_stats("cpu")["deferred.waiting"]


def put_off() -> int:
    """How many parts have ever waited."""
    return torch_lms.memory_stats("cpu")["deferred.parts"]


def managed_tensor(*shape: int, value: float = 1.0) -> torch.Tensor:
    """On the device, managed, and used by an operator before."""
    return torch.full(shape or (64, 64), float(value)) + 0
