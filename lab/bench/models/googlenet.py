"""GoogLeNet (Inception v1) with batch normalisation, in torchvision's layout: the "5x5" branch is
a 3x3, and there are neither auxiliary heads nor dropout."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.models.blocks import init_convolutions, run_block

# Output channels of an inception block: 1x1; 3x3 reduction, 3x3; "5x5" reduction, "5x5"; pool.
Widths = tuple[int, int, int, int, int, int]

STAGES: tuple[tuple[Widths, ...], ...] = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


class ConvBnRelu(nn.Module):
    """A convolution without bias, batch normalisation (eps 0.001), ReLU in place."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(x)), inplace=True)


class Inception(nn.Module):
    """Four branches side by side, concatenated over channels."""

    def __init__(self, inputs: int, widths: Widths) -> None:
        super().__init__()
        one, reduce3, three, reduce5, five, pool = widths
        self.outputs = one + three + five + pool
        self.branch1 = ConvBnRelu(inputs, one, 1)
        self.branch2 = nn.Sequential(ConvBnRelu(inputs, reduce3, 1), ConvBnRelu(reduce3, three, 3))
        self.branch3 = nn.Sequential(ConvBnRelu(inputs, reduce5, 1), ConvBnRelu(reduce5, five, 3))
        self.branch4 = nn.Sequential(
            nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True), ConvBnRelu(inputs, pool, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        branches = (self.branch1, self.branch2, self.branch3, self.branch4)
        return torch.cat([branch(x) for branch in branches], dim=1)


class GoogLeNet(nn.Module):
    """N x 3 x H x W to N x classes. 6,624,904 parameters at 1000 classes.

    `shrink` divides all widths (for small tests).
    """

    def __init__(self, classes: int = 1000, shrink: int = 1) -> None:
        super().__init__()
        self.checkpointing = False
        self.conv1 = ConvBnRelu(3, 64 // shrink, 7, stride=2)
        self.conv2 = ConvBnRelu(64 // shrink, 64 // shrink, 1)
        self.conv3 = ConvBnRelu(64 // shrink, 192 // shrink, 3)
        inputs = 192 // shrink
        self.stages = nn.ModuleList()
        for stage in STAGES:
            blocks = nn.ModuleList()
            for widths in stage:
                blocks.append(Inception(inputs, tuple(w // shrink for w in widths)))
                inputs = blocks[-1].outputs
            self.stages.append(blocks)
        self.fc = nn.Linear(inputs, classes)
        init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(self.conv1(x), 3, 2, ceil_mode=True)
        x = functional.max_pool2d(self.conv3(self.conv2(x)), 3, 2, ceil_mode=True)
        # The pool between the last two stages has a kernel of 2.
        for blocks, kernel in zip(self.stages, (3, 2, 0), strict=True):
            for block in blocks:
                x = run_block(block, x, checkpointing=self.checkpointing)
            if kernel:
                x = functional.max_pool2d(x, kernel, 2, ceil_mode=True)
        return self.fc(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))
