"""Write and read files of plain data and numpy arrays, for scripts without torch. Reading a file never runs code."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, BinaryIO

from .errors import SetupError

_ALLOWED = frozenset(
    {("collections", "OrderedDict"), ("numpy", "dtype"), ("numpy", "ndarray"), ("_codecs", "encode")}
    | {
        (f"numpy.{core}.{module}", name)
        for core in ("core", "_core")
        for module, name in (
            ("multiarray", "_reconstruct"),
            ("multiarray", "scalar"),
            ("numeric", "_frombuffer"),
        )
    }
)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise SetupError(
                f"the checkpoint holds a `{module}.{name}`, which is neither plain data nor a numpy array",
                hint="save only numbers, strings, arrays, and lists or dicts of them",
            )
        return super().find_class(module, name)


def dump(state: Any, file: BinaryIO) -> None:
    """Write `state` to the file."""
    pickle.dump(state, file, protocol=4)


def load(path: Path) -> Any:
    """Read a file that `dump` wrote.

    Raises:
        SetupError: the file holds an object whose type is not plain data.
    """
    with path.open("rb") as file:
        return _Unpickler(file).load()
