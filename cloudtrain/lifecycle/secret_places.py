"""How a job's secrets reach a target: cloudtrain sends their locations in one variable, and never sends the values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cloudtrain.core.per_target import value_for
from cloudtrain.errors import JobError, Problem
from cloudtrain.runtime.errors import SetupError
from cloudtrain.runtime.secret_values import VARIABLE, resolved
from cloudtrain.targets.registry import target_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cloudtrain.core.processing import AnyJob
    from cloudtrain.targets.base import Target


def with_secret_places(
    job: AnyJob, where: Target, emulated: str | None, environ: Mapping[str, str]
) -> tuple[AnyJob, tuple[str, ...]]:
    """Return the job with the variable that contains the locations of the secrets, and notes about secrets that this
    machine needs but lacks.

    A local run that emulates another target uses a secret's location for `local`, or if there is none, the secret's
    location for the emulated target.

    Raises:
        JobError: a secret has no location that the target can read.
    """
    places, problems = dict[str, str](), list[Problem]()
    candidates = (where, *([] if emulated is None else [target_of(emulated)]))
    for name, secret in job.environment.secrets.items():
        given = [(target, value_for(secret, target.name)) for target in candidates]
        found = [place for target, place in given if place and place.partition(":")[0] in target.secret_places]
        if found:
            places[name] = found[0]
            continue
        wrong = next((place for _, place in given if place), None)
        what = f"cannot be read on {where.title} from `{wrong}`" if wrong else f"has no location on {where.title}"
        hint = f"remove it: jobs on {where.title} get no secrets from cloudtrain"
        if where.secret_places:
            example = next(iter(where.secret_places.values())).replace("NAME", name)
            hint = f'write `environment.secrets.{name}: {{{where.name}: "{example}"}}`'
        path = ("environment", "secrets", name)
        problems.append(Problem(path, f"the secret `{name}` {what}", hint, code="CT072"))
    if problems:
        raise JobError(problems)
    variables = {**job.environment.variables, VARIABLE: json.dumps(places, sort_keys=True)}
    job = job.model_copy(update={"environment": job.environment.model_copy(update={"variables": variables})})
    return job, tuple(_missing(places, {**environ, **variables})) if where.has_secrets_here else ()


def _missing(places: Mapping[str, str], variables: Mapping[str, str]) -> Iterator[str]:
    for name, place in places.items():
        if place.startswith(("env:", "file:")):
            try:
                resolved({**variables, VARIABLE: json.dumps({name: place})})
            except SetupError as error:
                yield f"{error.message}: {error.hint}" if error.hint else error.message
