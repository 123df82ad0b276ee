"""Convert options of mpirun to environment variables that Open MPI reads, because Azure ML builds the mpirun line
itself.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from cloudtrain.core.distribution import MPI, Horovod
from cloudtrain.core.job import TrainingJob
from cloudtrain.errors import JobError, Problem

_MCA = ("-mca", "--mca")


def option_variables(job: TrainingJob) -> dict[str, str]:
    """Return the variables that replace the job's mpirun options: `NAME` for `-x NAME=VALUE`, and `OMPI_MCA_NAME` for
    `--mca NAME VALUE`.

    Raises:
        JobError: no variable can replace an option.
    """
    distribution = job.distribution
    if not isinstance(distribution, MPI | Horovod):
        return {}
    try:
        return dict(_pairs(shlex.split(distribution.options)))
    except ValueError as error:
        message = f"Azure ML builds the mpirun line itself, and {error}"
        hint = "`-x NAME=VALUE` and `--mca NAME VALUE` work here, because Open MPI reads them from variables too"
        raise JobError([Problem(("distribution", "options"), message, hint, code="CT037")]) from None


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    rest = iter(words)
    for word in rest:
        if word == "-x":
            name, equals, value = next(rest, "").partition("=")
            if not name:
                raise ValueError("`-x` needs the name of a variable")
            if equals:  # without a value it forwards a variable, but every process has all of them
                yield name, value
        elif word in _MCA:
            setting, given = next(rest, None), next(rest, None)
            if setting is None or given is None:
                raise ValueError(f"`{word}` needs a name and a value")
            yield f"OMPI_MCA_{setting}", given
        else:
            raise ValueError(f"`{word}` cannot be set by an environment variable")
