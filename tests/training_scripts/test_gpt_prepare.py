"""gpt_fsdp's prepare.py: rows of text to files of tokens, shared by processes, resumed after a stop, with checksums."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np  # noqa: TID253 - tests may start slowly
import pytest

from tests.training_scripts.runs import REPOSITORY, Run, run

SCRIPT = REPOSITORY / "training_scripts" / "gpt_fsdp" / "prepare.py"
PYTHON = os.environ.get("CLOUDTRAIN_LLM_PYTHON", sys.executable)
WORDS = "the king of france was a good man and he had no sword but a horse".split()
IN_PIECES = f"""
import runpy, sys
sys.path.insert(0, {str(REPOSITORY)!r})
import importlib.util
spec = importlib.util.spec_from_file_location("prepare", {str(SCRIPT)!r})
prepare = importlib.util.module_from_spec(spec)
sys.modules["prepare"] = prepare
spec.loader.exec_module(prepare)
prepare.UNIT_BYTES = 3000
prepare.main()
"""


def documents(count: int) -> list[str]:
    """Texts of very different lengths, one of them empty, all different."""
    draw = random.Random(1)
    return [
        "",
        *(
            f"{number} " + " ".join(draw.choices(WORDS, k=draw.randint(1, 60)))
            for number in range(1, count)
        ),
    ]


def prepared(
    folder: Path, *options: str, rank: int = 0, processes: int = 1, python: str = sys.executable
) -> Run:
    """One process of prepare.py, with large files divided into pieces of 3,000 bytes."""
    places = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": processes,
        "LOCAL_WORLD_SIZE": processes,
    }
    variables = {name: str(value) for name, value in places.items()}
    return run(folder, python, "-c", IN_PIECES, *options, **(variables if processes > 1 else {}))


def texts_in(folder: Path) -> list[str]:
    """The documents in the files of tokens, each token being a byte."""
    found = []
    for path in sorted(folder.glob("*.bin")):
        tokens = np.fromfile(path, np.uint16, offset=1024)
        starts = np.load(path.with_suffix(".starts.npy")).tolist()
        ends = [*starts[1:], len(tokens)]
        found += [
            bytes(tokens[a:b].astype(np.uint8)).decode() for a, b in zip(starts, ends, strict=True)
        ]
    return found


def write_jsonl(path: Path, texts: list[str], column: str = "text") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(
            json.dumps({"id": number, column: text}) + "\n" for number, text in enumerate(texts)
        )
    )


@pytest.mark.in_ci
def test_rows_become_documents_whoever_reads_them(tmp_path: Path) -> None:
    """A large file in one process or in three: the same documents in the same files, each once, with its start."""
    texts = documents(120)
    sizes = []
    for processes in (1, 3):
        folder = tmp_path / str(processes)
        write_jsonl(folder / "data" / "raw" / "rows.jsonl", texts)
        for rank in range(processes):
            done = prepared(
                folder, "--shard_tokens", "1000", "--held_out", "3", rank=rank, processes=processes
            )
            assert done.exit_code == 0, done.errors
        assert sorted(texts_in(folder / "text")) == sorted(texts[1:])
        sizes.append({path.name: path.stat().st_size for path in (folder / "text").iterdir()})
    assert sizes[0] == sizes[1]
    assert len([name for name in sizes[0] if name.startswith("unit_")]) > 3
    assert any(name.startswith("val_") for name in sizes[0])


@pytest.mark.slow
def test_what_is_done_is_left_out_and_what_is_missing_made(tmp_path: Path) -> None:
    """After a stop, a piece without its record is made again, the others are not touched; damage is found."""
    write_jsonl(tmp_path / "data" / "raw" / "rows.jsonl", documents(60))
    assert prepared(tmp_path).exit_code == 0
    out = tmp_path / "text"
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.bin")}
    assert len(before) >= 3
    gone, *others = sorted(before)
    next(out.glob(f"unit_{gone.split('_')[1]}.json")).unlink()
    again = prepared(tmp_path)
    assert f"({len(before) - 1} of {len(before)} pieces were there)" in "\n".join(again.lines)
    after = {path.name: path.stat().st_mtime_ns for path in out.glob("*.bin")}
    assert after[gone] > before[gone]
    assert all(after[name] == before[name] for name in others)
    assert "are whole" in "\n".join(prepared(tmp_path, "--check").lines)
    with (out / others[0]).open("r+b") as file:
        file.seek(1500)
        file.write(b"x")
    checked = prepared(tmp_path, "--check")
    assert checked.exit_code == 1
    assert f"{others[0]}` is missing or damaged" in checked.errors
    assert "Traceback" not in checked.errors
    # made otherwise: all again
    assert "(0 of" not in "\n".join(prepared(tmp_path, "--shard_tokens", "900").lines)


@pytest.mark.in_ci
def test_a_row_without_text_is_named(tmp_path: Path) -> None:
    """With the columns that there are."""
    write_jsonl(tmp_path / "data" / "raw" / "rows.jsonl", ["a"], column="content")
    found = prepared(tmp_path)
    assert found.exit_code == 1
    assert "has no text in `text`" in found.errors
    assert "`id`, `content`" in found.errors
    assert prepared(tmp_path, "--column", "content").exit_code == 0
    (tmp_path / "data" / "raw" / "rows.jsonl").write_text("{'a': 1}\n")
    assert "is not JSON" in prepared(tmp_path).errors
    assert (
        "there is no folder `gtp2`, and no input `tokenizer`"
        in prepared(tmp_path, "--tokenizer", "gtp2").errors
    )


def has(*modules: str) -> bool:
    ask = f"import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, {modules!r})))"
    return subprocess.run([PYTHON, "-c", ask], check=False).returncode == 0


MAKE = """
import json, sys
import datasets, pyarrow as pa, pyarrow.parquet as pq
from pathlib import Path
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
texts = json.loads(Path("texts.json").read_text())
for name in ("parquet", "arrow"):
    Path(name, "data", "raw").mkdir(parents=True)
