"""The image of a request: which class of version 2 runs it, and whether the SDK would pick it by version."""

from __future__ import annotations

import re
from collections.abc import Sequence

FRAMEWORKS = {
    "pytorch-training": "pytorch",
    "pytorch": "pytorch",
    "pytorch-training-neuron": "pytorch",
    "pytorch-training-neuronx": "pytorch",
    "smdistributed-modelparallel": "pytorch",
    "tensorflow-training": "tensorflow",
    "huggingface-pytorch-training": "huggingface",
    "huggingface-tensorflow-training": "huggingface",
}
"""Repository of an AWS image to the framework whose class starts it."""

_URI = re.compile(r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.[a-z.]+/(?P<repository>[^:@]+):(?P<tag>.+)")
_PUBLIC = re.compile(r"public\.ecr\.aws/deep-learning-containers/(?P<repository>[^:@]+):(?P<tag>.+)")
_TAG = re.compile(r"(?P<version>\d+\.\d+\.\d+)-(?P<device>cpu|gpu)-(?P<python>py\d+)")
_SMP_TAG = re.compile(r"(?P<version>\d+\.\d+\.\d+)-(?P<device>gpu)-(?P<python>py\d+)-(?P<cuda>cu\d+)")
_HF_TAG = re.compile(
    r"(?P<version>[\d.]+)-transformers(?P<transformers>[\d.]+)-(?P<device>cpu|gpu)-(?P<python>py\d+).*"
)


NEWEST = {"pytorch": (2, 8, 0), "tensorflow": (2, 19, 0), "huggingface": (4, 56, 2)}
"""The newest versions that the SDK (2.257.7) has images for. No later release adds any."""


def framework_of(uri: str) -> str | None:
    """`pytorch`, `tensorflow` or `huggingface` for AWS's own images, None for all others."""
    match = _URI.fullmatch(uri) or _PUBLIC.fullmatch(uri)
    return FRAMEWORKS.get(match["repository"]) if match else None


def version_in(uri: str) -> str | None:
    """The version of PyTorch or TensorFlow that an image's tag begins with."""
    match = re.match(r"\d+\.\d+\.\d+", uri.rpartition(":")[2])
    return match[0] if match else None


def version_arguments(uri: str, types: Sequence[str], *, model_parallel: bool) -> dict[str, str] | None:
    """The version arguments for which the SDK picks exactly this image on these instance types, or None."""
    match = _URI.fullmatch(uri)
    if match is None:
        return None
    device = "gpu" if any(name.startswith(("ml.g", "ml.p")) for name in types) else "cpu"
    if any(name.startswith("ml.trn") for name in types):
        return None
    framework, tag = FRAMEWORKS.get(match["repository"]), match["tag"]
    if framework == "huggingface":
        return _huggingface(match["repository"], tag, device)
    smp = match["repository"] == "smdistributed-modelparallel"
    found = (_SMP_TAG if smp else _TAG).fullmatch(tag)
    if found is None or framework is None or smp != model_parallel or found["device"] != device:
        return None
    if tuple(map(int, found["version"].split("."))) > NEWEST[framework]:
        return None
    return {"framework_version": found["version"], "py_version": found["python"]}


def _huggingface(repository: str, tag: str, device: str) -> dict[str, str] | None:
    found = _HF_TAG.fullmatch(tag)
    if found is None or found["device"] != device or repository != "huggingface-pytorch-training":
        return None
    return {
        "transformers_version": found["transformers"],
        "pytorch_version": found["version"],
        "py_version": found["python"],
    }
