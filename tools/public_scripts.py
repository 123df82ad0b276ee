"""Run unmodified public training scripts here, and print which curves `status` and `metrics` show of each.

    python tools/public_scripts.py CLONES --python ENVIRONMENT/bin/python
    python tools/public_scripts.py CLONES --python ENVIRONMENT/bin/python --only nanoGPT xgboost

CLONES is a folder with clones of the repositories: `karpathy/nanoGPT` is `CLONES/nanoGPT`, with a work tree or bare. The
environment needs torch, torchvision, torchmetrics, keras, xgboost, timm and lightning with jsonargparse. The scripts stay as
they are; their settings are small, and data is generated in the format that they read. Nothing comes from another
machine. Keras's script takes the longest.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import pickle
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import NamedTuple

import cloudtrain as ct

CLASSES = 10
PIXELS = 28


class Script(NamedTuple):
    """A public script: where it is, how it is started, and who makes its data in its folder."""

    name: str
    repository: str
    path: str
    arguments: str = ""
    make_data: Callable[[Path], None] = lambda _: None
    folders: str = "."
    """What is taken of the repository."""
    variables: Mapping[str, str] = MappingProxyType({})

    @property
    def needs_torchvision(self) -> bool:
        return self.make_data in (images, digits, many_digits)


def characters(folder: Path) -> None:
    """The text of minGPT's script, and the tokens of nanoGPT's."""
    text = "O God, O God! To be or not to be, that is the question. " * 200
    (folder / "input.txt").write_text(text)
    names = sorted(set(text))
    tokens = struct.pack(f"<{len(text)}H", *map(names.index, text))
    data = folder / "data" / "shakespeare_char"
    if data.is_dir():
        for part in ("train", "val"):
            (data / f"{part}.bin").write_bytes(tokens)
        numbers = {name: number for number, name in enumerate(names)}
        meta = {"vocab_size": len(names), "stoi": numbers, "itos": dict(enumerate(names))}
        (data / "meta.pkl").write_bytes(pickle.dumps(meta))


def images(folder: Path) -> None:
    """A folder of pictures for each class, as ImageNet has it."""
    from PIL import Image

    for part, count in (("train", 12), ("val", 6)):
        for number in range(count):
            label = f"n{number % 2:08}"
            place = folder / "pictures" / part / label
            place.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (64, 64), (number * 20, 90, 40)).save(place / f"{number}.jpg")


def digit_files(counts: tuple[int, int]) -> dict[str, bytes]:
    files = {}
    for part, count in zip(("train", "t10k"), counts, strict=True):
        labels = bytes(number % CLASSES for number in range(count))
        size = PIXELS * PIXELS
        pictures = b"".join(bytes([20 * label]) * size for label in labels)
        head = struct.pack(">4I", 0x803, count, PIXELS, PIXELS)
        files[f"{part}-images-idx3-ubyte"] = head + pictures
        files[f"{part}-labels-idx1-ubyte"] = struct.pack(">2I", 0x801, count) + labels
    return files


OPERATORS = """\
import torch
if "+cpu" in torch.__version__:
    operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        operators.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
"""Lets the published torchvision, which is built for CUDA, load beside a torch without it. No script here calls its
compiled operators."""

MIRROR = """\
import torchvision.datasets as datasets
datasets.MNIST.mirrors = [{address!r}]
datasets.MNIST.resources = {resources!r}
"""


def digits(folder: Path, counts: tuple[int, int] = (1280, 256)) -> None:
    """A mirror of MNIST on this machine, from which torchvision downloads."""
    mirror = folder / "mirror"
    mirror.mkdir()
    resources = []
    for name, data in digit_files(counts).items():
        packed = gzip.compress(data)
        (mirror / f"{name}.gz").write_bytes(packed)
        resources.append((f"{name}.gz", hashlib.md5(packed).hexdigest()))
    handler = partial(SimpleHTTPRequestHandler, directory=str(mirror))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}/"
    text = MIRROR.format(address=address, resources=resources)
    with (folder / "sitecustomize.py").open("a") as file:
        file.write(text)


