"""`[approval]`: what a person reserves for themselves before paid runs start.

    [approval]
    paid_targets = "ask"        # free (default), plan or ask
    max_parallel = 2

The table is read from the home of the user's account, as the system's database of users knows it,
and from `/etc/cloudtrain.toml`, which only root may write and whose values count more. No variable,
project file, flag or argument changes what is read. `gate_of` is asked for each submission of a
paid target, by `send_once`.

This is no wall against a program with the user's rights, which can use the user's credentials
without cloudtrain. It stops a program that uses cloudtrain as it is meant to be used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from cloudtrain.documents.document import read_trusted_toml
from cloudtrain.errors import (
    JobError,
    Problem,
    SettingsError,
    UsageError,
    shortened,
)
from cloudtrain.job.model import Duration, Model
from cloudtrain.lifecycle.store.plans import AskedPlan, Gate
from cloudtrain.lifecycle.store.records import JobRecord
from cloudtrain.lifecycle.store.schema import open_store, read_store
from cloudtrain.lifecycle.store.store import Store
from cloudtrain.plans.plan import Plan
from cloudtrain.targets.registry import target_of
from cloudtrain.targets.settings import (
    APPROVAL,
    Settings,
    SettingsFile,
    account_file,
    account_folder,
    read_settings,
)

SYSTEM_FILE = Path("/etc/cloudtrain.toml")
"""The file of whoever administers the machine."""


class Approval(Model):
    """The table `[approval]`."""

    paid_targets: Literal["free", "plan", "ask"] = "free"
    """What a paid run needs: nothing; the hash of its plan, which somebody has looked at; or the
    approval of a person."""
    max_parallel: Annotated[int, Field(ge=1)] | None = None
    """The most paid runs that may be unfinished."""
    expires: Duration = 3600
    """How long an approval holds."""
    state_dir: Annotated[str, Field(pattern="^/")] | None = None
    """The folder of the run store in which approvals and runs are counted. Default: that of the
    account, whatever `CLOUDTRAIN_STATE_DIR` says."""


def read_approval() -> Approval:
    """Return the approval that the person and the machine ask for.

    Raises:
        SettingsError: a file cannot be read, is not root's or the person's own, or has a mistake.
    """
    own = account_file()
    fields: dict[str, Any] = {}
    if own is not None and not _is_absent(own):
        fields |= _fields_of(read_settings(own))
    if not _is_absent(SYSTEM_FILE):
        fields |= _fields_of(_read_system_file())
    return Approval(**fields)


def _is_absent(file: Path) -> bool:
    """Return whether there is no such file. One that cannot be looked at is not absent."""
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _read_system_file() -> SettingsFile:
    """Raises SettingsError if anybody but root may have written it."""
    document = read_trusted_toml(SYSTEM_FILE, code="CT911")
    file = SettingsFile(SYSTEM_FILE, document.data, document.positions)
    if SYSTEM_FILE.stat().st_uid != 0:
        hint = f"`sudo chown root {SYSTEM_FILE}`"
        raise SettingsError(f"`{SYSTEM_FILE}` does not belong to root", hint=hint, code="CT911")
    for name in file.tables:
        if name != APPROVAL:
            message = f"`{SYSTEM_FILE}` sets nothing but `[{APPROVAL}]`"
            problem = Problem((name,), message, f"remove `{name}`", code="CT912")
            raise SettingsError.of([file.placed(problem)])
    return file


def _fields_of(file: SettingsFile) -> Mapping[str, Any]:
    """Return the fields that the file sets."""
    table: Mapping[str, Any] = file.tables.get(APPROVAL, {})
    try:
        Approval(**table)
    except JobError as error:
        problems = []
        for problem in error.problems:
            path = (APPROVAL, *problem.path)
            problems.append(file.placed(replace(problem, path=path)))
        raise SettingsError.of(problems) from None
    return table


def gate_of(store: Store, plan: Plan, record: JobRecord | None, *, is_expected: bool) -> Gate:
    """Return what the submission of a plan has to pass. `is_expected`: the caller has named the
    plan that may be sent.

    Raises:
        SettingsError: `[approval]` has a mistake, or counts in another store than this one.
    """
    if not target_of(plan.target).facts.is_paid:
        return Gate(plan.sha256)
    runs = 1
    if record is not None and record.kind == "sweep":  # as many as it runs at a time
        runs = min(int(record.job.get("parallel", 1)), int(record.job.get("trials") or 10**6))
    return paid_gate(store, plan.sha256, runs, is_expected=is_expected)


def paid_gate(store: Store, sha256: str, runs: int, *, is_expected: bool = False) -> Gate:
    """Return what `runs` paid runs at a time have to pass, whose plan or further trials `sha256`
    stands for."""
    approval = read_approval()
    way = approval.paid_targets
    needs_approval = way == "ask" or (way == "plan" and not is_expected)
    if needs_approval or approval.max_parallel is not None:
        _check_store(store, approval)
    advice = f"type `cloudtrain approve {sha256[:12]}` in a terminal, and submit it again"
    if way == "plan":
        advice += f"; `--plan {sha256[:12]}` sends exactly this plan"
    return Gate(sha256, runs, approval.max_parallel, needs_approval, advice)


def _check_store(store: Store, approval: Approval) -> None:
    """Raise SettingsError if approvals and runs are not counted in this store."""
    counted: str | Path | None = approval.state_dir or account_folder(is_state=True)
    if counted is None or os.path.realpath(counted) == os.path.realpath(store.folder):
        return
    message = f"`[{APPROVAL}]` counts runs in `{counted}`, and this is the store `{store.folder}`"
    raise SettingsError(
        message,
        hint=f"unset CLOUDTRAIN_STATE_DIR, or set `state_dir` in `[{APPROVAL}]`",
        code="CT928",
    )


def hash_of(text: str) -> str:
    """Return the hash of a plan, or its beginning. Raises UsageError for another text (CT909)."""
    if re.fullmatch("[0-9a-f]{12,64}", text):
        return text
    message = f"`{shortened(text)}` is not the hash of a plan"
    raise UsageError(
        message,
        hint="write at least 12 digits of the hash that `cloudtrain plan` prints",
        code="CT909",
    )


def asked_plan(beginning: str, here: Settings) -> AskedPlan:
    """Return the plan that waits for an approval and whose hash begins so.

    Raises:
        UsageError: there is none, there are several, or it was sent already.
    """
    beginning = hash_of(beginning)
    with read_store(here.state_dir) as store:
        found = store.plans.asked(beginning)
        run = store.plans.run_of(beginning)
    if run is not None:
        hint = f"`cloudtrain status {run}` shows how it is"
        raise UsageError(f"this plan was sent as `{run}`", hint=hint, code="CT929")
    if len(found) != 1:
        count = "several plans begin" if found else "no plan waits for an approval that begins"
        hint = "`cloudtrain approve` lists the plans; a submit that is refused adds its own"
        raise UsageError(f"{count} with `{beginning}`", hint=hint, code="CT929")
    return found[0]


def approve(plan: AskedPlan, here: Settings) -> float:
    """Record that the person approves a plan, and return until when. Whoever calls this has asked
    the person."""
    approval = read_approval()
    with open_store(here.state_dir) as store:
        _check_store(store, approval)
        until = store.now() + approval.expires
        store.plans.approve(plan.sha256, until)
    return until
