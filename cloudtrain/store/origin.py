"""The origin of a submission, and the labels by which its run can be found."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from cloudtrain.errors import UsageError
from cloudtrain.system.clock import boot_id


class Label(NamedTuple):
    """A label of a run. `kind` is `tag` or `hyperparameter`."""

    kind: str
    key: str
    value: str


class Condition(NamedTuple):
    """A comparison with a label: `learning_rate<0.01`. Two numbers are compared as numbers, other values as text."""

    kind: str
    key: str
    operator: str
    value: str

    @property
    def sql(self) -> str:
        """The SQL condition on a row of the table `labels`, with a placeholder for each of `values`."""
        left = "value" if self._number is None else "number(value)"
        return f"kind = ? AND key = ? AND {left} {self.operator} ?"

    @property
    def values(self) -> tuple[object, ...]:
        """The values for the placeholders in `sql`."""
        return (self.kind, self.key, self.value if self._number is None else self._number)

    @property
    def _number(self) -> float | None:
        return None if self.kind == "tag" else number(self.value)


_CONDITION = r"\s*(?P<key>[^\s<>=!]+)\s*(?P<operator><=|>=|!=|==|=|<|>)\s*(?P<value>.*?)\s*"


def condition_of(text: str) -> Condition:
    """Parse a comparison with a hyperparameter.

    Raises:
        UsageError: the text is not a comparison.
    """
    found = re.fullmatch(_CONDITION, text)
    if found is None:
        hint = "write a hyperparameter, one of = != < <= > >=, and a value: `learning_rate<0.01`"
        raise UsageError(f"`{text}` is not a condition", hint=hint, code="CT901")
    return Condition("hyperparameter", found["key"], found["operator"], found["value"])


def number(text: object) -> float | None:
    """Return a text as a number, or None if it is not a finite number."""
    try:
        found = float(str(text))
    except ValueError:
        return None
    return found if isfinite(found) else None


class Origin(NamedTuple):
    """The origin of a job's submission.

    Attributes:
        folder: the working directory.
        project: the folder of the job's file; empty for a job that was written in Python.
        terminal: identifies the login session, such as a terminal or a notebook's kernel; empty without a session.
        labels: the job's tags and hyperparameters.
    """

    folder: str = ""
    project: str = ""
    terminal: str = ""
    labels: tuple[Label, ...] = ()


NOWHERE = Origin()
"""The origin of a run if it is unknown."""


def origin_here(folder: Path, *, project: Path | None = None, labels: Iterable[Label] = ()) -> Origin:
    """Return the origin of a job that this process submits from `folder`."""
    return Origin(
        os.path.realpath(folder), "" if project is None else os.path.realpath(project), terminal(), tuple(labels)
    )


def labels_of(tags: Mapping[str, str], hyperparameters: Mapping[str, object]) -> tuple[Label, ...]:
    """Return the tags and hyperparameters as labels. `ps --tag` and `ps --where` select runs by these labels."""
    return (
        *(Label("tag", key, value) for key, value in tags.items()),
        *(Label("hyperparameter", key, _text(value)) for key, value in hyperparameters.items()),
    )


def terminal() -> str:
    """Return a name for this process's session that is unique since the machine's last boot; empty without a session.

    On Linux the name includes the start time of the session's first process; elsewhere it is only the session's number.
    """
    try:
        session = os.getsid(0)
    except OSError:
        return ""
    try:
        started = Path(f"/proc/{session}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        started = ""
    return f"{boot_id()}:{session}:{started}"


def _text(value: object) -> str:
    """Return a hyperparameter as text: text unchanged, other values as JSON."""
    if isinstance(value, str):
        return value
    import json

    return json.dumps(value)
