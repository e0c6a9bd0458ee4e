"""Looks at single blocks, and moves them, through the adapter's operators."""

from __future__ import annotations

import contextlib

import pytest
import torch

from .registry import data

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def state(tensor: torch.Tensor) -> str:
    """``unmanaged``, ``resident``, ``absent`` or ``kept``."""
    return str(torch.ops.lms.state(tensor))


def block(*shape: int, device: str, value: int = 99) -> torch.Tensor:
    """Noise in a managed block: a storage is tracked from its first use as an input."""
    tensor = data(*shape, device=device, value=value) * 1
    tensor.add_(0)
    # Under stress it has left already.
    assert state(tensor) in ("resident", "absent"), f"a fresh block is {state(tensor)}"
    return tensor


def send_away(tensor: torch.Tensor) -> None:
    """Evict a block, which must be possible, and must show."""
    assert torch.ops.lms.evict(tensor), f"a {state(tensor)} block did not leave"
    assert state(tensor) == "absent"


def reference(*shape: int, value: int = 99) -> torch.Tensor:
    """What ``block`` of the same shape and value holds, on the CPU and made without LMS's help."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(value))


def same(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether the bytes agree; both are compared on the CPU."""
    a, b = (t.detach().cpu().contiguous().reshape(-1) for t in (actual, expected))
    return actual.shape == expected.shape and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def repeatable_cudnn() -> contextlib.AbstractContextManager[None]:
    """cuDNN's repeatable algorithms, chosen without trying them out."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True)
