"""The text that a model learns from: files of tokens as prepare.py, nanoGPT and llm.c write them, or plain text. No
file is read whole.

    text/*.bin           tokens as uint16 or uint32: headerless (nanoGPT, uint16), or behind llm.c's header of 1 KiB
    text/*.starts.npy    where documents start in the file of the same name; else it is one document
    text/*.txt           text; its bytes are the tokens

Files with the word `val`, `valid`, `validation` or `test` in their names are held out; without one, the last tenth of
every file is. All files together are one row of tokens, and a window is `context` of them and the one after them; no
token is left out. A window may hold several documents: none of their tokens sees another document, and none is learned
from the end of another one. The order of windows differs in every epoch. The number of windows used so far, the
*position*, determines the windows of the next step; the checkpoint holds it, and it does not depend on the processes.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from gpt import NOT_LEARNED, divided, read_text, starts_at, windows_at
from torch import Tensor

from cloudtrain.runtime import SetupError, input_dir, notice

HEADER_BYTES = 1024
MAGIC = {20240520: np.uint16, 20240801: np.uint32}
"""Maps the first number of llm.c's header to the type of the tokens; the third number is their count."""

# and not `interval`, `latest`
HELD_OUT = re.compile(r"(?<![a-z])(val|valid|validation|test)(set|data)?(?![a-z])")

Batch: TypeAlias = "tuple[Tensor, Tensor, Tensor | None]"
"""Inputs, expected outputs, and the number of each input's document; None where no window has two of them."""


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

    def starts(self, start: int, count: int) -> np.ndarray[Any, Any]:
        """Return which of these tokens begin a document, counted from `start` on. The first one of the part does."""
        known, begin = starts_of(self.path), self.first + start
        first, end = np.searchsorted(known, (begin, begin + count))
        found = known[first:end] - begin
        return found if start else np.append(found, 0)


@lru_cache(maxsize=1024)
def starts_of(path: Path) -> Any:
    """Return the positions at which documents start in a file of tokens, in rising order."""
    beside = path.with_suffix(".starts.npy")
    return np.load(beside, mmap_mode="r") if beside.exists() else np.zeros(1, np.int64)


@lru_cache(maxsize=1024)
def mapping(path: Path, kind: Any, offset: int) -> np.ndarray[Any, Any]:
    return np.memmap(path, dtype=kind, mode="r", offset=offset)


