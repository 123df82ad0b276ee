"""Batches that depend only on seed and step, not on the number of processes or loading workers, or on interruptions.

The input of a training step is random in two ways. The choice of images comes from a permutation for each epoch, drawn
from (seed, epoch). The cropping and mirroring of an image comes from a hash of (seed, epoch, number of the image). Both
can be computed anywhere, at any time, in any order, so nothing has to be stored in a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from cifar import Images
from torch import Tensor
from torch.utils.data import Dataset

from cloudtrain.runtime import SetupError

PADDING = 4
"""Pixels of black around an image, before a window of its old size is cut out."""


@dataclass(frozen=True)
class Batches(Dataset[tuple[Tensor, Tensor]]):
    """One process's share of every global batch. Its items are steps: `batches[step]` is (pixels, labels).

    `DataLoader(batches, sampler=range(first, last), batch_size=None)` makes it a stream that any number of workers
    prepares ahead.
    """

    images: Images
    global_batch: int  # images per step, over all processes
    seed: int
    rank: int = 0
    world_size: int = 1
    augment: bool = True
    mirror: bool = True

    def __post_init__(self) -> None:
        if not self.world_size <= self.global_batch <= len(self.images.labels):
            raise SetupError(
                f"a batch of {self.global_batch} for {self.world_size} processes and {len(self.images.labels)} images",
                hint="each process needs at least one image of a batch, and an epoch at least one batch",
            )

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of whole batches in an epoch. The images left over differ from epoch to epoch."""
        return len(self.images.labels) // self.global_batch

    def numbers(self, step: int) -> Tensor:
        """Return the numbers of this process's images at this step. The shares of all processes together form the
        global batch.
        """
        epoch, position = divmod(step, self.steps_per_epoch)
        start = position * self.global_batch
        whole = permutation(len(self.images.labels), self.seed, epoch)[
            start : start + self.global_batch
        ]
        return whole[self.rank :: self.world_size]

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        numbers = self.numbers(step)
        pixels, labels = self.images.pixels[numbers], self.images.labels[numbers]
        if self.augment:
            pixels = augmented(
                pixels, numbers, self.seed, step // self.steps_per_epoch, mirror=self.mirror
            )
        return pixels, labels


@lru_cache(maxsize=2)
def permutation(count: int, seed: int, epoch: int) -> Tensor:
    """Return the order of the images in an epoch."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed * 100_003 + epoch))


def augmented(pixels: Tensor, numbers: Tensor, seed: int, epoch: int, *, mirror: bool) -> Tensor:
    """Return each image shifted by up to four pixels down or right, each direction independently, and mirrored half of
    the time.

    All images at once: three index tensors pick every pixel of the result from the padded images. (count, 3, 32, 32).
    """
    count, _, height, width = pixels.shape
    down, right, mirrored = draws(numbers, seed, epoch, (2 * PADDING + 1, 2 * PADDING + 1, 2))
    rows = down[:, None] + torch.arange(height)
    columns = torch.arange(width).expand(count, width)
    if mirror:
        columns = torch.where(mirrored[:, None].bool(), width - 1 - columns, columns)
    columns = columns + right[:, None]
    padded = torch.nn.functional.pad(pixels, (PADDING,) * 4)
    return padded.permute(0, 2, 3, 1)[
        torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]
    ].permute(0, 3, 1, 2)


def draws(numbers: Tensor, seed: int, epoch: int, sides: tuple[int, ...]) -> list[Tensor]:
    """Draw a whole number from 0 to n - 1 for each image and each n in `sides`."""
    key = mixed(torch.tensor([seed * 1_000_003 + epoch]))
    return [mixed(key + mixed(numbers + 1) + die) % side for die, side in enumerate(sides)]


def mixed(x: Tensor) -> Tensor:
    """Return the output function of SplitMix64 (Steele, Lea and Flood, 2014), cut to 63 bits. Neighbouring inputs give
    unrelated outputs.

    int64 tensors wrap around on overflow, and `>>` keeps the sign, which the masks remove."""
    x = x * -7046029254386353131  # 0x9E3779B97F4A7C15
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685  # 0x94D049BB133111EB
    return (x ^ ((x >> 31) & 0x1FFFFFFFF)) & 0x7FFFFFFFFFFFFFFF
