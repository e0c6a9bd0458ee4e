"""Numbers by which one kernel is held against the calls that it takes the place of."""

from __future__ import annotations

import torch
from torch import Tensor

BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def any_bits(count: int, dtype: torch.dtype, random: torch.Generator) -> Tensor:
    """Numbers of which every other is any: NaNs of all kinds, infinities, denormals, zeros."""
    size = 8 * dtype.itemsize
    end = min(2 ** (size - 1), 2**63 - 1)
    drawn = torch.randint(-(2 ** (size - 1)), end, (count,), generator=random)
    numbers = drawn.to(BITS[dtype.itemsize]).view(dtype)
    numbers[::2] = torch.randn(numbers[::2].shape, generator=random).to(dtype)
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40, -1e-40]).to(dtype)
    places = numbers[1::6]
    places.copy_(special[torch.arange(places.numel()) % special.numel()])
    return numbers


def per_channel(channels: int, dtype: torch.dtype, random: torch.Generator, shift: int) -> Tensor:
    """Each kind of number in some channel."""
    kinds = torch.tensor(
        [1.0, -1.0, 0.0, -0.0, 1e-8, -1e-8, 1e-40, 3e38, -torch.inf, torch.nan, 65504.0, -1e-40]
    )
    at = (torch.arange(channels) + shift) % (2 * kinds.numel())
    chosen = kinds[at % kinds.numel()]
    return torch.where(at < kinds.numel(), chosen, torch.randn(channels, generator=random)).to(
        dtype
    )


def bits_of(tensor: Tensor) -> Tensor:
    flat = tensor.cpu().contiguous().view(-1)
    return flat.view(BITS[tensor.dtype.itemsize])
