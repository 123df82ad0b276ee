"""The identity of a store. It is part of every run's name, so that two stores never give one name
to two runs.

A store contains a `salt`, which is created together with the store, and the location where the
store was created or last written. A store at another location was copied or moved. It counts as a
different store and gets a new salt. The salt is deterministic, so that a dry run, which writes
nothing, can compute the salt that a submit would use.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.errors import StoreError, UsageError
from cloudtrain.job.script import read_hyperparameters
from cloudtrain.runtime.proc import boot_id, start_of
from cloudtrain.system.files import KEPT, STORE_FILE
from cloudtrain.system.private import close_state_folder

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob


def salt_of_new_store(folder: Path) -> str:
    """Return the salt that a new store in `folder` would get now.

    The salt is a hash of the host name, the id of the current boot, the path, and the device and
    inode of the top of its file system. Two containers made from one image therefore get different
    salts. Another process that creates the folder meanwhile changes nothing.
    """
    path = Path(os.path.realpath(folder))
    top = next(filter(os.path.ismount, (path, *path.parents)))
    status = top.stat()
    return _hash(os.uname().nodename, boot_id(), str(path), str(status.st_dev), str(status.st_ino))


def salt_of_moved_store(salt: str, location: str) -> str:
    """Return the new salt of a store that was copied or moved to `location`."""
    return _hash(salt, location)


def location_in(folder: Path, content: Path | None = None) -> str:
    """Return the location of the store in `folder`, as a hash of host, path and inode; empty if
    there is no store. A copy has another location. A reboot does not change the location. `content`
    is the file that will be the store."""
    file = folder / STORE_FILE
    try:
        inode = (content or file).stat().st_ino
    except OSError:
        return ""
    return _hash(os.uname().nodename, os.path.realpath(file), str(inode))


def _hash(*parts: str) -> str:
    # a path may hold bytes that are no UTF-8
    content = "\0".join(parts).encode("utf-8", "surrogateescape")
    return hashlib.sha256(content).hexdigest()[:32]


def has_store(folder: Path) -> bool:
    """Return whether the folder contains a run store, without SQLite: on a machine without a store,
    a plan needs no more than this check. Removes other users' access to the folder if they have
    any."""
    file = folder / STORE_FILE
    try:
        if folder.is_dir():
            close_state_folder(folder, ours=KEPT)
            if file.exists() and not file.is_file():
                raise unusable(folder, f"`{file}` is not a file")
        elif folder.exists():
            raise unusable(folder, "it is not a folder")
        return file.exists()
    except OSError as error:
        raise unusable(folder, error) from error


def unusable(folder: Path, why: object) -> StoreError:
    return StoreError(
        f"the run store in `{folder}` cannot be opened: {why}",
        hint="set CLOUDTRAIN_STATE_DIR to a folder of yours",
        code="CT961",
    )


# The data that the store keeps of each submission, so that its run can be shown, compared and run
# again. The data contains no secrets. The database table `runs` holds the run's name and status.


class KeptFile(NamedTuple):
    """A file or a link of a run's code, with the fields of `bundle.entries.Entry`."""

    path: str
    size: int
    executable: bool
    sha256: str
    target: str | None


class Money(NamedTuple):
    """The cost of a run in US dollars at list prices. Unknown values are None.

    Attributes:
        hourly: the price per hour for all instances, at submission.
        billable_seconds: the time that the target billed for each instance.
        cost: the cost of all instances for `billable_seconds`, as the target reported it.
    """

    hourly: float | None = None
    billable_seconds: float | None = None
    cost: float | None = None

    @property
    def amount(self) -> float | None:
        """The bill; None without one."""
        if self.billable_seconds is None or self.cost is not None:
            return self.cost
        return None if self.hourly is None else self.hourly * self.billable_seconds / 3600


class Outlay(NamedTuple):
    """What a submission takes of the caps on spending, in US dollars at list prices.

    Attributes:
        most: the most that it can spend; None if unknown.
        pool: the part of it that is spent after its end, which no bill of its run contains.
        hourly: what its machines cost per hour. The project's `instances.toml` may lower the price
            of a bill, and does not lower this one.
        sweep: the sweep on this machine whose trial it is, and whose outlay pays for it.
        check: called with what the other submissions of 24 hours take. It raises an error if
            nothing may be sent. None without a cap for them.
    """

    most: float | None = 0.0
    pool: float = 0.0
    hourly: float = 0.0
    sweep: str = ""
    check: Callable[[float], None] | None = None


