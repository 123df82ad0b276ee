"""A residual network for images of 32 x 32 pixels, as in section 4.2 of He et al., 2015, but with GroupNorm.

`ResNet(width=16, blocks=3)` has the layers of their ResNet-20: three stages of `blocks` blocks, with width, 2 width, 4
width channels. Only the last layers differ. ResNet-20 averages each channel over the whole image. With GroupNorm these
averages are nearly equal for all images, and the network hardly learns. So this network averages over each cell of a 4
x 4 grid.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

GROUP = 4
"""The least number of channels that GroupNorm normalises together; more where the number of channels is not a
multiple."""

GRID = 4
"""Places of the grid for the last averages, 4 x 4."""


class GroupNorm(nn.GroupNorm):
    """GroupNorm that keeps the layout in memory. On GPUs torch's own version always returns (channel, height, width),
    and every convolution after it would be slow."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        is_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
        return y.contiguous(memory_format=torch.channels_last) if is_last else y


def group_norm(channels: int) -> nn.GroupNorm:
    """Return a GroupNorm with as many groups of equal size as possible, of `GROUP` channels or more."""
    most = max(1, channels // GROUP)
    return GroupNorm(
        max(groups for groups in range(1, most + 1) if channels % groups == 0), channels
    )


NORMS = {"group": group_norm, "batch": nn.BatchNorm2d, "sync": nn.SyncBatchNorm}
"""The kinds of norms. GroupNorm normalises each image alone; BatchNorm the images that this process happens to have;
SyncBatchNorm those of all processes, with an exchange in every layer, on GPUs only."""

Norm = Literal["group", "batch", "sync"]


class Block(nn.Module):
    """Two convolutions around a shortcut, which is a 1 x 1 convolution where the shape changes."""

    def __init__(self, inside: int, outside: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.first_norm = NORMS[norm](outside)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.second_norm = NORMS[norm](outside)
        same = stride == 1 and inside == outside
        self.shortcut = nn.Identity() if same else nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Maps images with mean 0 and variance 1, (count, 3, 32, 32), to logits, (count, classes)."""

    def __init__(
        self, width: int = 16, blocks: int = 3, classes: int = 10, norm: Norm = "group"
    ) -> None:
        super().__init__()
        stages = [(width, 1), (2 * width, 2), (4 * width, 2)]
        layers: list[nn.Module] = [
            nn.Conv2d(3, width, 3, 1, 1, bias=False),
            NORMS[norm](width),
            nn.ReLU(),
        ]
        inside = width
        for outside, stride in stages:
            for number in range(blocks):
                layers.append(Block(inside, outside, stride if number == 0 else 1, norm))
                inside = outside
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(inside * GRID**2, classes)

    def forward(self, x: Tensor) -> Tensor:
        # adaptive pooling has no repeatable backward on GPUs
        places = functional.avg_pool2d(self.body(x), 8 // GRID)
        return self.head(places.flatten(1))


def decayed_and_not(network: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Return the parameters with and without weight decay. Decay pulls kernels and matrices towards zero; scales and
    biases have no reason to be there."""
    parameters = list(network.parameters())
    return [
        {
            "params": [parameter for parameter in parameters if parameter.ndim > 1],
            "weight_decay": weight_decay,
        },
        {
            "params": [parameter for parameter in parameters if parameter.ndim <= 1],
            "weight_decay": 0.0,
        },
    ]
