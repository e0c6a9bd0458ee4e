"""ResNet with bottleneck blocks, in torchvision's layout: the stride sits on the 3x3."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bench.models.blocks import init_convolutions, run_block

EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1, each with batch normalisation, around a residual connection."""

    def __init__(self, inputs: int, width: int, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(
            width, width, 3, stride=stride, padding=dilation, dilation=dilation, bias=False
        )
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNetTrunk(nn.Module):
    """The convolutional part. `dilate[i]`: stage i+2 keeps its resolution and dilates instead."""

    def __init__(
        self,
        depths: Sequence[int],
        width: int = 64,
        dilate: tuple[bool, bool, bool] = (False, False, False),
    ) -> None:
        super().__init__()
        self.checkpointing = False
        self.channels = width * 8 * EXPANSION
        self._inputs = width
        self._dilation = 1
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = self._stage(width, depths[0], 1, False)
        self.layer2 = self._stage(width * 2, depths[1], 2, dilate[0])
        self.layer3 = self._stage(width * 4, depths[2], 2, dilate[1])
        self.layer4 = self._stage(width * 8, depths[3], 2, dilate[2])

    def _stage(self, width: int, depth: int, stride: int, dilate: bool) -> nn.Sequential:
        # A dilated stage enters with the dilation of the one before it.
        entry = self._dilation
        if dilate:
            self._dilation *= stride
            stride = 1
        blocks = [Bottleneck(self._inputs, width, stride, entry)]
        self._inputs = width * EXPANSION
        blocks += [
            Bottleneck(self._inputs, width, dilation=self._dilation) for _ in range(depth - 1)
        ]
        return nn.Sequential(*blocks)

    def features(self, x: Tensor) -> Tensor:
        """N x 3 x H x W to N x channels x H/32 x W/32 (less where dilated)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            for block in stage:
                x = run_block(block, x, checkpointing=self.checkpointing)
        return x


class ResNet(ResNetTrunk):
    """A classifier: N x 3 x H x W to N x classes."""

    def __init__(self, depths: Sequence[int], classes: int = 1000, width: int = 64) -> None:
        super().__init__(depths, width)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(self.channels, classes)
        init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.flatten(self.avgpool(self.features(x)), 1))


def resnet50(classes: int = 1000) -> ResNet:
    """25,557,032 parameters at 1000 classes."""
    return ResNet((3, 4, 6, 3), classes)
