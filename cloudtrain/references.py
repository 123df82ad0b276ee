"""`${{inputs.train}}`, `${{outputs.model}}` and `${{checkpoint}}`: found, checked, and replaced by real paths."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from cloudtrain.errors import Problem, did_you_mean

_REFERENCE = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")

_PLACES = ("entry_point", "command", "hyperparameters", "environment")
"""The fields of a job whose texts may hold references."""


def reference_problems(job: Mapping[str, Any]) -> list[Problem]:
    """Every reference in a raw job that names nothing. Works on jobs that are wrong in other ways too.

    `job` holds what a person wrote: mappings, lists and texts, or models where the job is written in Python.
    """
    problems = []
    for field in _PLACES:
        for path, text in _texts(job.get(field), (field,)):
            for match in _REFERENCE.finditer(text):
                fault = _fault(match[1], job)
                if fault is not None:
                    problems.append(Problem(path, f"`{match[0]}` refers to nothing: {fault[0]}", fault[1]))
    return problems


def replace_references(text: str, path_of: Callable[[str], str]) -> str:
    """`text` with each reference replaced by `path_of("inputs.train")`."""
    return _REFERENCE.sub(lambda match: path_of(match[1]), text)


def references_in(text: str) -> list[str]:
    """The inner texts of all references: `["inputs.train", "checkpoint"]`."""
    return [match[1] for match in _REFERENCE.finditer(text)]


def _texts(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping | BaseModel):
        for key, inner in value.items() if isinstance(value, Mapping) else iter(value):
            yield from _texts(inner, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _texts(inner, (*path, index))


def _fault(inner: str, job: Mapping[str, Any]) -> tuple[str, str | None] | None:
    """What is wrong with one reference, and a hint; None when it is right."""
    if inner == "checkpoint":
        return None
    kind, dot, name = inner.partition(".")
    if kind not in ("inputs", "outputs") or not dot:
        known = ["checkpoint", *(f"{k}.{n}" for k in ("inputs", "outputs") for n in _names(job, k))]
        return "a reference is `inputs.NAME`, `outputs.NAME` or `checkpoint`", did_you_mean(inner, known)
    if name in _names(job, kind):
        return None
    hint = did_you_mean(name, _names(job, kind)) or f"add `{name}` under `{kind}`"
    return f"the job has no {kind[:-1]} `{name}`", hint


def _names(job: Mapping[str, Any], kind: str) -> list[str]:
    declared = job.get(kind)
    names = [str(name) for name in declared] if isinstance(declared, Mapping) else []
    return sorted({*names, "model"}) if kind == "outputs" else names
