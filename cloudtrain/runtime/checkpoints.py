"""Checkpoints that stay intact if the process is killed at any moment. The next run finds them,
whatever its number of processes.

    checkpoint/
        000003-step-40/     the third save into this folder; `state.pt` opens with plain
                            `torch.load`
            state.pt
            checkpoint.json     step, and length and checksum of every file

A save writes into a temporary folder, syncs it and renames it, so a final name means a finished
save. Length and checksum reveal damage by a disk, a crash or an incomplete upload. The first number
in a folder's name counts saves. The newest save is the one with the highest number, even if a new
run in an old folder has saved a smaller step. Torn (incomplete or damaged) checkpoints are skipped
with a notice, never loaded.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex

from .atomic import (
    ASIDE,
    entries,
    file_names,
    is_whole,
    publish,
    read_manifest,
    save_error,
    whole_step,
    write_checked,
)
from .directories import checkpoint_dir
from .environment import detect_environment, notice
from .errors import SetupError
from .process_group import any_rank, from_every, from_main, wait_for_all
from .uncaught import loaded_paths

_NAME = re.compile(r"(\d{6,})-step-(\d+)")
_REFUSED = re.compile(r"Unsupported (?:global: GLOBAL|class) (\S+)")
"""How torch (from 2.4 on, and before) names a type that it refuses to load."""
_TORCH = "state.pt"
_PICKLE = "state.pickle"


OnFolder = Callable[[Path], object]
"""Writes or reads a checkpoint in a folder."""


class Saved(NamedTuple):
    """A checkpoint on disk."""

    number: int
    step: int
    path: Path


class Loaded(NamedTuple):
    """A checkpoint in memory: the state and step that were passed to `save`."""

    state: Any
    step: int


class Checkpoints:
    """The newest `keep` checkpoints of a run, in one folder.

    `directory` defaults to `checkpoint_dir()`; `keep` defaults to `CLOUDTRAIN_CHECKPOINT_KEEP`,
    else 3.
    """

    def __init__(self, directory: str | Path | None = None, keep: int | None = None) -> None:
        self.directory: Path = Path(directory) if directory is not None else checkpoint_dir()
        text = os.environ.get("CLOUDTRAIN_CHECKPOINT_KEEP", "3")
        if keep is not None:
            text = str(keep)
        if not text.isdecimal() or int(text) < 1:
            raise SetupError(
                f"`{text}` is no number of checkpoints to keep",
                hint="set `keep` or `CLOUDTRAIN_CHECKPOINT_KEEP` to at least 1",
            )
        self.keep = int(text)

    def save(self, state: Any, step: SupportsIndex) -> Path | None:
        """Write `state` on rank 0, and return the checkpoint's path there. The other ranks return
        None at once.

        If torch is imported, the state may hold everything that `torch.load(weights_only=True)` can
        read: tensors, numbers, texts and containers of them, such as state dicts. Otherwise it may
        hold numpy arrays instead of tensors.

        Raises:
            SetupError: the state holds an object that `load` would refuse, or the checkpoint cannot
                be written, for
            example because the disk is full; older checkpoints are kept.
        """
        if not detect_environment().is_main:
            return None
        step = whole_step(step)
        name = _PICKLE
        write = partial(pickle.dump, protocol=4)
        if "torch" in sys.modules:
            name = _TORCH
            write = sys.modules["torch"].save
        with self._writing():
            aside = self._make_aside(step)
            files = {name: write_checked(aside / name, lambda file: write(state, file))}
            _read_state(aside, "cpu", only_check=True)
            return self._publish(aside, step, files)

    def save_sharded(self, write: OnFolder, step: SupportsIndex) -> Path | None:
        """Save a checkpoint to which every rank writes its part. `write(folder)` is called on all
        ranks with one shared folder.

        Use it for states that no single process holds, for example with
        `torch.distributed.checkpoint`. Every rank must call it. Rank 0 returns the checkpoint's
        path, the other ranks return None.

        `write` may return a mapping from name to length and checksums for the files that it has
        written, as `sharded.write_shards` does. The ranks divide all other files among themselves
        and read each one once to compute its checksums.
        """
        step = whole_step(step)
        environment = detect_environment()
        aside = self.directory / f"{ASIDE}{step}"
        with self._writing():
            if environment.is_main:
                self._make_aside(step)
            wait_for_all()

            written = write(aside)
            own = dict(written) if isinstance(written, dict) else {}
            checked = chain.from_iterable(from_every(list(own)))
            rest = sorted(set(file_names(aside)).difference(checked))
            own.update(entries(aside, rest[environment.rank :: environment.world_size]))
            files = {}
            for part in from_every(own):
                files.update(part)

            path = self._publish(aside, step, files) if environment.is_main else None
            wait_for_all()
            return path

    def latest(self) -> Saved | None:
        """Return the newest whole checkpoint that this process sees, or None if there is none. Torn
        checkpoints are skipped with a notice."""
        for checkpoint in self._all():
            if is_whole(checkpoint.path):
                return checkpoint
            notice(f"skipped the torn checkpoint `{checkpoint.path}`")
        return None

    def agree(self) -> Saved | None:
        """Return the newest checkpoint that is whole on every rank, or None if there is none. Every
        rank must call it.

        The ranks of an instance divide the checkpoint's files among themselves, so each instance
        reads every byte once.
        """
        place = detect_environment()
        for path in self._agreed_paths():
            whole = is_whole(path, place.local_rank, place.local_world_size)
            if not any_rank(not whole):
                return _parse(path)
            if not whole:
                notice(f"skipped the checkpoint `{path}`: torn or missing", every_rank=True)
        return None

    def _agreed_paths(self) -> list[Path]:
        """Return the paths of the checkpoints that rank 0 sees, newest first. Other ranks may see
        other ones."""
        names = from_main([checkpoint.path.name for checkpoint in self._all()])
        return [self.directory / name for name in names]

    def load_sharded(self, read: OnFolder) -> Saved | None:
        """Let every rank read its part of the newest whole checkpoint. Return this checkpoint, or
        None if no checkpoint exists or all are incomplete.

        `read(folder)` is called on all ranks and must check the data it reads, as
        `sharded.read_shards` does. Every rank must call `load_sharded`.

        Raises:
            SetupError: no checkpoint is whole, and the damage of one was found only while it was
                read, so parts of it may have been loaded.
        """
        from .sharded import TornError

        torn = False
        for path in self._agreed_paths():
            if not any_rank(read_manifest(path) is None):
                try:
                    read(path)
                    return _parse(path)
                except TornError:
                    torn = True
            notice(f"skipped the checkpoint `{path}`: torn or missing")
        if torn:
            raise SetupError(
                f"every checkpoint in `{self.directory}` is damaged, and parts of one were already "
                "loaded",
                hint="remove the checkpoints to start from the beginning",
            )
        return None

    def load(self, map_location: Any = "cpu") -> Loaded | None:
        """Load the newest checkpoint that is whole on every rank, and return it, or None if there
        is none. Every rank must call it.

        Raises:
            SetupError: the checkpoint is whole but cannot be loaded safely, or needs torch, which
                is not installed.
        """
        checkpoint = self.agree()
        if checkpoint is None:
            return None
        loaded_paths[:] = [checkpoint.path]
        return Loaded(_read_state(checkpoint.path, map_location), checkpoint.step)

    def _all(self) -> list[Saved]:
        """Return all checkpoints in the folder, whole or torn, newest first. Only their folders'
        names are read."""
        if not self.directory.is_dir():
            return []
        checkpoints = filter(None, map(_parse, self.directory.iterdir()))
        return sorted(checkpoints, reverse=True)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn errors of the file system into a SetupError."""
        try:
            yield
        except OSError as error:
            raise save_error(self.directory, error) from None

    def _make_aside(self, step: int) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        for left in self.directory.glob(f"{ASIDE}*"):  # of a save that was killed
            shutil.rmtree(left, ignore_errors=True)
        aside = self.directory / f"{ASIDE}{step}"
        aside.mkdir()
        return aside

    def _publish(self, aside: Path, step: int, files: dict[str, Any]) -> Path:
        older = self._all()
        number = older[0].number + 1 if older else 1
        final = self.directory / f"{number:06d}-step-{step}"
        publish(aside, final, {"version": 1, "step": step, "number": number, "files": files})
        whole = [checkpoint for checkpoint in older if read_manifest(checkpoint.path) is not None]
        for checkpoint in {*older} - {*whole[: self.keep - 1]}:
            shutil.rmtree(checkpoint.path, ignore_errors=True)
        return final