pq.write_table(pa.table({"text": texts, "n": list(range(len(texts)))}), "parquet/data/raw/rows.parquet", row_group_size=7)
datasets.Dataset.from_dict({"text": texts}).save_to_disk("arrow/data/raw/saved", num_shards=2)
made = Tokenizer(models.BPE())
made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
made.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, special_tokens=["<|end|>"], show_progress=False,
                         initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
Path("tokenizer").mkdir()
made.save("tokenizer/tokenizer.json")
Path("tokenizer/tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|end|>"}}))
"""
READ = """
import json, sys
import numpy as np
from pathlib import Path
from tokenizers import Tokenizer
made = Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
found = []
for path in sorted(Path(sys.argv[1]).glob("*.bin")):
    tokens = np.fromfile(path, np.uint16, offset=1024)
    starts = np.load(path.with_suffix(".starts.npy")).tolist()
    parts = [tokens[a:b].tolist() for a, b in zip(starts, [*starts[1:], len(tokens)])]
    assert all(part[-1] == made.token_to_id("<|end|>") for part in parts)
    found += [made.decode(part) for part in parts]
print(json.dumps(found))
"""


@pytest.mark.torch
@pytest.mark.skipif(
    not has("datasets", "tokenizers", "pyarrow"),
    reason="set CLOUDTRAIN_LLM_PYTHON (make test-scripts)",
)
def test_parquet_datasets_and_any_tokenizer(tmp_path: Path) -> None:
    """What `datasets` saves and Parquet become the same documents; each ends with the tokenizer's token for that; the
    tokenizer lies beside the tokens, where an export finds it."""
    texts = documents(80)

    def said(code: str, *arguments: str) -> Any:
        done = subprocess.run(
            [PYTHON, "-c", code, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout or "null")

    (tmp_path / "texts.json").write_text(json.dumps(texts))
    said(MAKE)
    for name in ("parquet", "arrow"):
        done = prepared(tmp_path / name, "--tokenizer", str(tmp_path / "tokenizer"), python=PYTHON)
        assert done.exit_code == 0, done.errors
        assert sorted(said(READ, f"{name}/text")) == sorted(texts)
        assert (tmp_path / name / "text" / "tokenizer.json").is_file()
