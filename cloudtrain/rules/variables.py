"""The environment variables that a user gives a job, in whatever way: fields, overrides, options of mpirun."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from shlex import split
from typing import NamedTuple

from cloudtrain.rules.overridden import Path
from cloudtrain.rules.subject import Subject
from cloudtrain.runtime.secret_values import VARIABLE as SECRETS


class Variable(NamedTuple):
    """One variable, and the field of the job that it stands in."""

    name: str
    value: str
    path: Path

    @property
    def removed(self) -> str:
        """What to do so that it is gone."""
        if self.path[0] == "environment":
            return f"remove `{self.name}` from `environment.variables`"
        return f"remove `-x {self.name}` from `{'.'.join(map(str, self.path))}`"


def variables(subject: Subject) -> Iterator[Variable]:
    """All of them. What overrides write has the place of the field that would say the same."""
    for name, value in subject.effective.environment.variables.items():
        if name == SECRETS and subject.job.environment.secrets:
            continue  # cloudtrain's own
        yield Variable(name, value, ("environment", "variables", name))
    distribution = subject.effective.distribution
    for field in ("options", "mpi_options"):
        for name, value in exported_variables(getattr(distribution, field, "")):
            yield Variable(name, value, ("distribution", field))


def exported_variables(options: str) -> Iterator[tuple[str, str]]:
    """What `-x NAME=VALUE` among options for mpirun sets."""
    try:
        words = split(options)
    except ValueError:
        return  # compile says so
    for flag, text in pairwise(words):
        name, equals, value = text.partition("=")
        if flag == "-x" and equals:
            yield name, value