@dataclass(frozen=True)
class Corpus:
    """Windows over some files."""

    parts: tuple[Tokens, ...]
    context: int
    vocabulary: int

    @cached_property
    def ends(self) -> np.ndarray[Any, Any]:
        """Return where each part ends in the row of all tokens."""
        return np.cumsum([part.of for part in self.parts], dtype=np.int64)

    @property
    def tokens(self) -> int:
        return sum(part.of for part in self.parts)

    @cached_property
    def windows(self) -> int:
        return max(0, -(-(self.tokens - 1) // self.context))

    def _spans(self, start: int, end: int) -> Iterator[tuple[Tokens, int, int]]:
        """Yield the pieces of files between two places of the row: a part, its first token and their number."""
        number = int(np.searchsorted(self.ends, start, side="right"))
        while start < end:
            part, begin = self.parts[number], int(self.ends[number]) - self.parts[number].of
            count = min(end, int(self.ends[number])) - start
            if count:
                yield part, start - begin, count
            start, number = start + count, number + 1

    def window(self, number: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], int]:
        """Return `context` tokens and the one after them, which of them begin a document, and how many are real: the
        last window is filled up with zeros, which are a document of their own."""
        start = number * self.context
        tokens, begins = np.zeros(self.context + 1, np.int64), np.zeros(self.context + 1, bool)
        place = 0
        for part, first, count in self._spans(start, min(start + self.context + 1, self.tokens)):
            tokens[place : place + count] = part.read(first, count)
            begins[place + part.starts(first, count)] = True
            place += count
        begins[place:] = True
        return tokens, begins, place

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Return inputs, expected outputs and documents, (count, context) each."""
        tokens, begins, real = (
            np.stack(parts) for parts in zip(*map(self.window, numbers), strict=True)
        )
        if tokens.max() >= self.vocabulary:
            raise vocabulary_error(self.parts[0].path.parent, int(tokens.max()), self.vocabulary)
        following = np.where(begins[:, 1:], NOT_LEARNED, tokens[:, 1:])
        following[np.arange(self.context)[None] >= real[:, None] - 1] = NOT_LEARNED
        documents = torch.from_numpy(begins[:, :-1].cumsum(1)) if begins[:, 1:-1].any() else None
        return torch.from_numpy(tokens[:, :-1].copy()), torch.from_numpy(following), documents

    def at(self, position: int, count: int, seed: int) -> list[int]:
        """Return the `count` windows at `position`."""
        return [
            int(order(self.windows, seed, place // self.windows)[place % self.windows])
            for place in range(position, position + count)
        ]


ROUND = 1000
"""Windows of a mixture in which each source has exactly its share."""


@dataclass(frozen=True)
class Mixture:
    """Windows of several corpora, each with a share of the windows, whatever its size: a small one is repeated."""

    sources: tuple[Corpus, ...]
    shares: tuple[int, ...]  # of `ROUND` windows

    @property
    def tokens(self) -> int:
        return sum(source.tokens for source in self.sources)

    @property
    def windows(self) -> int:
        return sum(source.windows for source in self.sources)

    def at(self, position: int, count: int, seed: int) -> list[tuple[int, int]]:
        """Return the `count` windows at `position`: a source and the number of its window. It follows from the position
        alone how many each source has given before."""
        found = []
        for place in range(position, position + count):
            round_, step = divmod(place, ROUND)
            turns, before = turns_of(self.shares, seed)
            source = int(turns[step])
            nth = round_ * self.shares[source] + int(before[step])
            found.append((source, self.sources[source].at(nth, 1, seed)[0]))
        return found

    def batch(self, numbers: Sequence[tuple[int, int]]) -> Batch:
        """Return inputs, expected outputs and documents, (count, context) each."""
        found = [self.sources[source].batch([number]) for source, number in numbers]
        inputs, following, documents = zip(*found, strict=True)
        known = [each if each is not None else torch.ones_like(inputs[0]) for each in documents]
        together = torch.cat(known) if any(each is not None for each in documents) else None
        return torch.cat(inputs), torch.cat(following), together


@lru_cache(maxsize=4)
def turns_of(
    shares: tuple[int, ...], seed: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return whose turn each window of a round is, and how many the same source had in this round before."""
    turns = np.repeat(np.arange(len(shares)), shares)
    np.random.default_rng(seed).shuffle(turns)
    before = np.zeros(ROUND, np.int64)
    for source in range(len(shares)):
        before[turns == source] = np.arange(shares[source])
    return turns, before


def shares_of(mixture: str) -> dict[str, int]:
    """Return the windows of each source in a round, from `web=0.7,code=0.3`. Weights need not add up to 1.

    Raises:
        SetupError: it is not written like that, or a weight is too small to ever come.
    """
    pairs = [part.partition("=") for part in mixture.split(",")]
    try:
        weights = {name.strip(): float(value) for name, _, value in pairs}
    except ValueError:
        weights = {}
    if len(weights) != len(pairs) or not all(
        0 < value < float("inf") for value in weights.values()
    ):
        raise SetupError(
            f"`--mixture {mixture}` names no weights",
            hint="write it as `--mixture web=0.7,code=0.3`",
        )
    total = sum(weights.values())
    exact = {name: ROUND * value / total for name, value in weights.items()}
    shares = {name: int(value) for name, value in exact.items()}
    for name in sorted(exact, key=lambda name: shares[name] - exact[name])[
        : ROUND - sum(shares.values())
    ]:
        shares[name] += 1
    if rare := [name for name, share in shares.items() if not share]:
        raise SetupError(
            f"`{rare[0]}` has less than a thousandth of the mixture",
            hint="give it more, or leave it out",
        )
    return shares


@lru_cache(maxsize=2)
def order(count: int, seed: int, epoch: int) -> Tensor:
    """Return the order of all windows in one epoch."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed * 100_003 + epoch))


def read_corpus(
    folder: Path, context: int, vocabulary: int, mixture: str = ""
) -> tuple[Corpus | Mixture, Corpus]:
    """Return the text to learn from, and the held-out text. With a `mixture`, its sources are subfolders.

    Raises:
        SetupError: the text is missing, a file contradicts its header, or a part is too short for a window.
    """
    if not mixture:
        return _corpora(folder, context, vocabulary)
    shares = shares_of(mixture)
    if missing := [name for name in shares if not (folder / name).is_dir()]:
        there = (
            ", ".join(sorted(path.name for path in folder.iterdir() if path.is_dir()))
            if folder.is_dir()
            else ""
        )
        raise SetupError(
            f"`{folder}` has no folder `{missing[0]}`", hint=f"its folders are: {there or 'none'}"
        )
    learned, kept = zip(
        *(_corpora(folder / name, context, vocabulary) for name in shares), strict=True
    )
    all_kept = Corpus(tuple(part for corpus in kept for part in corpus.parts), context, vocabulary)
    return Mixture(learned, tuple(shares.values())), all_kept


def _corpora(folder: Path, context: int, vocabulary: int) -> tuple[Corpus, Corpus]:
    paths = (
        sorted(path for path in folder.rglob("*") if path.suffix in (".bin", ".txt"))
        if folder.is_dir()
        else [folder]
    )
    if not paths:
        raise SetupError(
            f"there is no text in `{folder}`", hint="put `*.txt`, or `*.bin` from prepare.py, there"
        )
    files = [file for file in map(opened, paths) if file.of]  # an empty file cannot be mapped
    learned = [file for file in files if not _is_held_out(file.path)]
    kept = [file for file in files if _is_held_out(file.path)]
    if not kept:
        kept = [
            Tokens(f.path, f.kind, f.offset, f.of - f.of // 10, f.of // 10)
            for f in learned
            if f.of >= 10
        ]
        learned = [Tokens(f.path, f.kind, f.offset, 0, f.of - f.of // 10) for f in learned]
    corpora = Corpus(tuple(learned), context, vocabulary), Corpus(tuple(kept), context, vocabulary)
    for name, corpus in zip(("learn from", "hold out"), corpora, strict=True):
        if corpus.tokens <= context:
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
            f"`{path}` should hold {count:,} tokens and is {size:,} bytes long",
            hint="copy it again: it is cut off",
        )
    return Tokens(path, kind, HEADER_BYTES, 0, count)


def text_folder() -> Path | None:
    """Return the input `text` of the job, else `data/text`; None where neither exists, with a notice."""
    usual, nothing = Path("data", "text"), Path(os.devnull)
    folder = input_dir("text", default=usual if usual.exists() else nothing)
    if folder != nothing:
        return folder
    notice("no input `text`: training on the English of Python's own help")
    return None


class Text:
    """The user's text, or the English of Python's own help, and how a batch is shared out. What is learned from the
    user's depends on the position; from the other, on the step."""

    def __init__(self, config: Any) -> None:
        self.config, self.folder = config, text_folder()
        self.of_user = self.held_out_of_user = None
        if self.folder is not None:
            self.of_user, self.held_out_of_user = read_corpus(
                self.folder, config.context, config.vocabulary, config.mixture
            )
            return
        if config.vocabulary < 256:
            raise SetupError(
                f"the model has {config.vocabulary} tokens, and the text of the demonstration is bytes",
                hint="give a text: the input `text`, or data/text (prepare.py)",
            )
        self.bytes, self.held_out_bytes = divided(read_text(), config.context)

    @property
    def tokens(self) -> int:
        """Return the number of the user's tokens to learn from."""
        return self.of_user.tokens if self.of_user else 0

    def batch(self, step: int, position: int, share: int, shares: int) -> Batch:
        """Return a share of the windows of one step, before which `position` windows were seen."""
        config = self.config
        if self.of_user is None:
            size = {"count": config.global_batch, "context": config.context}
            starts = starts_at(step, text=self.bytes, seed=config.seed, **size)
            return *windows_at(self.bytes, starts.chunk(shares)[share], config.context), None
        numbers: list[Any] = self.of_user.at(position, config.global_batch, config.seed)
        return self.of_user.batch(
            numbers[share * len(numbers) // shares : (share + 1) * len(numbers) // shares]
        )

    def held_out(self, places: range, of: int, seed: int) -> Batch:
        """Return some of the `of` held-out windows that are always the same."""
        if self.held_out_of_user is None:
            starts = starts_at(
                0, count=of, text=self.held_out_bytes, context=self.config.context, seed=seed
            )
            return *windows_at(
                self.held_out_bytes, starts[places.start : places.stop], self.config.context
            ), None
        return self.held_out_of_user.batch(
            [place % self.held_out_of_user.windows for place in places]
        )


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
        return moved(self._coming.popleft()[1].result(), self._device)

    def _pinned(self, step: int) -> Batch:
        inputs, following, documents = self._make(step)
        if self._device.type != "cuda":
            return inputs, following, documents
        return (
            inputs.pin_memory(),
            following.pin_memory(),
            None if documents is None else documents.pin_memory(),
        )


def moved(batch: Batch, device: torch.device) -> Batch:
    """Return a batch on the device."""
    inputs, following, documents = (
        part if part is None else part.to(device, non_blocking=True) for part in batch
    )
    return inputs, following, documents  # type: ignore[return-value]
