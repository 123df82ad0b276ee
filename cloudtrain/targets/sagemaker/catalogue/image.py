"""One training image of AWS, with its CUDA version, training toolkit and SageMaker libraries."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from cloudtrain.targets.sagemaker.catalogue.image_data import facts, in_range, rows

SMP2_REPOSITORY = "smdistributed-modelparallel"


class Image(NamedTuple):
    """One training image of AWS."""

    framework: str
    """`pytorch`, `tensorflow` or `huggingface`."""
    version: str
    """The framework's full version, such as `2.8.0`; for `huggingface`, the version of transformers."""
    python: str
    """`py312`; empty if the address does not name a Python version."""
    device: str
    """`gpu`, `cpu` or `neuron`."""
    registry: str
    """The registry's host, such as `763104351884.dkr.ecr.us-west-2.amazonaws.com`."""
    repository: str
    tag: str
    base: str = ""
    """For Hugging Face images: the base framework, such as `pytorch2.8.0`."""
    cuda: str = ""
    """`12.9`; empty if the image has no CUDA or its version is unknown."""
    toolkit: str | None = None
    """The newest version of sagemaker-training in any build of the image; older builds have older versions.

    None: unknown or not installed.
    """
    smddp: bool = False
    """Whether the image contains SageMaker's data parallel library."""
    smp: int = 0
    """The version of SageMaker's model parallelism library in the image: 1, 2, or 0 for none."""
    sdk: int = 0
    """The oldest major version of the SageMaker SDK that lists this image: 2, 3, or 0 for neither."""
    doubt: str | None = None
    """The reason why the image may be missing or broken although it has an address."""

    @property
    def uri(self) -> str:
        """Return the image URI that goes into the request."""
        return f"{self.registry}/{self.repository}:{self.tag}"

    @property
    def engine(self) -> tuple[str, str]:
        """Return the framework and its version; for Hugging Face images, the base framework, such as PyTorch."""
        return split_base(self.base) if self.framework == "huggingface" else (self.framework, self.version)

    @property
    def python_version(self) -> tuple[int, ...]:
        """Return the Python version: (3, 12) for the tag `py312`, (3,) for `py3`; empty if the address names none."""
        match = re.fullmatch(r"py(\d)(\d{0,4})", self.python)
        return tuple(int(part) for part in match.groups() if part) if match else ()


def describe_image(
    framework: str, version: str, python: str, device: str, address: tuple[str, str, str], base: str = ""
) -> Image:
    """Return an image with the facts from its `address` (registry, repository, tag) and the hand-written facts."""
    registry, repository, tag = address
    engine = split_base(base) if framework == "huggingface" else (framework, version)
    inside: dict[str, Any] = {"cuda": _cuda(engine, tag) if device == "gpu" else ""}
    if not _for_sagemaker(repository, tag):
        inside["doubt"] = f"`{tag}` is an image for EC2: it has no training toolkit, and nothing starts the script"
    else:
        inside |= _libraries(engine, device, repository)
    sdk = _sdk(framework, version, base, repository)
    return Image(framework, version, python, device, registry, repository, tag, base, sdk=sdk, **inside)


def split_base(base: str) -> tuple[str, str]:
    """Split `pytorch2.8.0` into framework and version."""
    match = re.fullmatch(r"([a-z]+)(.*)", base)
    assert match is not None, base
    return match[1], match[2]


def _libraries(engine: tuple[str, str], device: str, repository: str) -> dict[str, Any]:
    """Return the fields of `Image` for the toolkit and SageMaker's libraries. Only GPU images have the libraries."""
    toolkit = next(iter(in_range("toolkit", *engine, "version")), None)
    if repository == SMP2_REPOSITORY:
        known = facts()["smp2"].get(engine[1])
        doubt = None if known else _no_such_smp2_image(engine[1])
        return {"toolkit": toolkit, "smp": 2, "smddp": bool(known and known["smddp"]), "doubt": doubt}
    if device != "gpu":
        return {"toolkit": toolkit}
    smp1 = any(engine[0] == fact["framework"] and engine[1] in fact["versions"] for fact in facts()["smp1"])
    return {"toolkit": toolkit, "smp": int(smp1), "smddp": bool(in_range("smddp", *engine, "source"))}


def _no_such_smp2_image(version: str) -> str:
    known = ", ".join(facts()["smp2"])
    return (
        f"the SDK takes `{version}` for a PyTorch version, but AWS has published images of the model parallelism "
        f"library v2 only for PyTorch {known}"
    )


def _cuda(engine: tuple[str, str], tag: str) -> str:
    """Return the CUDA version, such as `12.9`, from the tag (`cu129`) if it names one, or else from `facts()`."""
    match = re.search(r"(?:^|-)cu(\d+)(\d)(?:-|$)", tag)
    if match:
        return f"{match[1]}.{match[2]}"
    line = ".".join(engine[1].split(".")[:2])
    return str(facts()["cuda"].get(engine[0], {}).get(line, ""))


def _for_sagemaker(repository: str, tag: str) -> bool:
    """Return whether an image is made for SageMaker.

    Full tags contain `sagemaker`. Images with short tags in the older repositories are all made for SageMaker.
    """
    words = tag.split("-")
    return "sagemaker" in words or not ("ec2" in words or repository in ("pytorch", "tensorflow"))


def _sdk(framework: str, version: str, base: str, repository: str) -> int:
    if repository == SMP2_REPOSITORY:
        return 2
    return next(
        (row.sdk for row in rows(framework) if (row.version, row.base, row.repository) == (version, base, repository)),
        0,
    )