def many_digits(folder: Path) -> None:
    digits(folder, (60_000, 256))


LOOPBACK = {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}

SCRIPTS = (
    Script(
        "nanoGPT", "nanoGPT", "train.py",
        "config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=2 --log_interval=1 --eval_interval=10"
        " --block_size=32 --batch_size=4 --n_layer=1 --n_head=2 --n_embd=32 --max_iters=20 --lr_decay_iters=20 --dropout=0.0",
        characters,
    ),
    Script(
        "minGPT", "minGPT", "projects/chargpt/chargpt.py",
        "--model.model_type=gpt-nano --data.block_size=32 --trainer.max_iters=60 --trainer.batch_size=4 --trainer.num_workers=0",
        characters,
    ),
    Script(
        "PyTorch's mnist", "examples", "mnist/main.py", "--epochs=2 --log-interval=5", digits, "mnist",
        variables=LOOPBACK,
    ),
    Script(
        "PyTorch's imagenet", "examples", "imagenet/main.py",
        "pictures -a resnet18 -b 4 --epochs 2 -p 1 -j 0", images, "imagenet",
    ),
    Script("Keras", "keras", "examples/demo_functional.py", folders="examples", variables={"KERAS_BACKEND": "torch"}),
    Script("xgboost", "xgboost", "demo/guide-python/evals_result.py", folders="demo"),
    Script(
        "Fabric", "pytorch-lightning", "examples/fabric/image_classifier/train_fabric.py",
        "--epochs=2 --log-interval=5", digits, "examples", LOOPBACK,
    ),
    Script(
        "timm", "pytorch-image-models", "train.py",
        "--device cpu --data-dir pictures --model resnet10t --img-size 32 -b 4 --epochs 2 --workers 1 --log-interval 1 --num-classes 2",
        images, "train.py timm",
    ),
    Script(
        "Lightning", "pytorch-lightning", "examples/pytorch/basics/autoencoder.py",
        "--trainer.max_epochs=2 --trainer.limit_train_batches=60 --trainer.limit_val_batches=5"
        " --trainer.limit_test_batches=5 --trainer.limit_predict_batches=2",
        many_digits, "examples", LOOPBACK,
    ),
)  # fmt: skip


def take_out(clone: Path, folders: str, place: Path) -> None:
    """Write the newest commit of a clone into a folder."""
    command = [
        "git",
        "-c",
        "safe.directory=*",
        "-C",
        str(clone),
        "archive",
        "HEAD",
        *folders.split(),
    ]
    archive = subprocess.run(command, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(place, filter="data")


def row_of(script: Script, clones: Path, python: str) -> str:
    """Run a script, and return its row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        take_out(clones / script.repository, script.folders, place)
        if script.needs_torchvision:
            (place / "sitecustomize.py").write_text(OPERATORS)
        script.make_data(place)
        job = ct.TrainingJob(
            name="public-script",
            source_dir=str(place),
            entry_point=script.path,
            arguments=tuple(script.arguments.split()),
            environment={"variables": {"PYTHONPATH": str(place), **script.variables}},
        )
        run = ct.submit(job, ct.Local(python=python))
        state = run.wait(1200).state
        command = [sys.executable, "-m", "cloudtrain", "status", run.name]
        status = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        shown = re.search("^  metric +(.*)", status, re.MULTILINE)
        curves = ", ".join(f"`{curve.name}`" for curve in run.curves())
        metric = "nothing" if shown is None else shown[1]
        if state != ct.RunState.SUCCEEDED:
            sys.stderr.write("".join(f"{line.text}\n" for line in list(run.logs())[-15:]))
    return f"| {script.name} | `{script.path}` | {state} | {metric} | {curves} |"


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("clones", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", nargs="*", default=[script.name for script in SCRIPTS])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as state:
        os.environ["CLOUDTRAIN_STATE_DIR"] = state
        sys.stdout.write(
            "| script | file | ended | `status` shows | curves |\n|---|---|---|---|---|\n"
        )
        for script in SCRIPTS:
            if script.name in given.only:
                sys.stdout.write(row_of(script, given.clones.resolve(), given.python) + "\n")
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
