"""DeepLabv3 on a dilated ResNet (output stride 8), in torchvision's layout, without dropout.

Without dropout the step draws no random numbers, so that it can be compared from run to run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from bench.models.blocks import init_convolutions
from bench.models.resize import bilinear
from bench.models.resnet import ResNetTrunk

Resize = Callable[[Tensor, tuple[int, int]], Tensor]


class ConvBnRelu(nn.Sequential):
    """A convolution that keeps the resolution, batch normalisation, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1) -> None:
        padding = dilation * (kernel - 1) // 2
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, padding=padding, dilation=dilation, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        )


class Aspp(nn.Module):
    """Atrous spatial pyramid pooling: 1x1, three dilated 3x3 and an image-pool branch."""

    def __init__(self, inputs: int, outputs: int, rates: Sequence[int], resize: Resize) -> None:
        super().__init__()
        self.resize = resize
        self.branches = nn.ModuleList([ConvBnRelu(inputs, outputs, 1)])
        self.branches.extend(ConvBnRelu(inputs, outputs, 3, rate) for rate in rates)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), *ConvBnRelu(inputs, outputs, 1))
        self.project = ConvBnRelu(outputs * (len(rates) + 2), outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = [branch(x) for branch in self.branches]
        pooled = self.resize(self.pool(x), x.shape[-2:])
        return self.project(torch.cat([*parts, pooled], dim=1))


class DeepLabV3(nn.Module):
    """N x 3 x H x W to N x classes x H x W."""

    def __init__(
        self,
        depths: Sequence[int],
        classes: int = 21,
        width: int = 64,
        head: int = 256,
        resize: Resize = bilinear,
    ) -> None:
        super().__init__()
        self.resize = resize
        self.backbone = ResNetTrunk(depths, width, dilate=(False, True, True))
        self.aspp = Aspp(self.backbone.channels, head, rates=(12, 24, 36), resize=resize)
        self.head = ConvBnRelu(head, head, 3)
        self.classifier = nn.Conv2d(head, classes, 1)
        init_convolutions(self)

    @property
    def checkpointing(self) -> bool:
        """Whether the backbone's blocks are recomputed."""
        return self.backbone.checkpointing

    @checkpointing.setter
    def checkpointing(self, value: bool) -> None:
        self.backbone.checkpointing = value

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[-2:]
        x = self.classifier(self.head(self.aspp(self.backbone.features(x))))
        return self.resize(x, size)


def deeplabv3_resnet101(classes: int = 21, resize: Resize = bilinear) -> DeepLabV3:
    """58,630,997 parameters at 21 classes (no auxiliary head)."""
    return DeepLabV3((3, 4, 23, 3), classes, resize=resize)
