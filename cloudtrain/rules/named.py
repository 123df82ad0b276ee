"""What a user names: images, with the framework and device that their names indicate, and
environment variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from shlex import split
from typing import Literal, NamedTuple, TypeVar

from cloudtrain.rules.engine import Subject, ValuePath
from cloudtrain.runtime.secret_values import VARIABLE as SECRETS

Framework = Literal["pytorch", "tensorflow"]
Device = Literal["gpu", "cpu", "neuron"]

TITLES = {"pytorch": "PyTorch", "tensorflow": "TensorFlow", "huggingface": "Hugging Face"}

_FRAMEWORKS: dict[Framework, str] = {
    "pytorch": r"pytorch|torch|acpt",
    "tensorflow": r"tensorflow|tf[12]?",
}
_DEVICES: dict[Device, str] = {
    "neuron": r"neuronx?",
    "gpu": r"gpu|cuda\d*|cu1\d{1,2}|rocm\d*|nvidia",
    "cpu": "cpu",
}


def framework_of(name: str) -> Framework | None:
    """Return the framework, PyTorch or TensorFlow, that an image name mentions; None if it mentions
    neither or both."""
    return _only(name, _FRAMEWORKS)


def device_of(name: str) -> Device | None:
    """Return the device (GPU, CPU or Neuron) that an image name mentions; None if it mentions none,
    or several."""
    return _only(name, _DEVICES)


Kind = TypeVar("Kind", bound=str)


def _only(name: str, patterns: Mapping[Kind, str]) -> Kind | None:
    """Return the only kind that a word of an image's repository or tag means; None if there is
    none, or several. The registry is ignored, because users choose its name."""
    first, slash, rest = name.partition("/")
    is_host = "." in first or ":" in first or first == "localhost"
    if slash and is_host:
        name = rest

    words = re.split(r"[^a-z0-9]+", name.casefold())
    kinds = []
    for kind, pattern in patterns.items():
        if any(re.fullmatch(pattern, word) for word in words):
            kinds.append(kind)
    return kinds[0] if len(kinds) == 1 else None


_OF_DISTRIBUTIONS = {"torch": "pytorch", "deepspeed": "pytorch", "tensorflow": "tensorflow"}


def missing_framework(subject: Subject, made_for: str | None) -> str | None:
    """Return the framework, PyTorch or TensorFlow, that the job needs for its distribution or in
    `environment.framework`, and that is missing in an image made for the framework `made_for`.
    None if no framework is missing, if `made_for` is None, or if the job installs requirements,
    which may contain it."""
    if made_for is None or subject.job.environment.requirements:
        return None
    of_distribution = _OF_DISTRIBUTIONS.get(subject.reading.distribution.type)
    for framework in (of_distribution, subject.job.environment.framework):
        if framework in _FRAMEWORKS and framework != made_for:
            return framework
    return None


# The environment variables that a user sets for a job: in fields, in overrides, or in options of
# mpirun.


class Variable(NamedTuple):
    """A variable, and the path of the field that sets it."""

    name: str
    value: str
    path: ValuePath

    @property
    def removed(self) -> str:
        """The hint that tells the user how to remove the variable."""
        if self.path[0] == "environment":
            return f"remove `{self.name}` from `environment.variables`"
        field = ".".join(map(str, self.path))
        return f"remove `-x {self.name}` from `{field}`"


def variables(subject: Subject) -> Iterator[Variable]:
    """Yield all variables that the user sets. For a variable in the overrides, `path` is the path
    of the corresponding field of the job."""
    for name, value in subject.reading.variables.items():
        if name == SECRETS and subject.job.environment.secrets:
            continue  # set by cloudtrain, for `environment.secrets`
        yield Variable(name, value, ("environment", "variables", name))

    for field in ("options", "mpi_options"):
        for name, value in exported_variables(getattr(subject.reading.distribution, field, "")):
            yield Variable(name, value, ("distribution", field))


def exported_variables(options: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of each `-x NAME=VALUE` in the options for mpirun."""
    try:
        words = split(options)
    except ValueError:
        return  # compile reports this
    for flag, text in pairwise(words):
        name, equals, value = text.partition("=")
        if flag == "-x" and equals:
            yield name, value
