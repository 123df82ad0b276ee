"""Inputs on this machine: `azureml: ./data` becomes the location that a submit uploads the data to.

The location contains the hash of the content, so a plan is complete before anything is sent, and the same data is sent
only once.
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
"""Approximate price in US dollars for storing one GiB in the clouds' standard storage for a month."""


class Placed(NamedTuple):
    """A job whose local paths are replaced with locations, the uploads that it needs, and notes for the plan."""

    job: AnyJob
    uploads: tuple[Upload, ...] = ()
    notes: tuple[str, ...] = ()


def is_uploaded(item: Input, target: Target) -> bool:
    """Return whether an input is data on this machine that a submit uploads for the target."""
    return target.uploads_data and is_local_path(item.of(target.name))


def place_data(job: AnyJob, target: Target, place_of: Callable[[str, str, bool], tuple[str, str]]) -> Placed:
    """Return the job with local data replaced by the locations of the uploads.

    Args:
        place_of: a function of the hash of the data, the name of its file or folder, and whether it is a single file.
            It returns the location of the folder to upload to, and the location that the job reads.

    Raises:
        JobError: an input's data cannot be read.
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
    """Return `job` for a local run that emulates another target. Inputs that a submit to the emulated target would
    upload are not uploaded: the run reads them from their paths on this machine.
    """
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
