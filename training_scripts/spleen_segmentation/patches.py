"""Patches that depend only on seed and step: not on the number of processes, of loading workers, or interruptions.

A volume is too large for a step, so a step has a few patches. In an epoch every volume gives one patch, in an order
drawn from (seed, epoch). The patch's position and its changes are drawn from (seed, step, number in the batch), so a
checkpoint need not store them. An organ is a hundredth of a body, so half of the patches have a voxel of an organ in
their middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from volumes import Array, Volume


@dataclass(frozen=True)
class Patches:
    """One process's share of every global batch. Its items are steps: `patches[step]` is (images, labels).

    `DataLoader(patches, sampler=range(first, last), batch_size=None)` makes it a stream that any number of workers
    prepares ahead.
    """

    volumes: Sequence[Volume]
    size: tuple[int, ...]
    global_batch: int  # patches per step, over all processes
    seed: int
    rank: int = 0
    world_size: int = 1
    labelled: float = 0.5  # how many are centred on a labelled voxel
    augment: bool = True  # brightness and contrast
    mirror: bool = False

    def __len__(self) -> int:
        """Return the number of steps in an epoch."""
        return -(-len(self.volumes) // self.global_batch)

    def __getitem__(self, step: int) -> tuple[Array, Array]:
        """Return a step's float32 (patches, 1, x, y, z) and int64 (patches, x, y, z)."""
        found = [
            self.patch(step, number)
            for number in range(self.rank, self.global_batch, self.world_size)
        ]
        return np.stack([image for image, _ in found])[:, None], np.stack(
            [label for _, label in found]
        )

    def volume_of(self, step: int, number: int) -> Volume:
        epoch, position = divmod(step * self.global_batch + number, len(self.volumes))
        return self.volumes[
            np.random.default_rng([self.seed, epoch]).permutation(len(self.volumes))[position]
        ]

    def patch(self, step: int, number: int) -> tuple[Array, Array]:
        """Return image and label of one patch."""
        volume = self.volume_of(step, number)
        random = np.random.default_rng([self.seed, step, number])
        shape = volume.image.shape
        if random.random() < self.labelled and len(volume.labelled):
            centre = np.unravel_index(random.choice(volume.labelled), shape)
        else:
            centre = tuple(random.integers(shape))
        corner = corner_of(centre, self.size, shape)
        image, label = (cut(array, corner, self.size) for array in (volume.image, volume.label))
        image, label = image.astype(np.float32), label.astype(np.int64)
        if self.augment:
            image = image * np.float32(random.uniform(0.9, 1.1)) + np.float32(
                random.uniform(-0.05, 0.05)
            )
        if self.mirror:
            axes = tuple(int(axis) for axis in np.flatnonzero(random.random(3) < 0.5))
            image, label = np.flip(image, axes).copy(), np.flip(label, axes).copy()
        return image, label


def corner_of(centre: Sequence[int], size: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Return where a patch begins: inside the volume where the volume is large enough, else such that the patch
    contains the volume."""
    return tuple(
        int(np.clip(c - want // 2, min(0, have - want), max(0, have - want)))
        for c, want, have in zip(centre, size, shape, strict=True)
    )


def cut(array: Array, corner: Sequence[int], size: Sequence[int]) -> Array:
    """Copy a part of a volume, with zeros where it sticks out."""
    part = array[tuple(slice(max(0, at), at + want) for at, want in zip(corner, size, strict=True))]
    before = [max(0, -at) for at in corner]
    after = [want - have - b for want, have, b in zip(size, part.shape, before, strict=True)]
    return np.pad(part, list(zip(before, after, strict=True)))
