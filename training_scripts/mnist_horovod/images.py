"""MNIST in its own format, from a user's files, and the scans that come with scikit-learn, in the same shape.

    train-images-idx3-ubyte     numbers of 4 bytes, highest first: 2051, images, rows, columns; then a byte per pixel
    train-labels-idx1-ubyte     2049, labels; then a byte per label
    t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte      the test set

Each may be gzipped and end with `.gz`. Fashion-MNIST and KMNIST have the same format.
"""

from __future__ import annotations

import gzip
import importlib.util
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch

from cloudtrain.runtime import SetupError

IMAGES, LABELS = 2051, 2049
LARGEST = 2**28
"""Bytes of one file. The training images of MNIST are 47 million."""


@dataclass(frozen=True)
class Images:
    """Bytes (count, 1, rows, columns) and class numbers (count)."""

    pixels: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> Images:
        return Images(self.pixels.to(device), self.labels.to(device))


def read_mnist(folder: Path) -> tuple[Images, Images]:
    """Return training and test images from the folder with the four files.

    Raises:
        SetupError: a file is missing or has the wrong content; the message names it.
    """
    return read_part(folder, "train"), read_part(folder, "t10k")


def read_part(folder: Path, part: str) -> Images:
    (count, rows, columns), pixels = read_idx(folder, f"{part}-images-idx3-ubyte", IMAGES)
    (label_count,), labels = read_idx(folder, f"{part}-labels-idx1-ubyte", LABELS)
    if count != label_count or count == 0:
        raise SetupError(
            f"`{folder}` has {count} images and {label_count} labels in its `{part}` files",
            hint="fetch them again",
        )
    if labels.max() > 9:
        raise SetupError(
            f"`{part}-labels-idx1-ubyte` has the label {labels.max()}, and there are ten classes",
            hint="is it MNIST?",
        )
    return Images(pixels.view(count, 1, rows, columns), labels.long())


def read_idx(folder: Path, name: str, magic: int) -> tuple[tuple[int, ...], torch.Tensor]:
    """Return the dimensions that an idx file declares, and as many bytes as they need."""
    found = next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
    if found is None:
        raise SetupError(
            f"`{folder}` has neither `{name}` nor `{name}.gz`",
            hint="it should hold the four files of MNIST",
        )
    try:
        with gzip.open(found) if found.suffix == ".gz" else found.open("rb") as file:
            content = file.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise SetupError(f"`{found}` cannot be read: {error}", hint="fetch it again") from None
    dimensions = 3 if magic == IMAGES else 1
    start = 4 + 4 * dimensions
    if len(content) < start or struct.unpack_from(">I", content)[0] != magic:
        raise SetupError(
            f"`{found}` does not begin with the number {magic}", hint="is it an idx file of MNIST?"
        )
    sizes = struct.unpack_from(f">{dimensions}I", content, 4)
    if math.prod(sizes) != len(content) - start:
        raise SetupError(
            f"`{found}` declares {math.prod(sizes):,} bytes and has {len(content) - start:,}",
            hint="fetch it again",
        )
    return sizes, torch.frombuffer(bytearray(content[start:]), dtype=torch.uint8)


def read_digits() -> tuple[Images, Images]:
    """Return 1,797 scans of 8 x 8 pixels, from the UCI test set. scikit-learn is not imported, because that takes a
    second.

    A fixed fifth is the test set, whatever the seed. Grey values from 0 to 16 become bytes.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise SetupError(
            "there is no MNIST in `data/mnist`, and no scikit-learn with its digits",
            hint="pip install scikit-learn",
        )
    path = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    rows = [line.split(b",") for line in gzip.decompress(path.read_bytes()).splitlines()]
    table = torch.tensor([[float(cell) for cell in row] for row in rows])
    table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(0))]
    pixels, labels = (
        (table[:, :64] * 255 / 16).round().byte().view(-1, 1, 8, 8),
        table[:, 64].long(),
    )
    fifth = len(table) // 5
    return Images(pixels[fifth:], labels[fifth:]), Images(pixels[:fifth], labels[:fifth])
