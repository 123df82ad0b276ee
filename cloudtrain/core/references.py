"""References inside a job: `${{inputs.train}}`, `${{outputs.model}}` and `${{checkpoint}}` to its own data, and
`run:prep/output/volumes` to the output of an earlier run. This module finds and checks references; compilers replace
them with real paths.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel

from cloudtrain.core.targets import target_names
from cloudtrain.errors import Problem, did_you_mean

_SPACE = re.compile(r"\s*")

_PLACES = ("entry_point", "command", "hyperparameters", "environment")
"""The fields of a job that may contain references in their texts."""


IMPLICIT = ("outputs.model", "checkpoint")
"""References that are valid in a training job without a declaration."""


def reference_problems(job: Mapping[str, Any], implicit: Sequence[str] = IMPLICIT) -> list[Problem]:
    """Return a problem for each wrong reference of a job, such as a reference to an item that does not exist.

    `job` holds the fields as written and not yet validated: mappings, lists and texts, or models if the job is written
    in Python. `implicit` are references that are valid without a declaration.
    """
    problems = []
    for field in _PLACES:
        for path, text in _texts(job.get(field), (field,)):
            for found in find_references(text):
                fault = _fault(found.inner, job, implicit)
                if fault is not None:
                    problems.append(
                        Problem(path, f"`{found.text}` refers to nothing: {fault[0]}", fault[1], code="CT020")
                    )
    return [*problems, *_value_problems(job.get("inputs")), *_run_problems(job.get("inputs"))]


RUN_SCHEME = "run:"

_RUN = (
    r"run:(?P<run>[A-Za-z0-9][A-Za-z0-9-]*)"
    r"/(?:outputs?/(?P<output>[A-Za-z_]\w*)|(?P<own>model|checkpoint))(?P<below>/.+)?"
)
_RUN_HINT = "write `run:NAME/output/OUTPUT` or `run:NAME/model`; NAME is a job, a run, or `last`"


class RunInput(NamedTuple):
    """The output of an earlier run: `run:prep/output/volumes/train` is the path `train` in the output `volumes` of the
    run `prep`.
    """

    run: str
    """A run name, the beginning of one, a job name, or `last`."""
    what: str
    """`outputs/volumes`, `model` or `checkpoint`, as in `cloudtrain download`."""
    below: str = ""
    """The path below the output, such as `/train`; empty for the whole output."""


def is_run_input(place: str | None) -> bool:
    """Return whether the location of an input names an earlier run."""
    return place is not None and place.startswith(RUN_SCHEME)


def is_local_path(place: str | None) -> bool:
    """Return whether a location is written as a path on this machine: `./data`, `../data`, `~/data`, `/mnt/data`."""
    return place is not None and (place.startswith(("./", "../", "~/", "/")) or place in (".", ".."))


def run_input(place: str) -> RunInput | None:
    """Parse `run:NAME/output/OUTPUT` and similar locations; return None for text of another form."""
    match = re.fullmatch(_RUN, place)
    if match is None or ".." in (match["below"] or "").split("/"):
        return None
    what = match["own"] or f"outputs/{match['output']}"
    return RunInput(match["run"], what, match["below"] or "")


def _value_problems(inputs: Any) -> Iterator[Problem]:
    """Yield a problem for each reference in an input's `value`, because Azure ML would not replace the reference."""
    for path, text in _texts(inputs, ("inputs",)):
        for found in find_references(text) if path[2:] == ("value",) else ():
            message = f"`{found.text}` is in a plain value, where references are not replaced"
            yield Problem(path, message, f"write it where `${{{{inputs.{path[1]}}}}}` is used", code="CT020")


def _run_problems(inputs: Any) -> Iterator[Problem]:
    """Yield a problem for each location that starts with `run:` but is malformed."""
    for path, text in _texts(inputs, ("inputs",)):
        if is_run_input(text) and path[-1] in target_names() and run_input(text) is None:
            yield Problem(path, f"`{text}` does not name an output of a run", _RUN_HINT, code="CT021")


class Reference(NamedTuple):
    """A reference in a text: its start, its end, its text, and the stripped text between its braces."""

    start: int
    end: int
    text: str
    inner: str


def find_references(text: str) -> Iterator[Reference]:
    """Yield a `Reference` for each text between `${{` and the next `}}` on the same line.

    The time is proportional to the length of the text. A regular expression took 8 seconds for 3,000 spaces.
    """
    close = stop = line_end = -1  # the next `}}`, the end of the text before it, and the next end of a line
    start = text.find("${{")
    while start >= 0:
        if close < start + 3:
            close = text.find("}}", start + 3)
            if close < 0:
                return
            stop = start + 3 + len(text[start + 3 : close].rstrip())
        space = _SPACE.match(text, start + 3)
        assert space is not None
        inner = space.end()
        if line_end < inner:
            line_end = text.find("\n", inner)
            line_end = len(text) if line_end < 0 else line_end
        if line_end < stop:
            start = text.find("${{", start + 1)
            continue
        yield Reference(start, close + 2, text[start : close + 2], text[inner:stop])
        start = text.find("${{", close + 2)


def replace_references(text: str, path_of: Callable[[str], str]) -> str:
    """Return `text` with each reference replaced: `${{inputs.train}}` by the result of `path_of("inputs.train")`."""
    parts, end = list[str](), 0
    for found in find_references(text):
        parts += [text[end : found.start], path_of(found.inner)]
        end = found.end
    return "".join([*parts, text[end:]])


def references_in(text: str) -> list[str]:
    """Return the inner texts of all references in a text: `["inputs.train", "checkpoint"]`."""
    return [found.inner for found in find_references(text)]


def _texts(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping | BaseModel):
        for key, inner in value.items() if isinstance(value, Mapping) else iter(value):
            yield from _texts(inner, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _texts(inner, (*path, index))


def _fault(inner: str, job: Mapping[str, Any], implicit: Sequence[str]) -> tuple[str, str | None] | None:
    """Return the error of one reference and a hint; None if the reference is valid."""
    names = {kind: _names(job, kind) for kind in ("inputs", "outputs")}
    known = sorted({*implicit, *(f"{kind}.{name}" for kind in names for name in names[kind])})
    if inner in known:
        return None
    kind, dot, name = inner.partition(".")
    if kind in names and dot:
        options = [word.partition(".")[2] for word in known if word.startswith(f"{kind}.")]
        return f"the job has no {kind[:-1]} `{name}`", did_you_mean(name, options) or f"add `{name}` under `{kind}`"
    words = (
        "`inputs.NAME`, `outputs.NAME` or `checkpoint`"
        if "checkpoint" in implicit
        else "`inputs.NAME` or `outputs.NAME`"
    )
    return f"a reference is {words}", did_you_mean(inner, known)


def _names(job: Mapping[str, Any], kind: str) -> list[str]:
    declared = job.get(kind)
    return [str(name) for name in declared] if isinstance(declared, Mapping) else []
