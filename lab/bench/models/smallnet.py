"""A small convolutional classifier for loops whose steps differ: it takes images of any size, and
has a block that can be left out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.models.blocks import init_convolutions, run_block


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch normalisation around a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class SmallNet(nn.Module):
    """A classifier: N x 3 x H x W to N x classes. Most of its memory is at half resolution."""

    def __init__(self, classes: int = 100, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.checkpointing = False
        # Whether the extra block is part of the model in the next forward pass.
        self.use_extra = False
        self.stem = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.fine = nn.ModuleList(ResidualBlock(width) for _ in range(depth))
        self.extra = ResidualBlock(width)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False)
        self.coarse = nn.ModuleList(ResidualBlock(2 * width) for _ in range(depth))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2 * width, classes)
        init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in (*self.fine, *([self.extra] if self.use_extra else [])):
            x = run_block(block, x, checkpointing=self.checkpointing)
        x = self.down(x)
        for block in self.coarse:
            x = run_block(block, x, checkpointing=self.checkpointing)
        return self.fc(torch.flatten(self.pool(x), 1))
