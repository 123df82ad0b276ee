"""Portable rules about data locations: a job's output must not replace its input or another of its outputs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from cloudtrain.core.plan import Level
from cloudtrain.rules.data_places import DataPlace
from cloudtrain.rules.rule import Fault, Subject, rule


@rule("CT505", Level.ERROR)
def places_overwrite(subject: Subject) -> Iterator[Fault]:
    """Two outputs, an output and the checkpoint, or an output and an input have the same location.

    Files with the same name would overwrite each other. Everything in the checkpoint's location is copied into a new
    container before it starts, so a resumed run would treat another output's files as checkpoints. An output at the
    location of an input would overwrite the job's own input data. An output inside another output causes the same
    problems.
    """
    for first, second in combinations(_valid_places(subject), 2):
        both = first.is_written and second.is_written
        if not first.is_written and not second.is_written:
            continue
        if first.parts == second.parts:
            later = second if second.is_written else first
            yield Fault(_same(first, second), _apart(first, second), later.path or first.path or second.path)
        elif both and (first.holds(second) or second.holds(first)):
            outer, inner = (first, second) if first.holds(second) else (second, first)
            message = f"{inner.name} is written to `{inner.address}`, inside of {outer.name}: `{outer.address}`"
            yield Fault(message, _own_folder(outer, inner), outer.path or inner.path)


@rule("CT506", Level.WARNING)
def places_nested(subject: Subject) -> Iterator[Fault]:
    """The job writes into the location of an input, or reads from the location of an output or checkpoint.

    An input includes everything inside its location, so the next run of the same job would also read this run's output.
    Input data inside an output or checkpoint location is copied each time the output or checkpoint is copied.
    """
    for first, second in combinations(_valid_places(subject), 2):
        if first.is_written == second.is_written or first.parts == second.parts:
            continue
        read, written = (second, first) if first.is_written else (first, second)
        if read.holds(written):
            message = f"{written.name} is written to `{written.address}`, inside of {read.name}: `{read.address}`"
            hint = f"write `{_beside(read, written)}`" if written.path else f"read a folder: `{read.folder}/PATH`"
            yield Fault(message, hint, written.path or read.path)
        elif written.holds(read):
            message = f"{read.name} is read from `{read.address}`, inside of {written.name}: `{written.address}`"
            yield Fault(message, _own_folder(written, read), written.path or read.path)


def _valid_places(subject: Subject) -> list[DataPlace]:
    """Return the locations with valid addresses. Other rules report invalid addresses."""
    return [place for place in subject.view.places(subject) if len(place.parts) > 1] if subject.plan.request else []


def _same(first: DataPlace, second: DataPlace) -> str:
    read = next((place for place in (first, second) if not place.is_written), None)
    if read is not None:
        written = second if read is first else first
        return f"{written.name} is written to `{written.address}`, where {read.name} is read from"
    return f"{first.name} and {second.name} are both written to `{second.address}`"


def _apart(first: DataPlace, second: DataPlace) -> str:
    """Return the hint to separate two locations: two folders for two outputs, or a folder for the output next to the
    input.
    """
    if first.is_written and second.is_written:
        return f"write `{first.folder}/{first.word}` and `{first.folder}/{second.word}`"
    read, written = (second, first) if first.is_written else (first, second)
    return f"write `{_beside(read, written)}`"


def _beside(read: DataPlace, written: DataPlace) -> str:
    """Return the location to suggest for the output `written`: next to the input `read`, or if that is a whole bucket,
    a folder inside it.
    """
    return f"{read.folder}/{written.word}" if read.is_root else f"{read.folder}-{written.word}"


def _own_folder(outer: DataPlace, inner: DataPlace) -> str:
    """Return the hint to move the outer location to a folder that does not contain the inner location."""
    word = outer.word if inner.parts[len(outer.parts)] != outer.word else f"{outer.word}-only"
    return f"give {outer.name} a folder of its own: `{outer.folder}/{word}`"
