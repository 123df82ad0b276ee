"""What a machine has before the packages of a job are installed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cloudtrain.system.plugins import ability

if TYPE_CHECKING:
    from cloudtrain.job.training import TrainingJob


class Contents(NamedTuple):
    """What a machine has before the job's packages are installed."""

    python: str | None = None
    """The version of Python, such as `3.12`; None if unknown."""
    torch: str | None = None
    """The version of PyTorch; None if there is none, or if it is unknown."""
    frameworks: Mapping[str, str] = MappingProxyType({})
    """The versions of other frameworks, such as `tensorflow`, for which the image is made."""
    packages: Mapping[str, str] | None = None
    """All packages, by normalized name, with their versions; None if unknown."""
    markers: Mapping[str, str] = MappingProxyType({})
    """The values of environment markers that differ from those of Linux on x86-64."""
    is_image: bool = True
    """Whether it is a container's image, whose PyTorch stays, because it belongs to the machine's
    drivers."""


@ability("contents")
class ContentsReader(Protocol):
    """The part of a target that knows what its machines have."""

    def __call__(self, job: TrainingJob, settings: Any, account: Any, /) -> Contents:
        """Return the contents of the machines of the job."""
        ...
