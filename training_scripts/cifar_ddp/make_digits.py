"""Write real images in exactly the format of CIFAR-10's python version: a small set to try the script with.

    python make_digits.py FOLDER                 FOLDER/cifar-10-batches-py
    python make_digits.py FOLDER --archive       FOLDER/cifar-10-python.tar.gz

The images are the 1,797 scans of handwritten digits (8 x 8 pixels, UCI, public) that come with scikit-learn, enlarged
to 32 x 32 pixels and repeated in the three colours. A fixed fifth is the test batch. The pickles have the format of
Python 2 and its numpy, as CIFAR-10's pickles do.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import itertools
import pickle
import struct
import sys
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

NAMES = "zero one two three four five six seven eight nine".split()
TRAIN_BATCHES = 5


class Python2Pickler(pickle._Pickler):  # the one written in Python: its parts can be replaced
    """Writes bytes as Python 2 wrote its texts. Python 3 would write them through a codec instead."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_bytes(self, value: bytes) -> None:
        short = len(value) < 256
        head = (
            pickle.SHORT_BINSTRING + bytes([len(value)])
            if short
            else pickle.BINSTRING + struct.pack("<i", len(value))
        )
        self.write(head + value)  # type: ignore[attr-defined]
        self.memoize(value)  # type: ignore[attr-defined]

    dispatch[bytes] = save_bytes


def pickled(value: dict[bytes, Any]) -> bytes:
    """Pickle as Python 2 and numpy 1 did."""
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(value)
    return file.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def load_digits() -> tuple[Tensor, Tensor]:
    """Return 1,797 scans as (count, 3072) bytes, and their digits, in a fixed random order. scikit-learn is not
    imported, because that takes a second."""
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        sys.exit(
            "error: the digits come with scikit-learn, which is not installed\n\nhint: pip install scikit-learn"
        )
    path = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    rows = [line.split(b",") for line in gzip.decompress(path.read_bytes()).splitlines()]
    table = torch.tensor([[float(cell) for cell in row] for row in rows])
    table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(0))]
    scans = table[:, :64].view(-1, 1, 8, 8) * (255 / 16)
    large = nn.functional.interpolate(scans, size=(32, 32), mode="bilinear", align_corners=False)
    return large.round().to(torch.uint8).expand(-1, 3, -1, -1).flatten(1), table[:, 64].long()


def digits_files() -> dict[str, bytes]:
    """Return the content of all of CIFAR-10's files, by name."""
    pixels, labels = load_digits()
    cut = len(pixels) // 5
    parts = [("test_batch", "testing batch 1 of 1", slice(0, cut))]
    edges = torch.linspace(cut, len(pixels), TRAIN_BATCHES + 1).long().tolist()
    for number, (start, end) in enumerate(itertools.pairwise(edges), start=1):
        parts.append(
            (
                f"data_batch_{number}",
                f"training batch {number} of {TRAIN_BATCHES}",
                slice(start, end),
            )
        )
    meta = {
        b"num_cases_per_batch": cut,
        b"label_names": [name.encode() for name in NAMES],
        b"num_vis": 3072,
    }
    files = {"batches.meta": pickled(meta)}
    for name, label, part in parts:
        numbers = range(*part.indices(len(pixels)))
        files[name] = pickled(
            {
                b"batch_label": label.encode(),
                b"labels": labels[part].tolist(),
                b"data": pixels[part].contiguous().numpy(),
                b"filenames": [f"digit_{number:05}.png".encode() for number in numbers],
            }
        )
    return files


def write_digits(folder: Path, *, archive: bool = False) -> Path:
    """Write the files into `folder`, as the folder or as the archive. Return the path written."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / ("cifar-10-python.tar.gz" if archive else "cifar-10-batches-py")
    if archive:
        with tarfile.open(target, "w:gz") as tar:
            for name, content in digits_files().items():
                member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    else:
        target.mkdir(exist_ok=True)
        for name, content in digits_files().items():
            (target / name).write_bytes(content)
    return target


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    print(write_digits(Path(sys.argv[1]), archive="--archive" in sys.argv[2:]))
