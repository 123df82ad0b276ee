"""`cloudtrain adopt`: turn any training job into a cloudtrain job, and prove that both send the
same request.

Code for a specific service is in the folder of the service's target
(`cloudtrain/targets/NAME/adopt`, reached through part `adopt`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain, count, islice
from pathlib import Path

from cloudtrain.adoption.launched import (
    is_batch_script,
    is_launch_line,
    is_shell_script,
    read_script,
)
from cloudtrain.adoption.launches import TrainingLaunch, cannot_adopt
from cloudtrain.adoption.proof import Adoption, adopt_original
from cloudtrain.adoption.scripts import originals_of_script
from cloudtrain.adoption.sources import (
    STDIN,
    adopt_launch,
    originals_of_document,
    parsed_text,
    text_of,
)
from cloudtrain.documents.document import Unreadable
from cloudtrain.errors import (
    CloudtrainError,
    PersonNeeded,
    UsageError,
    did_you_mean,
    shortened,
)
from cloudtrain.plans.states import RunRef
from cloudtrain.system.plugins import all_parts, part
from cloudtrain.targets.adoption import Original
from cloudtrain.targets.contract import AdopterMaker, OriginalFetcher
from cloudtrain.targets.registry import target_of
from cloudtrain.targets.settings import load_settings

# `ct.adopt`: turns another tool's job into a cloudtrain job, and compares the requests of both.

SCRIPTS = (".py", ".ipynb")

TIME_LIMIT = 300.0
"""Default time limit of a script in seconds. Importing an SDK alone takes up to 15 seconds."""


def adopt(
    source: str | Path,
    arguments: Sequence[str] | None = None,
    *,
    job: str | None = None,
    folder: str | Path = ".",
    execute: bool = False,
    python: str | None = None,
    time_limit: float = TIME_LIMIT,
) -> Adoption:
    """Convert a job of another tool to a cloudtrain job with its settings, and compare the requests
    of both.

    Args:
        source: a file with a request, an event, a description or a job of another tool, or `-` for
            stdin; a script or a notebook that uses an SDK; an existing job on a target
            (`sagemaker://REGION/NAME`); a launch line, or a batch script.
        arguments: the command-line arguments of the script, if the source is one. A shell script's
            are unknown if they are not given; an empty list says that it has none.
        job: the name of the job to adopt, if the source has several: that of its job file.
        folder: the folder of the new job file. Relative paths in the job file start in this folder.
        execute: allow cloudtrain to run the script, whose jobs it captures
            (docs/guides/adopting.md).
        python: an interpreter that has the script's packages; default: this interpreter.
        time_limit: the maximum running time of the script, in seconds.

    Raises:
        UsageError: the source cannot be read, cannot be adopted, or has several jobs and `job`
            names none of them.
    """
    source = str(source)
    with _explained(source):
        launch = launch_of(source, arguments)
        if launch is not None:
            if job is not None:
                raise cannot_adopt(
                    f"`{shortened(source)}` starts one job, so `--job` has nothing to choose from",
                    "remove `--job`; `name` in the job file names the job",
                )
            return adopt_launch(*launch, Path(folder))

        originals = originals_of(
            source, arguments, execute=execute, python=python, time_limit=time_limit
        )
        return adopt_original(select_original(originals, job), Path(folder))


def adopt_all(
    source: str,
    arguments: Sequence[str] | None = None,
    *,
    folder: Path | None,
    execute: bool = False,
    python: str | None = None,
    time_limit: float = TIME_LIMIT,
) -> dict[str, Adoption | UsageError]:
    """Convert all jobs of a source, each for a folder of its own below `folder`, or for the working
    directory if it is None. Return them by the names of these folders; for a job that cannot be
    adopted the error. The other arguments and the errors are those of `adopt`."""
    with _explained(source):
        launch = launch_of(source, arguments)
        if launch is not None:
            adoption = adopt_launch(*launch, folder or Path())
            return {str(adoption.job.name): adoption}
        originals = originals_of(
            source, arguments, execute=execute, python=python, time_limit=time_limit
        )

    return _adopt_each(by_name(originals), folder, source)


def _adopt_each(
    jobs: Mapping[str, Original | UsageError], folder: Path | None, source: str
) -> dict[str, Adoption | UsageError]:
    """Return the adoption of each job, or the error if it cannot be adopted, by the same names."""
    adoptions = dict[str, Adoption | UsageError]()
    for name, job in jobs.items():
        place = folder / name if folder else Path()
        try:
            with _explained(source):
                adoptions[name] = adopt_original(_adoptable(job), place)
        except UsageError as error:
            adoptions[name] = error
    return adoptions


@contextmanager
def _explained(source: str) -> Iterator[None]:
    """Raise UsageError in place of an error that a value of the source causes."""
    try:
        yield
    except CloudtrainError:  # some of them are a ValueError or a LookupError, too
        raise
    except _WRONG_TYPES as error:
        # a service has accepted the job, or gets it from a script: then the mistake is cloudtrain's
        if "://" in source or is_script(source):
            raise
        message = f"`{shortened(source)}` holds a value that is not valid there: {error}"
        raise cannot_adopt(
            message, "correct the value, or adopt a job that the service has accepted"
        ) from error


_WRONG_TYPES = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    Unreadable,
)
"""What a value raises whose type is not that of its field, such as a list in the place of a
name."""


def launch_of(
    source: str, arguments: Sequence[str] | None = None
) -> tuple[TrainingLaunch, str] | None:
    """Return the training that a launch line or a batch script starts, and a description of the
    source. `arguments` are those of a script. Return None for other sources."""
    try:
        return _launch_of(source, arguments)
    except _WRONG_TYPES as error:
        message = f"the launch line in `{source[:80]}` cannot be read: {error}"
        raise cannot_adopt(
            message, 'adopt the launch line alone: `cloudtrain adopt "torchrun ... train.py"`'
        ) from None


def _launch_of(source: str, arguments: Sequence[str] | None) -> tuple[TrainingLaunch, str] | None:
    # a launch line may be too long for a file's name, for which a Path raises
    if not os.path.isfile(source):
        if source == STDIN or os.path.exists(source) or not is_launch_line(source):
            return None
        return read_script(source), "a launch line"

    if source.endswith((*SCRIPTS, ".json")):
        return None
    text, folder = text_of(source)
    is_batch = is_batch_script(text)
    if is_batch or is_shell_script(text) or source.endswith((".sh", ".bash")):
        launch = read_script(text, folder or ".", arguments, is_batch=is_batch)
        kind = "batch" if is_batch else "shell"
        return launch, f"the {kind} script {Path(source).name}"

    if source.endswith((".yaml", ".yml")):
        data = parsed_text(text, source).data
        if isinstance(data, dict) and "distributed_type" in data and "num_processes" in data:
            hint = (
                "adopt the launch line that names this file: "
                f'`cloudtrain adopt "accelerate launch --config_file {source} train.py"`'
            )
            raise cannot_adopt(
                f"`{source}` is a configuration file of accelerate, which names no script", hint
            )
    return None


def is_script(source: str) -> bool:
    # a launch line may be too long for a file's name, for which a Path raises
    return source.endswith(SCRIPTS) and os.path.isfile(source)


def originals_of(
    source: str,
    arguments: Sequence[str] | None,
    *,
    execute: bool,
    python: str | None,
    time_limit: float,
) -> Sequence[Original | UsageError]:
    """Return the jobs in a source; the error for a script's job that cannot be adopted."""
    if is_script(source):
        if not execute:
            raise PersonNeeded(
                f"cloudtrain has to run `{source}` to adopt it",
                hint="allow it with `--yes`, or with `execute=True` in Python",
                code="CT985",
            )
        return originals_of_script(
            Path(source), arguments or (), python=python, time_limit=time_limit
        )

    if "://" in source and not os.path.exists(source):
        return [original_at(source)]
    if source == STDIN or os.path.exists(source):
        return originals_of_document(source)
    raise cannot_adopt(
        f"there is no file `{source}`",
        "name a file; `cloudtrain adopt --help` lists what can be adopted",
    )


