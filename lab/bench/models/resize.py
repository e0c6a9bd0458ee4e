"""Bilinear resizing, with a gradient that adds up in a fixed order as well.

PyTorch's own kernel adds up gradients in the order in which its threads come, on a GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def bilinear(x: Tensor, size: tuple[int, int]) -> Tensor:
    """`x` (N x C x H x W) at `size`, corners not aligned: by PyTorch's own kernel."""
    return functional.interpolate(x, size=size, mode="bilinear", align_corners=False)


def _weights(inputs: int, outputs: int, device: torch.device) -> Tensor:
    """outputs x inputs: the part of each sample in each result."""
    place = (torch.arange(outputs, device=device) + 0.5) * (inputs / outputs) - 0.5
    place = place.clamp(0, inputs - 1)[:, None]
    return (1 - (place - torch.arange(inputs, device=device)).abs()).clamp(min=0)


def bilinear_by_products(x: Tensor, size: tuple[int, int]) -> Tensor:
    """The same up to rounding, as two matrix products; the result is channels-last."""
    vertical = _weights(x.shape[-2], size[0], x.device).to(x.dtype)
    horizontal = _weights(x.shape[-1], size[1], x.device).to(x.dtype)
    resized = vertical @ x @ horizontal.T
    return resized.contiguous(memory_format=torch.channels_last)
