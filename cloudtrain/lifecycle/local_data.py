"""Inputs that are data of this machine: `azureml: ./data` becomes the place that a submit uploads it to.

The place holds the hash of the content, so a plan is whole before anything is sent, and the same data is sent once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.bundle.data import UnreadableData, read_data
from cloudtrain.core.data import Input
from cloudtrain.core.plan import Upload
from cloudtrain.core.references import is_local_path
from cloudtrain.core.targets import DEFAULT_TARGET
from cloudtrain.core.units import format_size
from cloudtrain.errors import JobError, Problem

if TYPE_CHECKING:
    from cloudtrain.core.processing import AnyJob
    from cloudtrain.targets.base import Target

_WORTH_MONEY = 1 << 30
_MONTHLY = 0.023
"""US dollars that a GiB of the clouds' ordinary storage costs in a month, in round numbers."""


class Placed(NamedTuple):
    """A job with places instead of paths, what has to be uploaded, and what the reader of its plan should know."""

    job: AnyJob
    uploads: tuple[Upload, ...] = ()
    notes: tuple[str, ...] = ()


def is_uploaded(item: Input, target: Target) -> bool:
    """Whether an input is data of this machine that the target uploads."""
    return target.uploads_data and is_local_path(item.of(target.name))


def place_data(job: AnyJob, target: Target, place_of: Callable[[str, str, bool], tuple[str, str]]) -> Placed:
    """The job with the places of its data.

    Args:
        place_of: from hash, name and whether it is a file to the folder that it is uploaded to, and what is read.

    Raises:
        JobError: some data cannot be read.
    """
    inputs, uploads, problems = dict(job.inputs), dict[str, Upload](), list[Problem]()
    for name, item in job.inputs.items():
        if not is_uploaded(item, target):
            continue
        source = str(item.of(target.name))
        path = ("inputs", name, target.name)
        try:
            data = read_data(source)
        except UnreadableData as error:
            problems.append(Problem(path, error.message, error.hint, code=error.code))
            continue
        is_file = os.path.isfile(source)  # noqa: PTH113
        if item.type == ("uri_folder" if is_file else "uri_file"):
            message = f"`{source}` is a {'file' if is_file else 'folder'}, and the input's type is `{item.type}`"
            wanted = "uri_file" if is_file else "uri_folder"
            problems.append(Problem(path, message, f"write `type: {wanted}` under `inputs.{name}`", code="CT986"))
            continue
        folder, read = place_of(data.sha256, os.path.basename(source), is_file)  # noqa: PTH119
        inputs[name] = item.model_copy(update={target.name: read})
        uploads[folder] = Upload("data", data.sha256, folder, data.size, len(data.files), source=source)
    if problems:
        raise JobError(problems)
    placed = tuple(uploads.values())
    return Placed(job.model_copy(update={"inputs": inputs}) if placed else job, placed, tuple(_notes(placed)))


def emulated_here(job: AnyJob, emulated: Target) -> AnyJob:
    """The job of a run that stands for one of another target: what would be uploaded is read where it is."""
    changes: dict[str, Any] = {
        name: item.model_copy(
            update={emulated.name: None, DEFAULT_TARGET: item.of(DEFAULT_TARGET) or item.of(emulated.name)}
        )
        for name, item in job.inputs.items()
        if is_uploaded(item, emulated)
    }
    return job.model_copy(update={"inputs": {**job.inputs, **changes}}) if changes else job


def _notes(uploads: tuple[Upload, ...]) -> Iterator[str]:
    for upload in uploads:
        month = upload.size / 2**30 * _MONTHLY
        cost = f", and costs about ${month:,.2f} a month there" if upload.size >= _WORTH_MONEY else ""
        size = format_size(upload.size)
        yield f"`{upload.source}`, {size} of data, is uploaded once, when the job is submitted{cost}"
