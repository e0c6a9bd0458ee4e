"""The 3D U-Net of Isensee et al. (2017): residual context on the way down, deep supervision."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.models.blocks import init_convolutions, run_block


class ConvBlock(nn.Sequential):
    """A 3-D convolution with bias, instance normalisation (eps 0.001), LeakyReLU 0.3."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__(
            nn.Conv3d(inputs, outputs, kernel, stride, padding=kernel // 2),
            nn.InstanceNorm3d(outputs, eps=0.001, affine=True),
            nn.LeakyReLU(0.3, inplace=True),
        )


class Down(nn.Module):
    """One level of the way down: into the level, then a residual context (dropout 0.3 within)."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.enter = ConvBlock(inputs, outputs, stride=stride)
        self.context = nn.Sequential(
            ConvBlock(outputs, outputs), nn.Dropout3d(dropout), ConvBlock(outputs, outputs)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        return x + self.context(x)


class Up(nn.Module):
    """One level of the way up: nearest upsampling, convolution, skip, localisation."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.reduce = ConvBlock(2 * outputs, outputs)
        self.localise = nn.Sequential(
            ConvBlock(2 * outputs, outputs), ConvBlock(outputs, outputs, kernel=1)
        )

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = self.reduce(functional.interpolate(x, scale_factor=2, mode="nearest"))
        return self.localise(torch.cat([x, skip], dim=1))


class UNet3d(nn.Module):
    """N x modalities x D x H x W to N x labels x D x H x W, probabilities.

    The sides must be divisible by 2^(depth-1). 8,269,561 parameters at 4 modalities and 3 labels.
    """

    def __init__(
        self,
        modalities: int = 4,
        labels: int = 3,
        width: int = 16,
        depth: int = 5,
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        self.checkpointing = False
        widths = [width * 2**level for level in range(depth)]
        inputs = [modalities, *widths[:-1]]
        self.downs = nn.ModuleList(
            Down(i, o, stride=1 if level == 0 else 2, dropout=dropout)
            for level, (i, o) in enumerate(zip(inputs, widths, strict=True))
        )
        self.ups = nn.ModuleList(Up(w) for w in reversed(widths[:-1]))
        self.heads = nn.ModuleList(nn.Conv3d(w, labels, 1) for w in (widths[2::-1]))
        init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for down in self.downs:
            x = run_block(down, x, checkpointing=self.checkpointing, random=True)
            skips.append(x)
        skips.pop()
        total: Tensor | None = None
        first_head = len(self.ups) - len(self.heads)
        for index, up in enumerate(self.ups):
            x = run_block(up, x, skips.pop(), checkpointing=self.checkpointing)
            if index < first_head:
                continue
            scores = self.heads[index - first_head](x)
            if total is not None:
                scores = scores + functional.interpolate(total, scale_factor=2, mode="nearest")
            total = scores
        assert total is not None
        return torch.sigmoid(total)


def dice_loss(probabilities: Tensor, target: Tensor) -> Tensor:
    """1 - mean Dice per sample and label, smoothed by 1e-5, in single precision."""
    probabilities = probabilities.float()
    axes = tuple(range(2, probabilities.dim()))
    overlap = (probabilities * target).sum(axes)
    total = probabilities.sum(axes) + target.sum(axes)
    return 1 - ((2 * overlap + 1e-5) / (total + 1e-5)).mean()
