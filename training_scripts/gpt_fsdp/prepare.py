"""Turn text into files of tokens for train.py, as llm.c writes them, with the starts of documents beside them.

The text lies in data/raw: *.txt (each file a document), *.jsonl, *.parquet, or what `datasets` saved (*.arrow), with a
document in the column `text` of each row. Tokens are bytes, or GPT-2's with tiktoken, or those of any tokenizer.json:
    python prepare.py
    python prepare.py --tokenizer gpt2
    python prepare.py --tokenizer FOLDER --column content

Several processes share the work, however they are started. A run that was stopped leaves out what is done:
    torchrun --nproc-per-node 8 prepare.py --tokenizer FOLDER
    cloudtrain submit prepare.yaml
    cloudtrain submit prepare.yaml --target sagemaker

Compare the files with their checksums:
    python prepare.py --check
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

try:
    from cloudtrain import runtime
# not installed; in a checkout it stands two folders up, and the runtime is plain Python
except ModuleNotFoundError:
    sys.path.append(str(Path(__file__).resolve().parent.parent.parent))
    from cloudtrain import runtime


@dataclass
class Config:
    raw: Path = Path("data", "raw")  # unless a job gives the input `raw`
    # or gpt2, or a folder that has a tokenizer.json; in a job the input `tokenizer`
    tokenizer: str = "bytes"
    column: str = "text"  # of a row
    shard_tokens: int = 100_000_000  # of one file, which ends with a document
    # every so many-th file of tokens is held out; 0: train.py takes the end of each
    held_out: int = 10
    check: bool = False  # compare the files with their checksums, and write nothing


AT_LEAST = {"shard_tokens": 1, "held_out": 0}
MAGIC = {2: (20240520, 1), 4: (20240801, 7)}
"""llm.c's first two numbers, by the bytes of a token."""

UNIT_BYTES = 256 << 20
"""Bytes of text that a process does at a time, about; a larger file is shared."""

AT_ONCE = 512
"""Documents that a tokenizer gets at once: it has threads of its own."""

SUFFIXES = (".txt", ".jsonl", ".parquet", ".arrow")

Encode = Callable[[list[str]], list[list[int]]]


class Tokenizer(NamedTuple):
    """A function from texts to tokens, the type of a token, what identifies it, and its folder."""

    encode: Encode
    kind: Any
    key: str
    folder: Path | None = None


def tokenizer_of(name: str) -> Tokenizer:
    """Return the tokenizer of a name or a folder."""
    if name == "bytes":
        return Tokenizer(lambda texts: [list(text.encode()) for text in texts], np.uint16, name)
    if name == "gpt2":
        try:
            import tiktoken
        except ModuleNotFoundError:
            raise runtime.SetupError(
                "`--tokenizer gpt2` needs tiktoken", hint="pip install tiktoken"
            ) from None
        gpt2 = tiktoken.get_encoding("gpt2")
        return Tokenizer(
            lambda texts: [[*ids, gpt2.eot_token] for ids in gpt2.encode_ordinary_batch(texts)],
            np.uint16,
            name,
        )
    given = Path(name)
    if given.exists():
        return read_tokenizer(given.parent if given.is_file() else given)
    try:
        folder = runtime.input_dir("tokenizer")
    except runtime.SetupError:
        raise runtime.SetupError(
            f"there is no folder `{name}`, and no input `tokenizer`",
            hint="give `bytes`, `gpt2`, or a folder with a tokenizer.json",
        ) from None
    return read_tokenizer(folder)


def read_tokenizer(folder: Path) -> Tokenizer:
    """Read a tokenizer.json. A document ends with the token that `tokenizer_config.json` calls `eos_token`."""
    try:
        from tokenizers import Tokenizer as Fast
    except ModuleNotFoundError:
        raise runtime.SetupError(
            f"the tokenizer in `{folder}` needs tokenizers", hint="pip install tokenizers"
        ) from None
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise runtime.SetupError(
            f"there is no `{path}`", hint="give a folder that transformers' `save_pretrained` wrote"
        )
    fast = Fast.from_file(str(path))
    beside = folder / "tokenizer_config.json"
    end = json.loads(beside.read_text("utf-8")).get("eos_token") if beside.is_file() else None
    end = end.get("content") if isinstance(end, dict) else end
    end_id = fast.token_to_id(end) if end else None

    def encode(texts: list[str]) -> list[list[int]]:
        found = [list(one.ids) for one in fast.encode_batch(texts)]
        return [ids if end_id is None or ids[-1:] == [end_id] else [*ids, end_id] for ids in found]

    key = hashlib.sha256(path.read_bytes() + str(end).encode()).hexdigest()
    return Tokenizer(
        encode, np.uint16 if fast.get_vocab_size() <= 1 << 16 else np.uint32, key, folder
    )


