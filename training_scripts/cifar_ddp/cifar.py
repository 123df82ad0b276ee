"""Read CIFAR-10 in its python version, from the folder or the archive, without trusting the files.

    cifar-10-batches-py/            or cifar-10-python.tar.gz, which holds this folder
        batches.meta                {"label_names": [ten names]}
        data_batch_1 ... 5          {"data": uint8 array (10000, 3072), "labels": [10000 numbers]}
        test_batch                  the same

The files are pickles, and a pickle can run any code when it is loaded. `Numbers` therefore accepts only the functions
and classes that build arrays. The archive is read in memory and never unpacked, so no name in it becomes a path.
"""

from __future__ import annotations

import codecs
import io
import pickle
import tarfile
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cloudtrain.runtime import SetupError

META, TRAIN, TEST = "batches.meta", "data_batch_", "test_batch"
SHAPE = (3, 32, 32)
PIXELS = 3072
LARGEST = 64 * 2**20
"""Bytes of one file. A batch of 10,000 images has 31 million."""


class Images(NamedTuple):
    """All images in host memory: (count, 3, 32, 32) bytes, and (count,) class numbers."""

    pixels: Tensor
    labels: Tensor


class Cifar(NamedTuple):
    """The content of a folder or an archive."""

    train: Images
    test: Images
    names: list[str]


def read_cifar(place: Path) -> Cifar:
    """Return the images in `place`: the folder, its parent folder, the archive, or a folder with the archive.

    Raises:
        SetupError: a file is missing or has the wrong content; the message names it.
    """
    files = read_files(place)
    batches = sorted(name for name in files if name.startswith(TRAIN))
    if not batches or TEST not in files:
        raise SetupError(
            f"`{place}` has no `{TRAIN}1` or no `{TEST}`",
            hint="it should hold the python version of CIFAR-10",
        )
    names = label_names(files.get(META))
    train = [images_of(name, files[name], len(names)) for name in batches]
    both = Images(
        torch.cat([part.pixels for part in train]), torch.cat([part.labels for part in train])
    )
    return Cifar(both, images_of(TEST, files[TEST], len(names)), names)


def read_files(place: Path) -> dict[str, bytes]:
    """Return the content of each of CIFAR-10's files in `place`, by name."""
    folders = (
        [place, *sorted(path for path in place.glob("*") if path.is_dir())]
        if place.is_dir()
        else []
    )
    for folder in folders:
        if (folder / TEST).is_file():
            paths = [path for path in folder.iterdir() if is_wanted(path.name) and path.is_file()]
            return {
                path.name: limited(path.name, path.open("rb"), path.stat().st_size)
                for path in paths
            }
    archives = sorted(place.rglob("*.tar.gz")) if place.is_dir() else [place]
    if not archives or not archives[0].is_file():
        raise SetupError(
            f"`{place}` holds neither `{TEST}` nor a `.tar.gz` archive",
            hint="give the folder `cifar-10-batches-py`",
        )
    return read_archive(archives[0])


def read_archive(path: Path) -> dict[str, bytes]:
    """Return the content of each of CIFAR-10's files in the archive, by name. Links and devices are skipped, and
    nothing is written to disk.
    """
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = Path(member.name).name
                if member.isreg() and is_wanted(name) and name not in found:
                    content = archive.extractfile(member)
                    assert content is not None  # it is a regular file
                    found[name] = limited(name, content, member.size)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise SetupError(
            f"`{path}` is not a whole `.tar.gz` archive: {error}", hint="fetch it again"
        ) from None
    return found


def is_wanted(name: str) -> bool:
    """Return whether CIFAR-10 has a file of this name."""
    return name in (META, TEST) or (name.startswith(TRAIN) and name.removeprefix(TRAIN).isdecimal())


def limited(name: str, file: Any, size: int) -> bytes:
    """Return the file's content. Raise an error if it is larger than any of CIFAR-10's files."""
    with file:
        if size > LARGEST:
            raise SetupError(
                f"`{name}` has {size:,} bytes, and a batch has at most {LARGEST:,}",
                hint="is it CIFAR-10?",
            )
        content: bytes = file.read(LARGEST)
    return content


# How numpy builds arrays and scalars again, under the names that its versions 1 and 2 write into
# pickles.
REBUILD, FROM_BUFFER, SCALAR = (
    np.empty(1).__reduce__()[0],
    np.empty(1).__reduce_ex__(5)[0],
    np.int64(1).__reduce__()[0],
)
KNOWN = {
    ("numpy.core.multiarray", "_reconstruct"): REBUILD,
    ("numpy._core.multiarray", "_reconstruct"): REBUILD,
    ("numpy.core.numeric", "_frombuffer"): FROM_BUFFER,
    ("numpy._core.numeric", "_frombuffer"): FROM_BUFFER,
    ("numpy.core.multiarray", "scalar"): SCALAR,
    ("numpy._core.multiarray", "scalar"): SCALAR,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): codecs.encode,
}


class Numbers(pickle.Unpickler):
    """Reads plain data and numpy arrays. Other names are refused before they are imported."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in KNOWN:
            raise pickle.UnpicklingError(f"it wants to use `{module}.{name}`, which no image needs")
        return KNOWN[module, name]


def unpickled(name: str, file: BinaryIO) -> dict[str, Any]:
    """Read a pickled dict and convert its keys to strings, because Python 2 wrote them as bytes."""
    try:
        value = Numbers(file, encoding="bytes").load()
        return {as_text(key): entry for key, entry in value.items()}
    # a pickle that was cut off or tampered with fails in any way
    except Exception as error:  # noqa: BLE001
        raise SetupError(
            f"`{name}` is no batch of CIFAR-10: {error}",
            hint="fetch it again, from a source that you trust",
        ) from None


def label_names(content: bytes | None) -> list[str]:
    """Return the names of the classes; without `batches.meta`, the numbers from 0 to 9."""
    if content is None:
        return [str(number) for number in range(10)]
    names = unpickled(META, io.BytesIO(content)).get("label_names")
    if not isinstance(names, list) or not all(isinstance(name, (bytes, str)) for name in names):
        raise SetupError(f"`label_names` of `{META}` are no list of names", hint="is it CIFAR-10?")
    return [as_text(name) for name in names]


def images_of(name: str, content: bytes, classes: int) -> Images:
    """Return the images of one batch after checking their format."""
    batch = unpickled(name, io.BytesIO(content))
    data, labels = batch.get("data"), batch.get("labels")
    if (
        not isinstance(data, np.ndarray)
        or data.dtype != np.uint8
        or data.ndim != 2
        or data.shape[1] != PIXELS
    ):
        raise SetupError(
            f"`data` of `{name}` is no uint8 array of shape (images, {PIXELS})",
            hint="is it CIFAR-10?",
        )
    if (
        not isinstance(labels, list)
        or len(labels) != len(data)
        or not all(label in range(classes) for label in labels)
    ):
        raise SetupError(
            f"`labels` of `{name}` are not {len(data)} numbers below {classes}",
            hint="is it CIFAR-10?",
        )
    return Images(
        torch.from_numpy(data.copy()).view(-1, *SHAPE),
        torch.tensor([int(label) for label in labels]),
    )


def as_text(value: bytes | str) -> str:
    """Return a text that Python 2 or 3 has written."""
    return value.decode() if isinstance(value, bytes) else value
