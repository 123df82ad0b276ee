"""Real images: the digits that come with scikit-learn, or a user's folder with one folder of pictures per class."""

import gzip
import importlib.util
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from cloudtrain.runtime import SetupError

PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"}


class Images(NamedTuple):
    """Images in host memory, (count, 1 or 3 channels, height, width), with mean 0 and variance 1; and their classes."""

    pixels: torch.Tensor
    labels: torch.Tensor
    classes: int

    def batch(self, numbers: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images of `size` x `size` pixels with three channels, laid out as channels_last, and their classes."""
        pixels = self.pixels[numbers]
        if pixels.shape[-1] != size:
            pixels = nn.functional.interpolate(
                pixels, size=(size, size), mode="bilinear", align_corners=False
            )
        pixels = pixels.expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)
        return pixels, self.labels[numbers]


def load_digits() -> Images:
    """Load 1,797 scans of 8 x 8 pixels (UCI, public). scikit-learn is not imported, because that takes a second."""
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise SetupError(
            "the digits come with scikit-learn, which is not installed",
            hint="pip install scikit-learn",
        )
    path = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    rows = [line.split(b",") for line in gzip.decompress(path.read_bytes()).splitlines()]
    table = torch.tensor([[float(cell) for cell in row] for row in rows])
    return normalised(table[:, :64].reshape(-1, 1, 8, 8), table[:, 64].long(), classes=10)


def load_folder(folder: Path, size: int) -> Images:
    """Load pictures in `folder/CLASS/`, their largest middle square scaled to `size`. Classes are in order of their
    names."""
    from PIL import Image, ImageOps

    files = [path for path in sorted(folder.glob("*/*")) if path.suffix.lower() in PICTURES]
    names = sorted({path.parent.name for path in files})
    if len(names) < 2:
        raise SetupError(
            f"`{folder}` has no pictures of two classes",
            hint="put them into one folder for each class",
        )
    pixels = torch.empty(len(files), 3, size, size)
    for number, path in enumerate(files):
        with Image.open(path) as picture:
            square = ImageOps.fit(picture.convert("RGB"), (size, size))
        pixels[number] = (
            torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8)
            .view(size, size, 3)
            .permute(2, 0, 1)
        )
    return normalised(
        pixels, torch.tensor([names.index(path.parent.name) for path in files]), len(names)
    )


def normalised(pixels: torch.Tensor, labels: torch.Tensor, classes: int) -> Images:
    return Images((pixels - pixels.mean()) / pixels.std(), labels, classes)