class Unit(NamedTuple):
    """A file, or one of the parts into which a large one is divided."""

    path: Path
    part: int
    parts: int


def units_of(paths: list[Path]) -> list[Unit]:
    """Divide files into pieces of work. Lines and groups of rows can be told apart without reading all before them."""
    found = []
    for path in paths:
        parts = (
            -(-path.stat().st_size // UNIT_BYTES) if path.suffix in (".jsonl", ".parquet") else 1
        )
        found += [Unit(path, part, max(1, parts)) for part in range(max(1, parts))]
    return found


def documents_of(unit: Unit, column: str) -> Iterator[str]:
    """Yield the documents of a unit."""
    if unit.path.suffix == ".txt":
        yield unit.path.read_text("utf-8", errors="replace")
        return
    for row in lines_of(unit) if unit.path.suffix == ".jsonl" else rows_of(unit, column):
        if not isinstance(row, dict) or not isinstance(row.get(column), str):
            has = ", ".join(f"`{name}`" for name in row) if isinstance(row, dict) else "none"
            raise runtime.SetupError(
                f"a row of `{unit.path}` has no text in `{column}`",
                hint=f"give `--column`; its columns are {has}",
            )
        yield row[column]


def lines_of(unit: Unit) -> Iterator[Any]:
    """Yield the rows of a part of a JSON Lines file: those that begin in its share of the bytes."""
    size = unit.path.stat().st_size
    first, end = (size * number // unit.parts for number in (unit.part, unit.part + 1))
    with unit.path.open("rb") as file:
        if first:
            file.seek(first - 1)
            file.readline()  # the rest of a row that begins before
        while file.tell() < end and (line := file.readline()):
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError:
                    raise runtime.SetupError(
                        f"a line of `{unit.path}`, {file.tell():,} bytes on, is not JSON",
                        hint="correct or remove it",
                    ) from None


def rows_of(unit: Unit, column: str) -> Iterator[Any]:
    """Yield the rows of a part of a Parquet or Arrow file, with this column alone if it is there."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise runtime.SetupError(
            f"`{unit.path}` needs pyarrow", hint="pip install pyarrow"
        ) from None
    if unit.path.suffix == ".arrow":
        with pyarrow.memory_map(str(unit.path)) as source:
            for batch in pyarrow.ipc.open_stream(source):
                yield from (
                    batch.select([column]) if column in batch.schema.names else batch
                ).to_pylist()
        return
    file = parquet.ParquetFile(unit.path)
    groups = list(range(file.num_row_groups))[unit.part :: unit.parts]
    wanted = [column] if column in file.schema_arrow.names else None
    for batch in file.iter_batches(row_groups=groups, columns=wanted):
        yield from batch.to_pylist()


# Files of tokens


def write_shard(
    path: Path, documents: list[np.ndarray[Any, Any]], kind: Any
) -> dict[str, dict[str, Any]]:
    """Write llm.c's header of 256 numbers, then the tokens; and where documents start. Return both files' entries."""
    tokens = np.concatenate(documents).astype(kind)
    starts = np.cumsum([0, *map(len, documents[:-1])], dtype=np.int64)
    header = np.zeros(256, np.int32)
    header[:2], header[2] = MAGIC[tokens.itemsize], len(tokens)
    beside = path.with_suffix(".starts.npy")
    aside = path.with_name(f".{path.stem}.starts.writing.npy")
    np.save(aside, starts)
    entries = {beside.name: replaced(aside, beside)}
    aside = path.with_name(f".{path.name}.writing")
    aside.write_bytes(header.tobytes() + tokens.tobytes())
    return entries | {
        path.name: {"tokens": len(tokens), "documents": len(documents), **replaced(aside, path)}
    }


def replaced(aside: Path, path: Path) -> dict[str, Any]:
    """Give a complete file its name. Return its size and checksum."""
    entry = {"bytes": aside.stat().st_size, "sha256": checksum_of(aside)}
    aside.replace(path)
    return entry


def checksum_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_unit(
    unit: Unit, number: int, out: Path, tokenizer: Tokenizer, config: Config
) -> dict[str, Any]:
    """Write the files of a unit. Return their entries."""
    entries: dict[str, Any] = {}
    gathered: list[np.ndarray[Any, Any]] = []
    shard = filled = 0

    def flush() -> None:
        nonlocal shard, filled
        place = number + shard
        is_held_out = config.held_out and place % config.held_out == config.held_out - 1
        name = f"{'val' if is_held_out else 'train'}_{number:06d}_{shard:06d}.bin"
        entries.update(write_shard(out / name, gathered, tokenizer.kind))
        gathered.clear()
        shard, filled = shard + 1, 0

    texts = documents_of(unit, config.column)
    while some := list(islice(texts, AT_ONCE)):
        for ids in filter(None, tokenizer.encode(some)):
            gathered.append(np.asarray(ids, tokenizer.kind))
            filled += len(ids)
            if filled >= config.shard_tokens:
                flush()
    if gathered:
        flush()
    return entries


def is_done(record: Path, key: dict[str, Any]) -> bool:
    """Return whether a unit's files are there, made from the same text in the same way."""
    try:
        known = json.loads(record.read_text("utf-8"))
        sizes = {name: (record.parent / name).stat().st_size for name in known["files"]}
    except (OSError, ValueError, KeyError):
        return False
    return bool(known["key"] == key) and sizes == {
        name: entry["bytes"] for name, entry in known["files"].items()
    }


def check(out: Path) -> None:
    """Compare all files with their checksums."""
    records = sorted(out.glob("unit_*.json"))
    files = {
        name: entry
        for record in records
        for name, entry in json.loads(record.read_text())["files"].items()
    }
    bad = [
        name
        for name, entry in files.items()
        if not (out / name).is_file() or checksum_of(out / name) != entry["sha256"]
    ]
    if bad or not files:
        what = (
            f"`{out / bad[0]}` is missing or damaged"
            if bad
            else f"there are no files of prepare.py in `{out}`"
        )
        raise runtime.SetupError(
            what, hint="remove it, and run prepare.py again: it makes what is missing"
        )
    print(f"{len(files)} files in `{out}` are whole", flush=True)


def main() -> None:
    config = runtime.arguments(Config, at_least=AT_LEAST)
    here = runtime.detect_environment()
    out = runtime.output_dir("text")
    if config.check:
        check(out)
        return
    raw, tokenizer = runtime.input_dir("raw", default=config.raw), tokenizer_of(config.tokenizer)
    paths = sorted(path for path in raw.rglob("*") if path.suffix in SUFFIXES)
    if not paths:
        raise runtime.SetupError(
            f"there is no text in `{raw}`", hint=f"put files there: {', '.join(SUFFIXES)}"
        )
    worker, workers = (
        here.node_rank * here.local_world_size + here.local_rank,
        here.node_count * here.local_world_size,
    )
    mine = list(enumerate(units_of(paths)))[worker::workers]
    tokens = documents = left_out = 0
    for number, unit in mine:
        record = out / f"unit_{number:06d}.json"
        source = [str(unit.path.relative_to(raw)), unit.path.stat().st_size, unit.part, unit.parts]
        key = {"source": source, "tokenizer": tokenizer.key, "column": config.column}
        key |= {"shard_tokens": config.shard_tokens, "held_out": config.held_out}
        if is_done(record, key):
            left_out += 1
        else:
            record.unlink(missing_ok=True)
            for old in out.glob(f"*_{number:06d}_*"):
                old.unlink()
            files = write_unit(unit, number, out, tokenizer, config)
            aside = record.with_suffix(".writing")
            aside.write_text(json.dumps({"key": key, "files": files}, indent=1))
            aside.replace(record)
        entries = json.loads(record.read_text("utf-8"))["files"].values()
        tokens += sum(entry.get("tokens", 0) for entry in entries)
        documents += sum(entry.get("documents", 0) for entry in entries)
    if tokenizer.folder and worker == 0:
        for name in (
            "tokenizer.json",
            "tokenizer_config.json",
            "special_tokens_map.json",
            "chat_template.jinja",
        ):
            if (tokenizer.folder / name).is_file():
                shutil.copyfile(tokenizer.folder / name, out / name)
    done = f" ({left_out} of {len(mine)} pieces were there)" if left_out else ""
    print(f"{tokens:,} tokens of {documents:,} documents in `{out}`{done}", flush=True)


if __name__ == "__main__":
    main()
