"""Write the packages of AWS's PyTorch images into the catalogue, from the locks that the images are built from.

    python tools/generate/sagemaker_packages.py CHECKOUT          writes the table
    python tools/generate/sagemaker_packages.py CHECKOUT --check  fails if the table differs

CHECKOUT is a clone of https://github.com/aws/deep-learning-containers, bare or not. Images of PyTorch 2.11 and newer
are built with `uv sync --frozen --extra sagemaker` from docker/pytorch/VERSION/{cpu,cuda}/uv.lock; older images have no
lock. The Dockerfiles add flash-attn and transformer-engine to the images for GPUs, without a version in the lock.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from written import write_or_check

from cloudtrain.job.locks import read_lock
from cloudtrain.job.requirements import Platform

TABLE = (
    Path(__file__).parents[2] / "cloudtrain/targets/sagemaker/catalogue/data/image_packages.json"
)

DEVICES = {"cpu": "cpu", "gpu": "cuda"}
"""Devices of the catalogue, and the folders of their locks."""

_ALL = ("pip", "sagemaker-containers", "sagemaker-pytorch-container")
_GPU = ("flash-attn", "transformer-engine", "transformer-engine-torch")

ADDED = {"cpu": _ALL, "gpu": (*_ALL, *_GPU)}
"""What the images have besides the lock: what the Dockerfiles install, and modules whose packages have other names. The
versions are not known."""


def main() -> int:
    """Write or check the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", options.checkout, *words], capture_output=True, text=True, check=True
        ).stdout

    commit = git("rev-parse", "HEAD").strip()
    names = set(git("ls-tree", "-r", "--name-only", "HEAD", "docker/pytorch").split())
    images = {}
    for version in sorted({name.split("/")[2] for name in names if name.endswith("/uv.lock")}):
        for device, folder in DEVICES.items():
            place = f"docker/pytorch/{version}/{folder}"
            if f"{place}/uv.lock" not in names:
                continue

            def read(path: str, place: str = place) -> str | None:
                return git("show", f"HEAD:{place}/{path}") if f"{place}/{path}" in names else None

            locked = read_lock("uv.lock", read, Platform("3.12"), extras=["sagemaker"])
            packages = {package.name: package.version for package in locked.packages}
            images[f"{version} {device}"] = dict(
                sorted({**packages, **dict.fromkeys(ADDED[device], "")}.items())
            )
    source = f"aws/deep-learning-containers @{commit[:12]}, docker/pytorch/VERSION/DEVICE/uv.lock"
    rows = ",\n".join(
        f" {json.dumps(name)}: {json.dumps(images[name], separators=(',', ':'))}"
        for name in sorted(images)
    )
    text = f'{{"source": {json.dumps(source)},\n"images": {{\n{rows}\n}}}}\n'
    return write_or_check(TABLE, text, __file__)


if __name__ == "__main__":
    sys.exit(main())
