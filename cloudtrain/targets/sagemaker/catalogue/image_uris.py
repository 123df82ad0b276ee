"""Find the contents of an AWS image by its address."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from cloudtrain.targets.sagemaker.catalogue.image import Image, describe_image, split_base
from cloudtrain.targets.sagemaker.catalogue.image_data import in_range, registries, rows, whole_version

_ADDRESS = (
    r"(?P<registry>public\.ecr\.aws/(?:deep-learning-containers|neuron)|(?P<account>\d{12})\.dkr\.ecr\.[a-z0-9.-]+)"
    r"/(?P<repository>[a-z0-9._/-]+):(?P<tag>[\w.-]+)(?:@sha256:[0-9a-f]+)?"
)

_REPOSITORIES: dict[str, tuple[str, str]] = {
    "pytorch": ("pytorch", ""),
    "pytorch-training": ("pytorch", ""),
    "pytorch-training-neuron": ("pytorch", "neuron"),
    "pytorch-training-neuronx": ("pytorch", "neuron"),
    "sagemaker-pytorch": ("pytorch", ""),
    "smdistributed-modelparallel": ("pytorch", "gpu"),
    "tensorflow": ("tensorflow", ""),
    "tensorflow-training": ("tensorflow", ""),
    "sagemaker-tensorflow-scriptmode": ("tensorflow", ""),
    "huggingface-pytorch-training": ("huggingface", ""),
    "huggingface-tensorflow-training": ("huggingface", ""),
    "huggingface-pytorch-training-neuronx": ("huggingface", "neuron"),
}
"""Maps each repository to its framework, and to its device if all its images are for one device."""


def image_of_uri(uri: str) -> Image | None:
    """Return the catalogue entry of an AWS image, by its address.

    Returns None for images that are not from AWS, and for addresses that do not name the version: `latest`, or no tag.
    """
    match = re.fullmatch(_ADDRESS, uri)
    if match is None or match["repository"] not in _REPOSITORIES:
        return None
    if match["account"] is not None and match["account"] not in _accounts():
        return None
    framework, device = _REPOSITORIES[match["repository"]]
    version, *words = match["tag"].split("-")
    device = device or next(_devices(words), "")
    if not device or not re.fullmatch(r"\d+(\.\d+)+", version):
        return None
    listed = [row for row in rows(framework) if row.repository == match["repository"]]
    base = ""
    if framework == "huggingface":
        engine = "tensorflow" if "tensorflow" in match["repository"] else "pytorch"
        base = engine + _whole(version, [split_base(row.base)[1] for row in listed])
        listed = [row for row in listed if row.base == base]
        version = next((word.removeprefix("transformers") for word in words if word.startswith("transformers")), "")
        if not version:
            return None
    version = _whole(version, [row.version for row in listed])
    python = _python(words, split_base(base) if base else (framework, version))
    return describe_image(
        framework, version, python, device, (match["registry"], match["repository"], match["tag"]), base
    )


def _whole(version: str, known: Sequence[str]) -> str:
    """Complete a short version: `1.13` becomes `1.13.1`.

    The SDK copies a short version into the tag, and AWS moves that tag to the newest patch release.
    """
    return whole_version(version, known) or version


def _accounts() -> frozenset[str]:
    return frozenset(account for accounts in registries() for account in accounts.values())


def _devices(words: Sequence[str]) -> Iterator[str]:
    """Yield the devices that the parts of a tag name. A CUDA version such as `cu129` means `gpu`."""
    for word in words:
        if word in ("gpu", "cpu"):
            yield word
        elif word.startswith("neuron"):
            yield "neuron"
        elif re.fullmatch(r"cu\d+", word):
            yield "gpu"


def _python(words: Sequence[str], engine: tuple[str, str]) -> str:
    named = (word for word in words if re.fullmatch(r"py\d+", word))
    return next(named, next(iter(in_range("python", *engine, "python")), ""))
