"""What lies on a GPU beside LMS, and counts under its limit: the limits of programs come on top."""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Iterator

import torch

from .program import Program, listing

_ROOM = 6 << 20  # for small tensors and cuBLAS, in segments of 2 MiB, and what the arena leaves
_ROOM_OF_STREAMS = 20 << 20  # for what is no more than 10 MiB, on a stream of its own


def clear() -> None:
    """Gives back what PyTorch's allocator has cached.

    A workspace of cuBLAS's lives on where the allocator had room for it: in a segment of gigabytes,
    perhaps, which then cannot be given back.
    """
    torch.cuda.synchronize()
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


@contextlib.contextmanager
def ballast(device: str, bytes_: int) -> Iterator[None]:
    """So much is in use, and nobody's, while LMS is off before and after."""
    if not device.startswith("cuda"):
        yield
        return
    clear()
    held = torch.empty(bytes_, dtype=torch.uint8, device=device)
    try:
        yield
    finally:
        del held
        clear()


def base(program: Program) -> int:
    """What is to be added to a program's limits, just before it runs."""
    if not program.device.startswith("cuda"):
        return 0
    clear()
    room = _ROOM + _ROOM_OF_STREAMS * ("cuda.Stream" in listing(program))
    return int(torch.cuda.memory_reserved(program.device)) + room


def soil(device: str, dice: random.Random) -> None:
    """Leaves noise in the memory that PyTorch's allocator hands out next."""
    if not device.startswith("cuda"):
        return
    large = [torch.empty(1 << 28, dtype=torch.uint8, device=device)]
    small = [torch.empty(1 << 12, dtype=torch.uint8, device=device) for _ in range(512)]
    for tensor in large + small:
        tensor.fill_(dice.randrange(1, 256))