def _parse(path: Path) -> Saved | None:
    match = _NAME.fullmatch(path.name)
    return match and Saved(int(match[1]), int(match[2]), path)


def _read_state(folder: Path, map_location: Any, *, only_check: bool = False) -> Any:
    """Return the saved state. With `only_check`, tensor data is memory-mapped, if torch supports
    it, to check only that the state can be loaded."""
    if (folder / _PICKLE).exists():
        with (folder / _PICKLE).open("rb") as file:
            return _Unpickler(file).load()
    try:
        import torch
    except ModuleNotFoundError:
        raise SetupError(
            f"the checkpoint `{folder}` was written with torch, which is not installed",
            hint="pip install torch",
        ) from None
    from inspect import signature

    options = {"map_location": map_location, "weights_only": True}
    if only_check and "mmap" in signature(torch.load).parameters:  # from torch 2.1 on
        options["mmap"] = True
    try:
        return torch.load(str(folder / _TORCH), **options)
    except pickle.UnpicklingError as error:
        match = _REFUSED.search(str(error))
        what = f"a `{match[1]}`, which is" if match else "what is"
        raise SetupError(
            f"the checkpoint holds {what} neither a tensor nor plain data",
            hint=(
                "save `model.state_dict()`, `optimizer.state_dict()` and plain numbers "
                "(`float(x)`), not the objects"
            ),
        ) from None


# Files of plain data and numpy arrays, for scripts without torch. Reading a file never runs code.

_ALLOWED = frozenset(
    {
        "collections.OrderedDict",
        "numpy.dtype",
        "numpy.ndarray",
        "_codecs.encode",
        "numpy.core.multiarray._reconstruct",
        "numpy.core.multiarray.scalar",
        "numpy.core.numeric._frombuffer",
        "numpy._core.multiarray._reconstruct",
        "numpy._core.multiarray.scalar",
        "numpy._core.numeric._frombuffer",
    }
)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        whole_name = f"{module}.{name}"
        if whole_name not in _ALLOWED:
            raise SetupError(
                f"the checkpoint holds a `{whole_name}`, neither plain data nor a numpy array",
                hint="save only numbers, strings, arrays, and lists or dicts of them",
            )
        return super().find_class(module, name)
