"""The plans that were sent, and those that a person was asked about, each by its hash.

An approval serves one run: the transaction that takes the run's name also takes the approval, so
that of two commands at once only one has it. If the run is forgotten, because nothing was sent or
the target refused it, the approval serves again until it expires.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.errors import PersonNeeded, UsageError
from cloudtrain.lifecycle.store.records import as_amount

if TYPE_CHECKING:
    import sqlite3


class Gate(NamedTuple):
    """What a submission must pass before it takes a name.

    Attributes:
        sha256: the hash of its plan; empty if none is kept.
        runs: how many paid runs it is at a time; 0 for a free one.
        max_parallel: the most paid runs that may be unfinished; None for any number.
        needs_approval: whether a person must have approved this plan.
        advice: how a person approves it.
    """

    sha256: str = ""
    runs: int = 0
    max_parallel: int | None = None
    needs_approval: bool = False
    advice: str = ""


OPEN = Gate()
"""The gate of what is no submission of its own."""


class AskedPlan(NamedTuple):
    """A plan that a person was asked about. `shown` is the plan as JSON data, without its
    processes; `until` is when its approval expires or has expired, None without one; `run` was sent
    with it."""

    sha256: str
    shown: Mapping[str, Any]
    asked: float
    until: float | None
    run: str | None


_KEPT_FOR = 7 * 24 * 3600.0
"""Seconds for which a plan is kept that a person was asked about and that was not sent."""

_ENDED = "'succeeded', 'failed', 'stopped', 'lost'"
_AFTER_DIGITS = "g"
"""A letter that sorts after every hex digit."""


class Plans:
    """The plans in a run store. Each method is one transaction, or a part of the caller's."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def let_through(self, run: str, gate: Gate, now: float, *, is_covered: bool) -> None:
        """Record that the plan of `gate` is sent as `run`. `is_covered`: it is a trial, which its
        sweep has been counted and approved for.

        Raises:
            UsageError: as many paid runs as the person allows have not ended (CT926).
            PersonNeeded: the person has not approved the plan, or the approval has expired (CT925).
        """
        if gate.max_parallel is not None and gate.runs and not is_covered:
            self._check_number(gate.runs, gate.max_parallel)
        if gate.needs_approval and not is_covered:
            approved = self._db.execute(
                "SELECT 1 FROM plans WHERE sha256 = ? AND run IS NULL AND until > ?",
                (gate.sha256, now),
            )
            if approved.fetchone() is None:
                message = f"you have not approved the plan {gate.sha256[:12]}; nothing was sent"
                error = PersonNeeded(message, hint=gate.advice, code="CT925")
                error.plan = gate.sha256
                raise error
        self._db.execute(
            "INSERT INTO plans (sha256, run, runs) VALUES (?, ?, ?) ON CONFLICT (sha256)"
            " DO UPDATE SET run = excluded.run, runs = excluded.runs",
            (gate.sha256, run, gate.runs),
        )

    def _check_number(self, runs: int, most: int) -> None:
        """Raise UsageError if `runs` more paid runs are too many beside those that have not ended.
        The trials of a sweep count in it, and alone after its end, which may have been that of its
        driver."""
        active = self._db.execute(
            "SELECT TOTAL(plans.runs) FROM plans JOIN runs ON runs.name = plans.run"
            " LEFT JOIN outlays ON outlays.name = plans.run"
            " LEFT JOIN runs AS sweeps ON sweeps.name = outlays.sweep"
            f" WHERE runs.state NOT IN ({_ENDED})"
            f" AND (sweeps.state IS NULL OR sweeps.state IN ({_ENDED}))"
        ).fetchone()[0]
        if active + runs > most:
            message = (
                f"{active:.0f} paid runs have not ended, this would be {runs} more, and "
                f"`max_parallel` is {most}"
            )
            hint = "`cloudtrain ps --active` asks how they are; `cloudtrain stop NAME` ends one"
            raise UsageError(message, hint=hint, code="CT926")

    def give_back(self, run: str) -> None:
        """Record that nothing was sent as `run`."""
        self._db.execute("DELETE FROM plans WHERE run = ? AND shown IS NULL", (run,))
        self._db.execute("UPDATE plans SET run = NULL, runs = 0 WHERE run = ?", (run,))

    def run_of(self, beginning: str) -> str | None:
        """Return the name of the run that was sent with the plan whose hash begins so."""
        row = self._db.execute(
            "SELECT run FROM plans WHERE sha256 >= ? AND sha256 < ? AND run IS NOT NULL",
            (beginning, beginning + _AFTER_DIGITS),
        ).fetchone()
        return None if row is None else str(row[0])

    def number_of(self, run: str) -> int:
        """Return how many plans were sent as this run: the first, and those with which a sweep goes
        on."""
        return int(
            self._db.execute("SELECT count(*) FROM plans WHERE run = ?", (run,)).fetchone()[0]
        )

    def ask(self, sha256: str, shown: Mapping[str, Any], now: float) -> None:
        """Record that a person is to be asked about a plan, and forget old plans."""
        self._db.execute("DELETE FROM plans WHERE run IS NULL AND asked < ?", (now - _KEPT_FOR,))
        content = zlib.compress(json.dumps(shown).encode(), 1)
        self._db.execute(
            "INSERT INTO plans (sha256, shown, asked) VALUES (?, ?, ?) ON CONFLICT (sha256)"
            " DO UPDATE SET shown = excluded.shown, asked = excluded.asked",
            (sha256, content, now),
        )

    def asked(self, beginning: str = "") -> list[AskedPlan]:
        """Return the plans that a person was asked about whose hash begins so, the newest first. A
        damaged one is left out."""
        rows = self._db.execute(
            "SELECT sha256, shown, asked, until, run FROM plans"
            " WHERE shown IS NOT NULL AND sha256 >= ? AND sha256 < ? ORDER BY asked DESC",
            (beginning, beginning + _AFTER_DIGITS),
        )
        plans = []
        for sha256, content, asked, until, run in rows:
            with suppress(zlib.error, TypeError, ValueError):
                shown = json.loads(zlib.decompress(content))
                plans.append(AskedPlan(sha256, shown, float(asked), as_amount(until), run))
        return plans

    def approve(self, sha256: str, until: float) -> None:
        self._db.execute(
            "UPDATE plans SET until = ? WHERE sha256 = ? AND run IS NULL", (until, sha256)
        )
