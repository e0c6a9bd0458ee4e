"""Pieces that several models share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def run_block(
    block: Callable[..., Tensor], *inputs: Tensor, checkpointing: bool, random: bool = False
) -> Tensor:
    """`block(*inputs)`; with `checkpointing`, its inside is recomputed in the backward pass.

    `random` says that the block draws random numbers (dropout), which it must then draw again.
    """
    if checkpointing and torch.is_grad_enabled():
        return checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=random)
    return block(*inputs)


def parameter_count(model: nn.Module) -> int:
    """The number of trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def init_convolutions(model: nn.Module) -> None:
    """He initialisation (fan out) of every convolution; normalisations start as the identity."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Conv3d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
