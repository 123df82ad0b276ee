"""MNIST in its two usual layouts, or instead the handwritten digits that come with scikit-learn.

    a folder with four idx files, gzipped or not          or `mnist.npz`, the file or a folder with it
        train-images-idx3-ubyte.gz                            x_train   (60000, 28, 28) bytes
        train-labels-idx1-ubyte.gz                            y_train   (60000,) bytes
        t10k-images-idx3-ubyte.gz                             x_test
        t10k-labels-idx1-ubyte.gz                             y_test

An idx file begins with two zeros, the type (8: bytes), the number of axes, and the length of each axis in four bytes,
the highest first. Then come the values. Some copies write the names with a dot, `train-images.idx3-ubyte`.
"""

from __future__ import annotations

import gzip
import importlib.util
import math
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cloudtrain.runtime import SetupError

Bytes = NDArray[np.uint8]

DIGITS = 10
KINDS = {"images": 3, "labels": 1}
"""The kinds of idx files, with their number of axes."""


class Images(NamedTuple):
    """Grey values, (count, height, width, 1), and the digits that they show, (count,)."""

    pixels: Bytes
    labels: Bytes


class Mnist(NamedTuple):
    """Training and test images. `white` is the largest grey value."""

    train: Images
    test: Images
    white: int


def read_mnist(place: Path) -> Mnist:
    """Read MNIST from a folder in one of the two layouts, or from `mnist.npz`.

    Raises:
        SetupError: a file is missing or has the wrong content; the message names it.
    """
    archive = place / "mnist.npz" if place.is_dir() else place
    if archive.is_file():
        return Mnist(*_from_archive(archive), white=255)
    return Mnist(_from_idx(place, "train"), _from_idx(place, "t10k"), white=255)


def read_digits() -> Mnist:
    """Return the 1,797 scans of 8 x 8 pixels of the UCI test set; a fixed fifth is the test set. scikit-learn is not
    imported, because that takes a second."""
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise SetupError(
            "the digits come with scikit-learn, which is not installed",
            hint="pip install scikit-learn, or give MNIST",
        )
    path = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    table = np.loadtxt(gzip.decompress(path.read_bytes()).splitlines(), np.uint8, delimiter=",")
    shuffled = table[np.random.RandomState(0).permutation(len(table))]
    images = Images(shuffled[:, :64].reshape(-1, 8, 8, 1), shuffled[:, 64])
    fifth = len(table) // 5
    return Mnist(
        Images(*(part[fifth:] for part in images)),
        Images(*(part[:fifth] for part in images)),
        white=16,
    )


def read_idx(path: Path, axes: int) -> Bytes:
    """Return the values of one idx file, in its own shape."""
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, zlib.error) as error:
        raise SetupError(f"`{path}` cannot be read: {error}", hint="copy it again") from None
    header = 4 + 4 * axes
    if data[:4] != bytes((0, 0, 8, axes)) or len(data) < header:
        raise SetupError(
            f"`{path}` is not an idx file of bytes with {axes} axes",
            hint="give the four files of MNIST as they are",
        )
    shape = np.frombuffer(data, ">u4", axes, 4).astype(int).tolist()
    if len(data) != header + math.prod(shape):
        raise SetupError(
            f"`{path}` is cut off: it holds {len(data) - header:,} values, not {shape}",
            hint="copy it again",
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _from_idx(folder: Path, part: str) -> Images:
    found: dict[str, Bytes] = {}
    for kind, axes in KINDS.items():
        files = sorted(folder.glob(f"{part}-{kind}?idx{axes}-ubyte*"))
        if not files:
            hint = "it should hold the four idx files of MNIST, or `mnist.npz`"
            raise SetupError(f"`{folder}` has no `{part}-{kind}-idx{axes}-ubyte.gz`", hint=hint)
        found[kind] = read_idx(files[0], axes)
    return _checked(f"{folder} ({part})", found["images"], found["labels"])


def _from_archive(path: Path) -> tuple[Images, Images]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            parts = {name: (arrays[f"x_{name}"], arrays[f"y_{name}"]) for name in ("train", "test")}
    except (
        KeyError,
        TypeError,
        ValueError,
        OSError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise SetupError(
            f"`{path}` is not MNIST: {error}",
            hint="it should hold x_train, y_train, x_test and y_test",
        ) from None
    train, test = (_checked(f"{path} ({name})", *pair) for name, pair in parts.items())
    return train, test


def _checked(name: str, pixels: NDArray[np.generic], labels: NDArray[np.generic]) -> Images:
    if (
        pixels.dtype != np.uint8
        or pixels.ndim != 3
        or labels.shape != pixels.shape[:1]
        or not len(labels)
    ):
        raise SetupError(
            f"{name}: images {pixels.shape} and labels {labels.shape}",
            hint="as in MNIST: bytes, (n, 28, 28) and (n,)",
        )
    if labels.dtype.kind not in "iu":
        raise SetupError(
            f"{name}: labels are {labels.dtype}", hint="they should be whole numbers from 0 to 9"
        )
    if labels.max() >= DIGITS or labels.min() < 0:
        raise SetupError(
            f"{name}: there are labels from {labels.min()} to {labels.max()}",
            hint="they should be 0 to 9",
        )
    return Images(pixels[..., np.newaxis], labels.astype(np.uint8))
