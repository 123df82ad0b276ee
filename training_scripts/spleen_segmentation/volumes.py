"""Prepared volumes: what `prepare.py` writes and `train.py` reads.

    volumes/
        spleen_10.image.npy     float16, 0 to 1, (x, y, z) from left to right, back to front, feet to head
        spleen_10.label.npy     uint8, the same shape
        spleen_10.json          written last, with the sizes of both: a volume without it is not there

Arrays are plain `.npy`, so that a patch is read without the rest of its volume. Sixteen bits are enough: in a window of
221 Hounsfield units their step is a tenth of a unit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from cloudtrain.runtime import SetupError

Array = np.ndarray[Any, np.dtype[Any]]

PARTS = ("image", "label")


@dataclass(frozen=True)
class Volume:
    """One prepared volume. Arrays stay on disk until they are used."""

    folder: Path
    name: str

    @property
    def image(self) -> Array:
        return self._mapped("image")

    @property
    def label(self) -> Array:
        return self._mapped("label")

    @cached_property
    def facts(self) -> dict[str, Any]:
        """shape, spacing (mm), affine (to the scanner's mm), labels (number to word), made_from, made_with, bytes."""
        return dict(json.loads(self.path("json").read_text("utf-8")))

    @property
    def is_whole(self) -> bool:
        """Return whether both files still have the length with which they were written."""
        paths = {part: self.path(f"{part}.npy") for part in PARTS}
        sizes = {part: path.stat().st_size for part, path in paths.items() if path.exists()}
        return sizes == self.facts.get("bytes")

    @cached_property
    def labelled(self) -> Array:
        """Return the positions of labelled voxels in the flat volume."""
        return np.flatnonzero(self.label)

    def path(self, end: str) -> Path:
        return self.folder / f"{self.name}.{end}"

    def _mapped(self, part: str) -> Array:
        # Mapped anew each time: a mapping that is kept holds a file open, and there may be
        # thousands.
        return np.load(self.path(f"{part}.npy"), mmap_mode="r")


def read_volumes(folder: Path) -> list[Volume]:
    """Return the volumes of a folder, by name.

    Raises:
        SetupError: the folder has no volume, or one is incomplete, which training would notice only when it reaches
        that volume.
    """
    found = [Volume(path.parent, path.stem) for path in sorted(folder.glob("*.json"))]
    if not found:
        raise SetupError(
            f"there is no prepared volume in `{folder}`", hint="`prepare.py` makes them"
        )
    if torn := [volume.name for volume in found if not volume.is_whole]:
        raise SetupError(
            f"{len(torn)} of {len(found)} volumes in `{folder}` are not whole, of which one is `{torn[0]}`",
            hint="run `prepare.py` again, which makes those anew",
        )
    return found


def write_volume(volume: Volume, image: Array, label: Array, facts: dict[str, Any]) -> None:
    """Write a volume so that it is either complete or absent, even if the process is killed."""
    volume.path("json").unlink(missing_ok=True)
    for part, array in zip(PARTS, (image, label), strict=True):
        write_aside(volume.path(f"{part}.npy"), lambda file, array=array: np.save(file, array))
    sizes = {part: volume.path(f"{part}.npy").stat().st_size for part in PARTS}
    text = json.dumps({**facts, "bytes": sizes}, indent=1) + "\n"
    write_aside(volume.path("json"), lambda file: file.write(text.encode()))


def write_aside(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file under a temporary name, and rename it when it is completely on the disk."""
    aside = path.with_name(f".{path.name}.writing")
    with aside.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
