"""ResNet50 and a toy model, each as a chain of pieces that may be placed on different devices.

`ResNet()` is ResNet50 as torchvision has it, stride in the 3 x 3 convolution: 25,557,032 parameters, and a `state_dict`
with the same names, order and shapes, so weights can be exchanged in both directions.
"""

import math
from collections.abc import Callable

import torch
from torch import nn


def normalisation(kind: str, channels: int) -> nn.Module:
    """Return a normalisation layer. `batch` uses statistics over all images of a microbatch, `group` statistics of each
    image alone.
    """
    return (
        nn.BatchNorm2d(channels) if kind == "batch" else GroupNorm(math.gcd(32, channels), channels)
    )


class GroupNorm(nn.GroupNorm):
    """GroupNorm that keeps the layout in memory. On GPUs torch's own version always returns (channel, height, width),
    and every convolution after it would be slow."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        is_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
        return y.contiguous(memory_format=torch.channels_last) if is_last else y


class Bottleneck(nn.Module):
    """1 x 1 to few channels, 3 x 3, 1 x 1 back to four times as many; added to what came in."""

    def __init__(self, channels: int, width: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = normalisation(norm, width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = normalisation(norm, width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = normalisation(norm, 4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or channels != 4 * width:
            convolution = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
            self.downsample = nn.Sequential(convolution, normalisation(norm, 4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """`layers`: bottlenecks in each of the four layers. `width`: channels of the first convolution."""

    def __init__(
        self,
        classes: int = 1000,
        layers: tuple[int, ...] = (3, 4, 6, 3),
        width: int = 64,
        norm: str = "batch",
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = normalisation(norm, width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = width
        for number, count in enumerate(layers):
            inner = width * 2**number
            strides = [1 if number == 0 else 2] + [1] * (count - 1)
            blocks = []
            for stride in strides:
                blocks.append(Bottleneck(channels, inner, stride, norm))
                channels = 4 * inner
            self.add_module(f"layer{number + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def pieces(self) -> dict[str, nn.Module]:
        """Return the chain, by name: `stem`, `layer1.0`, ..., `head`. It may be cut between any two pieces."""
        layers = {name: layer for name, layer in self.named_children() if name.startswith("layer")}
        return {
            "stem": nn.Sequential(self.conv1, self.bn1, self.relu, self.maxpool),
            **{
                f"{name}.{number}": block
                for name, layer in layers.items()
                for number, block in layer.named_children()
            },
            "head": nn.Sequential(self.avgpool, nn.Flatten(), self.fc),
        }

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for piece in self.pieces().values():
            x = piece(x)
        return x


class ToyModel(nn.Module):
    """Two linear layers: the smallest model that two devices can share."""

    def __init__(self, classes: int, image_size: int, width: int = 64) -> None:
        super().__init__()
        self.net1 = nn.Linear(3 * image_size**2, width)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(width, classes)

    def pieces(self) -> dict[str, nn.Module]:
        """Return the chain, by name."""
        return {"net1": nn.Sequential(nn.Flatten(), self.net1, self.relu), "net2": self.net2}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net2(self.relu(self.net1(x.flatten(1))))


MODELS: dict[str, Callable[[int, int, str], nn.Module]] = {
    "resnet50": lambda classes, _, norm: ResNet(classes, norm=norm),
    "resnet14": lambda classes, _, norm: ResNet(classes, (1, 1, 1, 1), width=8, norm=norm),
    "toy": lambda classes, image_size, _: ToyModel(classes, image_size),
}
"""Maps a name to a model for the given number of classes, pixels a side and normalisation. `resnet14` is narrow: 8
channels where ResNet50 has 64, for quick tests."""

TUTORIAL_CUT = {"resnet50": "layer3.0", "resnet14": "layer3.0", "toy": "net2"}
"""Where PyTorch's tutorial cuts: the first piece of the second device."""