def original_at(reference: str) -> Original:
    """Return an existing job of a target. `reference` is `TARGET://PLACE/NAME`, such as
    `sagemaker://us-west-2/NAME`. PLACE may consist of several names, separated by `:` or `/`:
    `azureml://SUBSCRIPTION:GROUP:WORKSPACE/NAME`."""
    head, _, name = reference.rpartition("/")
    scheme, separator, place = head.partition("://")
    place = place.replace("/", ":")
    ref = RunRef.parse(f"{scheme}{separator}{place}/{name}")

    settings = load_settings()
    target = target_of(ref.target)
    fetch = part(target, OriginalFetcher)
    if fetch is None:
        raise UsageError(
            f"cloudtrain cannot fetch jobs from `{target.name}`",
            hint="adopt a file that describes the job: docs/guides/adopting.md lists the formats",
            code="CT975",
        )
    return fetch(ref.place, ref.name, settings.target(ref.target), settings.environ)


def select_original(originals: Sequence[Original | UsageError], name: str | None) -> Original:
    """Return the job named `name`; without a name, the only job that can be adopted. Raises
    `UsageError` if there is none, or if there are several."""
    jobs = by_name(originals)
    if name is not None:
        for number, (own_name, job) in enumerate(jobs.items(), 1):
            # a script may name its jobs by the time
            if name in (own_name, getattr(job, "name", None), str(number)):
                return _adoptable(job)
        raise cannot_adopt(f"the source has no job `{name}`", did_you_mean(name, jobs))

    adoptable = [job for job in originals if isinstance(job, Original)]
    if not adoptable:
        return _adoptable(originals[0])
    if len(adoptable) > 1:
        first_jobs = dict(islice(jobs.items(), _MOST_VERDICTS))
        verdicts = [
            f"`{own_name}` ({_words_of(result)})"
            for own_name, result in _adopt_each(first_jobs, None, "").items()
        ]
        if len(jobs) > _MOST_VERDICTS:
            verdicts.append("...")
        parts = [", ".join(verdicts), *adoptable[0].gaps]
        hint = f"choose one with `--job {next(iter(jobs))}`, or write all with `--all --write DIR`"
        raise cannot_adopt(f"the source has {len(jobs)} jobs: {'; '.join(parts)}", hint)

    refused = [job.message for job in originals if isinstance(job, UsageError)]
    others = "".join(f"; not adopted: {message}" for message in refused)
    return replace(adoptable[0], kind=adoptable[0].kind + others)


