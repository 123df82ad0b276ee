"""The text that a model learns from: files of tokens in nanoGPT's and llm.c's formats, or plain text. No file is read
whole.

    text/*.bin      tokens as uint16 or uint32: headerless (nanoGPT, uint16), or behind llm.c's header of 1,024 bytes
    text/*.txt      text; its bytes are the tokens

Files with the word `val`, `valid`, `validation` or `test` in their names are held out; without one, the last tenth of
every file is. A window is `context` tokens and the one after them. Windows do not overlap, and their order differs in
every epoch. The number of windows used so far, the *position*, determines the windows of the next step; the checkpoint
holds it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cloudtrain.runtime import SetupError

HEADER_BYTES = 1024
MAGIC = {20240520: np.uint16, 20240801: np.uint32}
"""Maps the first number of llm.c's header to the type of the tokens; the third number is their count."""

HELD_OUT = re.compile(r"(?<![a-z])(val|valid|validation|test)(set|data)?(?![a-z])")  # and not `interval`, `latest`

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Tokens:
    """A part of a file, mapped into memory. `of` counts tokens from `first` on."""

    path: Path
    kind: Any
    offset: int  # bytes
    first: int
    of: int

    def read(self, start: int, count: int) -> np.ndarray[Any, Any]:
        """Return `count` tokens from `start` on. The file stays mapped, so the page cache serves repeated reads."""
        mapped = mapping(self.path, self.kind, self.offset)
        return mapped[self.first + start : self.first + start + count]


@lru_cache(maxsize=1024)
def mapping(path: Path, kind: Any, offset: int) -> np.ndarray[Any, Any]:
    return np.memmap(path, dtype=kind, mode="r", offset=offset)


@dataclass(frozen=True)
class Corpus:
    """Windows over some files."""

    parts: tuple[Tokens, ...]
    context: int
    vocabulary: int

    @property
    def tokens(self) -> int:
        return sum(part.of for part in self.parts)

    @property
    def windows(self) -> int:
        return sum(self._in(part) for part in self.parts)

    def _in(self, part: Tokens) -> int:
        return max(0, (part.of - 1) // self.context)

    def window(self, number: int) -> np.ndarray[Any, Any]:
        """Return `context` tokens and the one after them."""
        for part in self.parts:
            if number < self._in(part):
                return part.read(number * self.context, self.context + 1)
            number -= self._in(part)
        raise IndexError(number)

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Return inputs and expected outputs, (count, context) each."""
        rows = np.stack([self.window(number) for number in numbers]).astype(np.int64)
        if rows.max() >= self.vocabulary:
            raise vocabulary_error(self.parts[0].path.parent, int(rows.max()), self.vocabulary)
        windows = torch.from_numpy(rows)
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def at(self, position: int, count: int, seed: int) -> list[int]:
        """Return the `count` windows at `position`."""
        return [
            int(order(self.windows, seed, place // self.windows)[place % self.windows])
            for place in range(position, position + count)
        ]


@lru_cache(maxsize=2)
def order(count: int, seed: int, epoch: int) -> Tensor:
    """Return the order of all windows in one epoch."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed * 100_003 + epoch))


def read_corpus(folder: Path, context: int, vocabulary: int) -> tuple[Corpus, Corpus]:
    """Return the text to learn from, and the held-out text.

    Raises:
        SetupError: the text is missing, a file contradicts its header, or a part is too short for a window.
    """
    paths = (
        sorted(path for path in folder.rglob("*") if path.suffix in (".bin", ".txt")) if folder.is_dir() else [folder]
    )
    if not paths:
        raise SetupError(f"there is no text in `{folder}`", hint="put `*.txt`, or `*.bin` from prepare.py, there")
    files = [file for file in map(opened, paths) if file.of]  # an empty file cannot be mapped
    learned = [file for file in files if not _is_held_out(file.path)]
    kept = [file for file in files if _is_held_out(file.path)]
    if not kept:
        kept = [Tokens(f.path, f.kind, f.offset, f.of - f.of // 10, f.of // 10) for f in learned]
        learned = [Tokens(f.path, f.kind, f.offset, 0, f.of - f.of // 10) for f in learned]
    corpora = Corpus(tuple(learned), context, vocabulary), Corpus(tuple(kept), context, vocabulary)
    for name, corpus in zip(("learn from", "hold out"), corpora, strict=True):
        if not corpus.windows:
            raise SetupError(
                f"`{folder}` has {corpus.tokens:,} tokens to {name}, and no window of `--context` {context}",
                hint="give more text, or a smaller `--context`",
            )
    largest = max(int(file.read(0, min(file.of, 1 << 16)).max(initial=0)) for file in files)
    if largest >= vocabulary:
        raise vocabulary_error(folder, largest, vocabulary)
    return corpora


def vocabulary_error(folder: Path, token: int, vocabulary: int) -> SetupError:
    """Return the error for a token that the model does not have. The start of each file is checked at once, the rest in
    the process that reads it.
    """
    return SetupError(
        f"`{folder}` holds the token {token}, and `--vocabulary` is {vocabulary}",
        hint=f"give at least `--vocabulary {token + 1}`; GPT-2's tokens need 50304",
        on_every_rank=False,
    )


def _is_held_out(path: Path) -> bool:
    return HELD_OUT.search(path.stem.lower()) is not None


def opened(path: Path) -> Tokens:
    """Open a file according to its format."""
    size = path.stat().st_size
    if path.suffix != ".bin":
        return Tokens(path, np.uint8, 0, 0, size)
    header = np.fromfile(path, dtype=np.int32, count=3)
    kind = MAGIC.get(int(header[0])) if len(header) == 3 else None
    if kind is None:
        return Tokens(path, np.uint16, 0, 0, size // 2)
    count = int(header[2])
    if HEADER_BYTES + count * np.dtype(kind).itemsize != size:
        raise SetupError(
            f"`{path}` should hold {count:,} tokens and is {size:,} bytes long", hint="copy it again: it is cut off"
        )
    return Tokens(path, kind, HEADER_BYTES, 0, count)


class Feed:
    """Prepares batches ahead of the training: a thread reads the next ones into pinned memory, from which they reach
    the GPU without delay."""

    def __init__(self, make: Callable[[int], Batch], device: torch.device, ahead: int = 2) -> None:
        self._make, self._device, self._ahead = make, device, ahead
        self._thread = ThreadPoolExecutor(1)
        self._coming: deque[tuple[int, Future[Batch]]] = deque()

    def at(self, step: int) -> Batch:
        """Return the batch of a step, on the device, and begin to read the following ones."""
        if self._coming and self._coming[0][0] != step:
            self._coming.clear()
        following = self._coming[-1][0] + 1 if self._coming else step
        for number in range(following, step + self._ahead + 1):
            self._coming.append((number, self._thread.submit(self._pinned, number)))
        inputs, targets = self._coming.popleft()[1].result()
        return inputs.to(self._device, non_blocking=True), targets.to(self._device, non_blocking=True)

    def _pinned(self, step: int) -> Batch:
        inputs, targets = self._make(step)
        return (inputs.pin_memory(), targets.pin_memory()) if self._device.type == "cuda" else (inputs, targets)
