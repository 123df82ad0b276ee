"""The environment variables that a user sets for a job: in fields, in overrides, or in options of mpirun."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from shlex import split
from typing import NamedTuple

from cloudtrain.rules.overridden import Path
from cloudtrain.rules.subject import Subject
from cloudtrain.runtime.secret_values import VARIABLE as SECRETS


class Variable(NamedTuple):
    """A variable, and the path of the field that sets it."""

    name: str
    value: str
    path: Path

    @property
    def removed(self) -> str:
        """The hint that tells the user how to remove the variable."""
        if self.path[0] == "environment":
            return f"remove `{self.name}` from `environment.variables`"
        return f"remove `-x {self.name}` from `{'.'.join(map(str, self.path))}`"


def variables(subject: Subject) -> Iterator[Variable]:
    """Yield all variables that the user sets. For a variable in the overrides, `path` is the path of the corresponding
    field of the job.
    """
    for name, value in subject.effective.environment.variables.items():
        if name == SECRETS and subject.job.environment.secrets:
            continue  # cloudtrain's own variables
        yield Variable(name, value, ("environment", "variables", name))
    distribution = subject.effective.distribution
    for field in ("options", "mpi_options"):
        for name, value in exported_variables(getattr(distribution, field, "")):
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
