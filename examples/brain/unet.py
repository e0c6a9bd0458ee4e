"""A small 3D U-Net: nothing in it knows about memory."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


class ConvBlock(nn.Sequential):
    """3×3×3 convolutions, each normalised and activated; sizes stay."""

    def __init__(self, inputs: int, outputs: int, convolutions: int) -> None:
        layers: list[nn.Module] = []
        for index in range(convolutions):
            source = inputs if index == 0 else outputs
            layers += [
                nn.Conv3d(source, outputs, 3, padding=1, bias=False),
                nn.GroupNorm(4, outputs),
                nn.SiLU(),
            ]
        super().__init__(*layers)


class UNet3d(nn.Module):
    """[batch, 1, x, y, z] -> [batch, classes, x, y, z]; each side a multiple of 2^(levels - 1).

    Down by strided and up by transposed convolutions, since pooling and interpolation have no
    deterministic backward pass on the GPU. Skip connections are added, not concatenated: an
    operator then touches fewer bytes at once, and no memory limit can be smaller than what one
    operator touches.
    """

    def __init__(
        self, classes: int, width: int = 8, levels: int = 4, convolutions: int = 2
    ) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels)]
        self.encoders = nn.ModuleList(
            ConvBlock(1 if level == 0 else w, w, convolutions) for level, w in enumerate(widths)
        )
        pairs = list(pairwise(widths))
        self.downs = nn.ModuleList(nn.Conv3d(a, b, 2, stride=2) for a, b in pairs)
        self.ups = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, stride=2) for a, b in pairs)
        self.decoders = nn.ModuleList(ConvBlock(a, a, convolutions) for a, _ in pairs)
        self.head = nn.Conv3d(width, classes, 1)
        # Adam moves a weight by about its rate per step: a head that starts larger reaches
        # confident predictions within a demo's few steps.
        with torch.no_grad():
            self.head.weight.mul_(4)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for encoder, down in zip(self.encoders, self.downs, strict=False):
            skips.append(encoder(x))
            x = down(skips[-1])
        x = self.encoders[-1](x)
        for up, decoder in zip(reversed(self.ups), reversed(self.decoders), strict=True):
            x = decoder(up(x) + skips.pop())
        return self.head(x)


def parameter_count(model: nn.Module) -> int:
    """Trainable numbers in the model."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
