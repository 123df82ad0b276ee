"""The outbox: what a person wants to be told of, and where it was sent already.

The start and the end of a run enter it in the transaction that changes the run's state: see the
triggers in `migrations.sql`. Its name for an event is `RUN/EVENT/ATTEMPT`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from cloudtrain.plans.progress import Notice

if TYPE_CHECKING:
    import sqlite3

_MOST = 20
"""Events of one sort and run that are recorded: a script can report an alert in each step."""


class Event(NamedTuple):
    """What happened to a run. Times are seconds since the epoch.

    Attributes:
        kind: the state in which the run ended, `started`, `over_cost` or the kind of a notice.
        attempt: from 1; higher if the same happened to the run before.
        recorded: when it entered the outbox.
        time: when it happened; None if unknown.
        job, target, place: of the run; empty if the run was removed.
        delivered: the channels that have it.
    """

    run: str
    kind: str
    attempt: int
    recorded: float
    time: float | None = None
    reason: str | None = None
    job: str = ""
    target: str = ""
    place: str = ""
    delivered: frozenset[str] = frozenset()

    @property
    def id(self) -> str:
        """The name of the event, the same each time that it is sent."""
        return f"{self.run}/{self.kind}/{self.attempt}"


class Outbox:
    """The events in a run store. Each method is one transaction, or a part of the caller's."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def turn_on(self, now: float) -> None:
        """Record events from now on."""
        self._db.execute(
            "INSERT INTO notifying (since) SELECT ? WHERE NOT EXISTS (SELECT 1 FROM notifying)",
            (now,),
        )

    def turn_off(self) -> None:
        """Record no more events, and send none of those that were recorded."""
        self._db.execute("DELETE FROM notifying")
        self._db.execute("UPDATE outbox SET is_done = 1 WHERE is_done = 0")

    @property
    def has_work(self) -> bool:
        """Whether there are events to send, or runs whose events are recorded."""
        return bool(
            self._db.execute(
                "SELECT EXISTS (SELECT 1 FROM notifying) AND ("
                "EXISTS (SELECT 1 FROM outbox WHERE is_done = 0) OR EXISTS ("
                "SELECT 1 FROM runs WHERE state NOT IN ('succeeded', 'failed', 'stopped', 'lost')))"
            ).fetchone()[0]
        )

    def add(self, run: str, kind: str, now: float, time: float | None, reason: str | None) -> None:
        """Record an event of a run that is to be notified about. An event that is recorded already
        is left out: one of the same kind at the same `time`. So is one that has occurred too
        often.

        It is one statement, because several programs record at once.
        """
        values = {"run": run, "kind": kind, "now": now, "time": time, "reason": reason}
        self._db.execute(
            f"""
            WITH same AS (SELECT moment FROM outbox WHERE run = :run AND event = :kind),
                 earlier AS (SELECT count(*) AS number FROM same)
            INSERT INTO outbox (run, event, attempt, at, moment, reason)
            SELECT :run, :kind, number + 1, :now, :time, :reason
            FROM earlier
            WHERE :run IN (SELECT name FROM notified)
              AND number < {_MOST}
              AND NOT EXISTS (SELECT * FROM same WHERE moment IS :time)
            """,
            values,
        )

    def add_notices(self, run: str, notices: Iterable[Notice], now: float) -> None:
        """Record the notices of a run that are not over. Of a state that several ranks are in, the
        first notice counts."""
        states = set()
        for notice in notices:
            state = (notice.kind, notice.text if notice.kind == "alert" else "")
            if notice.ended is None and state not in states:
                states.add(state)
                self.add(run, notice.kind, now, notice.time, notice.text)

    def pending(self) -> list[Event]:
        """Return the events that are not done, the oldest first."""
        rows = self._db.execute(
            "SELECT run, event, attempt, at, moment, outbox.reason, ifnull(job_name, ''),"
            " ifnull(target, ''), ifnull(place, ''), (SELECT json_group_array(channel)"
            " FROM deliveries WHERE error IS NULL AND (run, event, attempt)"
            " = (outbox.run, outbox.event, outbox.attempt))"
            " FROM outbox LEFT JOIN runs ON name = run"
            " WHERE is_done = 0 ORDER BY coalesce(moment, at), outbox.rowid"
        )
        events = []
        for *fields, channels in rows:
            delivered = frozenset(json.loads(channels))
            events.append(Event(*fields)._replace(delivered=delivered))
        return events

    def note(self, event: Event, channel: str, error: str | None) -> None:
        """Record a try to send an event, and why it failed."""
        self._db.execute(
            "INSERT INTO deliveries (run, event, attempt, channel, tries, error)"
            " VALUES (?, ?, ?, ?, 1, ?) ON CONFLICT (run, event, attempt, channel)"
            " DO UPDATE SET tries = tries + 1, error = excluded.error",
            (event.run, event.kind, event.attempt, channel, error),
        )

    def finish(self, event: Event) -> None:
        """Record that nobody needs the event any more."""
        self._db.execute(
            "UPDATE outbox SET is_done = 1 WHERE run = ? AND event = ? AND attempt = ?",
            (event.run, event.kind, event.attempt),
        )

    def failed(self) -> list[tuple[str, ...]]:
        """Return the event, the channel, the number of tries and the last error of each delivery
        that failed and will be tried again, the oldest first."""
        return self._db.execute(
            "SELECT run || '/' || event || '/' || attempt, channel, CAST(tries AS TEXT), error"
            " FROM deliveries NATURAL JOIN outbox"
            " WHERE is_done = 0 AND error IS NOT NULL ORDER BY at"
        ).fetchall()