_MOST_VERDICTS = 20
"""The most jobs of a source that a message lists."""


def _adoptable(job: Original | UsageError) -> Original:
    if isinstance(job, UsageError):
        raise job
    return job


def _words_of(result: Adoption | UsageError) -> str:
    """Return how a job's request compares, in words: `equal`."""
    if isinstance(result, UsageError):
        return f"not adopted: {result.message}"
    if result.equal:
        return "equal"
    return f"not equal: {', '.join(item.path for item in result.differences[:3])}"


def by_name(originals: Sequence[Original | UsageError]) -> dict[str, Original | UsageError]:
    """Return the jobs by the names that their job files have, of which each is a folder's too. Jobs
    of one name get numbers."""
    jobs = dict[str, Original | UsageError]()
    for original in originals:
        name = _name_of(original)
        others = (f"{name}-{number}" for number in count(2))
        free = next(each for each in chain([name], others) if each not in jobs)
        jobs[free] = original
    return jobs


def _name_of(original: Original | UsageError) -> str:
    """Return the name that the job file of a job has; `other` for a job that cannot be adopted."""
    if isinstance(original, UsageError):
        return "other"
    if original.search is not None:
        return str(original.search.fields["name"])
    adopter = all_parts(AdopterMaker)[original.target]()
    with suppress(*_WRONG_TYPES):
        return str(next(adopter.drafts(original)).job["name"])
    return "job"
