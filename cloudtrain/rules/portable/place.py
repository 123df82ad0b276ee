"""Portable rules about places: what a job writes must not replace what it reads, nor what it writes elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from cloudtrain.core.plan import Level
from cloudtrain.rules.data_places import DataPlace
from cloudtrain.rules.rule import Fault, Subject, rule


@rule("CT505", Level.ERROR)
def places_overwrite(subject: Subject) -> Iterator[Fault]:
    """Two outputs, an output and the checkpoint, or an output and an input are at one place.

    Files of the same name replace each other. Everything below the checkpoint's place is copied into a new container
    before it starts, so that a resumed run takes another output's files for its checkpoints; and an output at the
    place of an input replaces the data that it was made of. For two outputs, one inside of the other is as bad.
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
    """The job writes inside of the place that it reads from, or reads inside of a place that it writes to.

    An input is everything below its place: the next run of the same job reads what this one has written along with its
    data. And data inside of an output, or of the checkpoints, is copied with them each time.
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
    """Those that lead somewhere: what is no address has rules of its own."""
    return [place for place in subject.view.places(subject) if len(place.parts) > 1] if subject.plan.request else []


def _same(first: DataPlace, second: DataPlace) -> str:
    read = next((place for place in (first, second) if not place.is_written), None)
    if read is not None:
        written = second if read is first else first
        return f"{written.name} is written to `{written.address}`, where {read.name} is read from"
    return f"{first.name} and {second.name} are both written to `{second.address}`"


def _apart(first: DataPlace, second: DataPlace) -> str:
    """Two folders for two outputs; what is written gets one beside what is read."""
    if first.is_written and second.is_written:
        return f"write `{first.folder}/{first.word}` and `{first.folder}/{second.word}`"
    read, written = (second, first) if first.is_written else (first, second)
    return f"write `{_beside(read, written)}`"


def _beside(read: DataPlace, written: DataPlace) -> str:
    """A place that is not inside of what is read; of a whole bucket everything is inside."""
    return f"{read.folder}/{written.word}" if read.is_root else f"{read.folder}-{written.word}"


def _own_folder(outer: DataPlace, inner: DataPlace) -> str:
    """A folder for the outer place, which the inner one is not in."""
    word = outer.word if inner.parts[len(outer.parts)] != outer.word else f"{outer.word}-only"
    return f"give {outer.name} a folder of its own: `{outer.folder}/{word}`"
