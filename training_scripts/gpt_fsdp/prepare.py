"""Turn text into files of tokens for train.py, as llm.c writes them.

The text lies in data/raw as *.txt; its bytes become the tokens, or GPT-2's with tiktoken, which fetches a table:
    python prepare.py
    python prepare.py --tokenizer gpt2

Each process its share of the files, however processes are started, as a job:
    cloudtrain submit prepare.yaml
    cloudtrain submit prepare.yaml --target sagemaker
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

try:
    from cloudtrain import runtime
except ModuleNotFoundError:  # not installed; in a checkout it stands two folders up, and the runtime is plain Python
    sys.path.append(str(Path(__file__).resolve().parent.parent.parent))
    from cloudtrain import runtime


@dataclass
class Config:
    raw: Path = Path("data", "raw")  # *.txt, unless a job gives the input `raw`
    tokenizer: Literal["bytes", "gpt2"] = "bytes"
    shard_tokens: int = 100_000_000  # of one file at most
    held_out: int = 10  # every so many-th file of tokens is held out; 0: train.py takes the end of each


AT_LEAST = {"shard_tokens": 1, "held_out": 0}
MAGIC = {2: (20240520, 1), 4: (20240801, 7)}
"""llm.c's first two numbers, by the bytes of a token."""


def tokenizer_of(name: str) -> tuple[Callable[[str], list[int]], type]:
    """Return the function from text to tokens, and their data type."""
    if name == "bytes":
        return lambda text: list(text.encode()), np.uint16
    try:
        import tiktoken
    except ModuleNotFoundError:
        raise runtime.SetupError("`--tokenizer gpt2` needs tiktoken", hint="pip install tiktoken") from None
    gpt2 = tiktoken.get_encoding("gpt2")
    return lambda text: [*gpt2.encode_ordinary(text), gpt2.eot_token], np.uint16


def write_shard(path: Path, tokens: np.ndarray) -> None:
    """Write llm.c's header of 256 numbers, then the tokens. The file gets its name when it is complete."""
    header = np.zeros(256, np.int32)
    header[:2], header[2] = MAGIC[tokens.itemsize], len(tokens)
    aside = path.with_name(f".{path.name}.writing")
    aside.write_bytes(header.tobytes() + tokens.tobytes())
    aside.replace(path)


def main() -> None:
    config = runtime.arguments(Config, at_least=AT_LEAST)
    here = runtime.detect_environment()
    raw, out = runtime.input_dir("raw", default=config.raw), runtime.output_dir("text")
    encode, kind = tokenizer_of(config.tokenizer)
    paths = sorted(raw.rglob("*.txt"))
    if not paths:
        raise runtime.SetupError(f"there is no `*.txt` in `{raw}`", hint="put text there")
    worker, workers = here.node_rank * here.local_world_size + here.local_rank, here.node_count * here.local_world_size
    total = 0
    for number, path in list(enumerate(paths))[worker::workers]:
        tokens = np.asarray(encode(path.read_text("utf-8", errors="replace")), kind)
        for start in range(0, len(tokens), config.shard_tokens):
            place = number + start // config.shard_tokens
            is_held_out = config.held_out and place % config.held_out == config.held_out - 1
            name = f"{'val' if is_held_out else 'train'}_{number:06d}_{start // config.shard_tokens:06d}.bin"
            write_shard(out / name, tokens[start : start + config.shard_tokens])
        total += len(tokens)
    print(f"{total:,} tokens of {len(paths[worker::workers])} files in `{out}`", flush=True)


if __name__ == "__main__":
    main()