class JobRecord(NamedTuple):
    """The data of one submission. All secrets are hidden.

    Attributes:
        version: cloudtrain's version.
        job: the job's fields, with absolute paths.
        plan: the plan's data, without its processes.
        bundle: the hash of the code.
        files: the files of the code.
        kind: the kind of the job, `training` or `processing`.
        prepared: the job as it was compiled, with `run:...` inputs replaced by locations. None if
            equal to `job`.
        file: the path of the job's file; None for a job that was written in Python.
        text: the text of that file; None if there is no file, or if a secret in it could not be
            hidden.
        overrides: the values of `--set` and similar options, in order.
        settings: the target's settings, including `type`.
        commit, branch, dirty, difference: the fields of `system.git.Commit` for the folder of the
            code.
        hidden: the paths of the job's fields that hold secrets.
        hourly: the price in US dollars per hour for all instances; None if unknown.
        rerun_of: the earlier run that this run repeats.
        trial: for a sweep, the price in US dollars per hour of a trial's instances, and a trial's
            maximum run time in seconds.
    """

    version: str
    job: Mapping[str, Any]
    plan: Mapping[str, Any]
    bundle: str
    files: tuple[KeptFile, ...] = ()
    kind: str = "training"
    prepared: Mapping[str, Any] | None = None
    file: str | None = None
    text: str | None = None
    overrides: tuple[str, ...] = ()
    settings: Mapping[str, Any] = {}
    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = None
    difference: str | None = None
    hidden: tuple[str, ...] = ()
    hourly: float | None = None
    rerun_of: str | None = None
    trial: tuple[float | None, int | None] = (None, None)


# The origin of a submission, and the labels by which its run can be found.


class Label(NamedTuple):
    """A label of a run. `kind` is `tag` or `hyperparameter`."""

    kind: str
    key: str
    value: str


class Condition(NamedTuple):
    """A comparison with a label: `learning_rate<0.01`. Two numbers are compared as numbers, other
    values as text."""

    kind: str
    key: str
    operator: str
    value: str

    @property
    def sql(self) -> tuple[str, tuple[object, ...]]:
        """The SQL condition on a row of the table `labels`, and the values for its placeholders."""
        left = "value"
        value: object = self.value
        number = as_number(self.value)
        if self.kind != "tag" and number is not None:
            left = "number(value)"
            value = number
        condition = f"kind = ? AND key = ? AND {left} {self.operator} ?"
        return condition, (self.kind, self.key, value)


_CONDITION = (
    r"\s*(?P<key>[^\s<>=!]+)\s*(?P<operator><=|>=|!=|==|=|<|>)\s*(?P<value>(?![<>=!]).*?)\s*"
)
"""A comparison. A value that begins with another operator, as in `lr>>0.1`, is a mistake."""


def condition_of(text: str) -> Condition:
    match = re.fullmatch(_CONDITION, text)
    if match is None:
        raise UsageError(
            f"`{text}` is not a condition",
            hint="write a hyperparameter, one of = != < <= > >=, and a value: `learning_rate<0.01`",
            code="CT909",
        )
    return Condition("hyperparameter", match["key"], match["operator"], match["value"])


def as_number(value: object) -> float | None:
    """Return a label's value as a number; None if it is not a finite number."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if isfinite(number) else None


def as_amount(value: object) -> float | None:
    """Return a time, a duration or a price from the database; None if the value is not one. A
    damaged database may hold a value of any type in any column."""
    # Python's dates end with the year 9999
    if isinstance(value, int | float) and 0 <= value < 253_402_300_800:
        return value
    return None


def as_text(value: object) -> str:
    """Return a text from the database, even if it is stored as bytes or as a number."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)


class Origin(NamedTuple):
    """The origin of a job's submission.

    Attributes:
        folder: the working directory.
        project: the folder of the job's file; empty for a job that was written in Python.
        terminal: identifies the login session, such as a terminal or a notebook's kernel; empty
            without a session.
        labels: the job's tags and hyperparameters.
    """

    folder: str = ""
    project: str = ""
    terminal: str = ""
    labels: tuple[Label, ...] = ()


NOWHERE = Origin()
"""The origin of a run if it is unknown."""


def origin_here(project: Path | None = None, labels: Iterable[Label] = ()) -> Origin:
    """Return the origin of a job that this process submits from its working directory."""
    project_path = "" if project is None else os.path.realpath(project)
    session = os.getsid(0)
    # unique since the machine's last boot, on Linux by the start of the session's first process
    terminal = f"{boot_id()}:{session}:{start_of(session)}"
    return Origin(os.path.realpath("."), project_path, terminal, tuple(labels))


def labels_of(job: AnyJob) -> tuple[Label, ...]:
    """Return the tags, hyperparameters and arguments as labels, by which `ps --tag` and `ps
    --where` select runs."""
    labels = [Label("tag", key, value) for key, value in job.tags.items()]
    hyperparameters = read_hyperparameters(job.view.arguments) or {}
    for key, value in (hyperparameters | job.hyperparameters).items():
        text = value if isinstance(value, str) else json.dumps(value)
        labels.append(Label("hyperparameter", key, text))
    return tuple(labels)
