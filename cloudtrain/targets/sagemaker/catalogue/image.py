"""One training image of AWS, and what follows from its address: CUDA, training toolkit, SageMaker's libraries."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from cloudtrain.targets.sagemaker.catalogue.image_data import facts, in_range, numbers, rows

SMP2_REPOSITORY = "smdistributed-modelparallel"

FIRST_WITHOUT_SHELL = "5.1.3"
"""The first sagemaker-training that hands arguments to the script without a shell in between."""


class Image(NamedTuple):
    """One training image of AWS."""

    framework: str
    """`pytorch`, `tensorflow` or `huggingface`."""
    version: str
    """Of the framework, whole: `2.8.0`; for `huggingface` that of transformers."""
    python: str
    """`py312`; empty where the address does not tell."""
    device: str
    """`gpu`, `cpu` or `neuron`."""
    registry: str
    """`763104351884.dkr.ecr.us-west-2.amazonaws.com`."""
    repository: str
    tag: str
    base: str = ""
    """Hugging Face: the framework below, `pytorch2.8.0`."""
    cuda: str = ""
    """`12.9`; empty where the image has none or it is not known."""
    toolkit: str | None = None
    """The newest sagemaker-training that the image can hold; older images hold older ones. None: not known, or none."""
    smddp: bool = False
    """SageMaker's data parallel library is inside."""
    smp: int = 0
    """Which of SageMaker's model parallelism libraries is inside: 1, 2, or 0 for none."""
    sdk: int = 0
    """The oldest SageMaker SDK that knows this version: 2, 3, or 0 for neither."""
    doubt: str | None = None
    """Why the image may not exist or not work, although it has an address."""

    @property
    def uri(self) -> str:
        """What goes into the request."""
        return f"{self.registry}/{self.repository}:{self.tag}"

    @property
    def engine(self) -> tuple[str, str]:
        """The framework that trains, and its version: for Hugging Face those of its base."""
        return split_base(self.base) if self.framework == "huggingface" else (self.framework, self.version)

    @property
    def python_version(self) -> tuple[int, ...]:
        """`py312` as (3, 12); of `py3`, in the oldest tags, (3,); empty where the address does not tell."""
        match = re.fullmatch(r"py(\d)(\d*)", self.python)
        return tuple(int(part) for part in match.groups() if part) if match else ()

    @property
    def through_shell(self) -> bool:
        """The toolkit lets a shell read the arguments again, so that blanks, quotes and `*` in them change."""
        return self.toolkit is not None and numbers(self.toolkit) < numbers(FIRST_WITHOUT_SHELL)


def describe_image(
    framework: str, version: str, python: str, device: str, address: tuple[str, str, str], base: str = ""
) -> Image:
    """An image with all that its address (registry, repository and tag) and the facts tell of it."""
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
    """`pytorch2.8.0` as framework and version."""
    match = re.fullmatch(r"([a-z]+)(.*)", base)
    assert match is not None, base
    return match[1], match[2]


def _libraries(engine: tuple[str, str], device: str, repository: str) -> dict[str, Any]:
    """Toolkit and SageMaker's libraries. The libraries are for GPUs."""
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
    """`12.9`, from the tag (`cu129`) where that names it."""
    match = re.search(r"(?:^|-)cu(\d+)(\d)(?:-|$)", tag)
    if match:
        return f"{match[1]}.{match[2]}"
    line = ".".join(engine[1].split(".")[:2])
    return str(facts()["cuda"].get(engine[0], {}).get(line, ""))


def _for_sagemaker(repository: str, tag: str) -> bool:
    """Full tags say for what an image is made; the short ones of the older repositories are SageMaker's."""
    words = tag.split("-")
    return "sagemaker" in words or not ("ec2" in words or repository in ("pytorch", "tensorflow"))


def _sdk(framework: str, version: str, base: str, repository: str) -> int:
    if repository == SMP2_REPOSITORY:
        return 2
    return next(
        (row.sdk for row in rows(framework) if (row.version, row.base, row.repository) == (version, base, repository)),
        0,
    )
