"""The run store in SQLite (WAL mode). Several processes can use it at once, and reading writes
nothing to disk."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from typing import Any

from cloudtrain.errors import StoreError
from cloudtrain.lifecycle.store.outbox import Outbox
from cloudtrain.lifecycle.store.plans import OPEN, Gate, Plans
from cloudtrain.lifecycle.store.records import (
    NOWHERE,
    Condition,
    JobRecord,
    KeptFile,
    Label,
    Money,
    Origin,
    Outlay,
    as_amount,
    as_number,
    as_text,
    location_in,
)
from cloudtrain.machines.spending import exceeds
from cloudtrain.plans.progress import MetricSummary, RunStatus
from cloudtrain.plans.states import AFTER, CAPACITY, REHEARSAL, SWEEP, TRIAL, RunRef, RunState
from cloudtrain.system.processes import Moment, ProcessLock, read_clock

STAGES = ("planned", "uploaded", "sent", "accepted", "reported")
"""The stages of a submission. planned: the name is taken. uploaded: the bundle is in place. sent:
the target had no run of that name, and the request is about to leave. accepted: the target has the
run. reported: the user was told its name, so that a later submit of the same job means a new
run."""

NEWEST = "last"
"""The name that stands for the newest run."""

SENT = ("accepted", "reported")
"""Stages of submissions that created a run."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run in the store, with its last known status. Times are seconds since the epoch."""

    name: str
    target: str
    place: str | None
    job_name: str
    key: str = ""
    """Hash that is equal for submissions of the same job: of the target, location, job name, and
    plan without its run name."""
    submitter: str = ""
    store: str = ""
    """The salt of the store that submitted the run; empty for runs of earlier versions."""
    counter: int = 0
    stage: str
    state: str
    reason: str | None = None
    created: float
    started: float | None = None
    ended: float | None = None
    seq: int | None = None
    """The position in the order of submission. The store assigns it."""
    metrics: str | None = None
    """The metrics of the last known status, as JSON."""
    main: str | None = None
    """The summary of the main metric, as JSON."""

    @property
    def ref(self) -> RunRef:
        return RunRef(self.target, self.place or "", self.name)

    @property
    def status(self) -> RunStatus:
        """The run's last known status. Metrics that cannot be read are left out."""
        return RunStatus(
            RunState(self.state),
            self.reason,
            self.started,
            self.ended,
            metrics=self.last_metrics,
            main=self.summary,
        )

    @property
    def last_metrics(self) -> dict[str, float]:
        """The metrics of the last known status; empty if they cannot be read."""
        if self.metrics is None:  # as in most rows
            return {}
        with suppress(ValueError, AttributeError):
            metrics: dict[str, float] = json.loads(self.metrics)
            if all(type(value) in (int, float) for value in metrics.values()):
                return metrics
        return {}

    @property
    def summary(self) -> MetricSummary | None:
        """The summary of the main metric; None if there is none, or if it cannot be read."""
        if self.main is None:
            return None
        with suppress(ValueError, TypeError, KeyError):
            fields = json.loads(self.main)
            fields["trend"] = tuple(map(float, fields["trend"]))
            fields["last"] = float(fields["last"])
            return MetricSummary(**fields)
        return None

    @classmethod
    def of_row(cls, row: Sequence[object], now: float) -> RunRecord:
        """Return the run of a row. Of a damaged row, what can be read is kept: the target is asked
        for an unreadable state, and a run with unreadable dates counts as new, so that nothing
        removes it."""
        values: dict[str, Any] = {}
        for name, value in zip(_FIELDS, row, strict=True):
            known = value
            if name in _TIMES:
                known = as_amount(value)
            elif name in ("counter", "seq"):
                known = value if isinstance(value, int) else 0
            elif value is not None and type(value) is not str:
                known = as_text(value)
            values[name] = known

        known_times = [values[name] for name in _TIMES if values[name] is not None]
        values["created"] = next(iter(known_times), now)
        if values["stage"] not in STAGES:
            values["stage"] = "reported"
        if values["state"] not in _STATES:
            values["state"] = RunState.PENDING.value
        return cls(**values)


_STATES = frozenset(state.value for state in RunState)
UNFINISHED = tuple(state for state in RunState if not state.is_final)
"""The states of a run that has not ended."""

_ENDED = ", ".join(f"'{state.value}'" for state in RunState if state not in UNFINISHED)

_OLD_REHEARSAL = f"(job_name LIKE '%{REHEARSAL}' AND state IN ({_ENDED}))"
"""SQL condition for a finished run of a rehearsal."""
_NO_TRIAL = f"key NOT GLOB '{TRIAL}*'"
"""SQL condition for a run that is no trial of a sweep."""

_SENDS_LATER = f"key GLOB '{AFTER}*' OR key GLOB '{SWEEP}*' OR key GLOB '{CAPACITY}*'"
"""SQL condition for what starts runs later."""

_COUNTED = "typeof(counter) = 'integer' AND counter < 1000000000"
"""SQL condition for a counter that cloudtrain wrote. No counter would follow a damaged one."""

_DAY = 24 * 3600.0
"""The seconds over which a cap adds up the submissions."""

_FIELDS = tuple(field.name for field in fields(RunRecord))
_TIMES = ("created", "started", "ended")
_COLUMNS = ", ".join(_FIELDS)
_OF_A_RUN = ("written", "origins", "labels", "sent", "money", "annotations")
"""Tables with rows that belong to a run."""

_IN_COLUMNS = ("version", "file", "bundle", "commit", "branch", "dirty", "difference")
_IN_CONTENT = (
    "job",
    "prepared",
    "kind",
    "text",
    "overrides",
    "settings",
    "plan",
    "hidden",
    "rerun_of",
    "trial",
)
"""The fields of `JobRecord` with a column of their own in the table `sent`, and those in its column
`content`."""


class Store:
    """The runs of this user on this machine. `open_store` opens it for writing, `read_store` for
    reading."""

    def __init__(
        self,
        db: sqlite3.Connection,
        folder: Path,
        salt: str,
        *,
        clock: Callable[[], Moment] = read_clock,
    ) -> None:
        self.salt = salt
        """Part of the run names that this store assigns."""
        self.outbox: Outbox = Outbox(db)
        """The events of the runs."""
        self.plans: Plans = Plans(db)
        """The plans that were sent or wait for an approval."""
        self._db = db
        self.folder: Path = folder
        db.text_factory = as_text  # bytes that are not UTF-8 would end the query
        db.create_function("number", 1, as_number, deterministic=True)
        self._clock = clock
        self._location = location_in(folder)

    def next_counter(self, key: str, submitter: str) -> int:
        """Return the counter for the next run with this key and submitter: one more than the
        highest of the earlier runs, including removed runs."""
        query = (
            "SELECT MAX(counter) FROM ("
            "SELECT counter, key, submitter FROM runs"
            " UNION ALL SELECT counter, key, submitter FROM removed"
            f") WHERE key = ? AND submitter = ? AND {_COUNTED}"
        )
        highest = self._db.execute(query, (key, submitter)).fetchone()[0]
        return (highest or 0) + 1

    def reserve(
        self,
        record: RunRecord,
        outputs: Mapping[str, str] | None = None,
        origin: Origin = NOWHERE,
        job_record: JobRecord | None = None,
        outlay: Outlay = Outlay(),
        gate: Gate = OPEN,
    ) -> ProcessLock | None:
        """Reserve the name of the run `record`: record stage `planned`, and return a lock that
        lasts until this process ends. Return None if the name is taken, or if its key already has a
        run of this submitter with this or a higher counter.

        `outputs` maps the run's outputs to their locations, `origin` is the origin of the
        submission, and `job_record` is the data that is sent. Raises the errors of `outlay.check`
        and `Plans.let_through`: one transaction asks and records what is taken, so that two
        commands cannot spend the same money, or use the same approval.
        """
        with self._writing():
            query = (
                "SELECT 1 FROM runs WHERE name = ?"
                f" OR (key = ? AND submitter = ? AND counter >= ? AND {_COUNTED})"
            )
            identity = (record.name, record.key, record.submitter, record.counter)
            if self._db.execute(query, identity).fetchone():
                return None
            lock = self.lock(record.name)
            if lock is None:
                return None
            try:
                is_covered = self._spend(record.name, record.target, outlay)
                if gate.sha256:
                    self.plans.let_through(record.name, gate, self.now(), is_covered=is_covered)
            except BaseException:
                lock.release(remove=True)
                raise

            values = [getattr(record, field) for field in _FIELDS]
            marks = ", ".join("?" * len(values))
            self._db.execute(f"INSERT INTO runs ({_COLUMNS}) VALUES ({marks})", values)
            self._write_outputs(record.name, outputs or {})

            self._db.execute(
                "INSERT OR REPLACE INTO origins (name, folder, project, terminal)"
                " VALUES (?, ?, ?, ?)",
                (record.name, *origin[:3]),
            )
            labels = [(record.name, *label) for label in origin.labels]
            self._db.executemany(
                "INSERT OR REPLACE INTO labels (name, kind, key, value) VALUES (?, ?, ?, ?)", labels
            )

            if job_record is not None:
                self._write_job_record(record.name, job_record)
            self._note(record.name, record.stage)
            return lock

    def advance(self, name: str, stage: str) -> None:
        """Record that a submission reached a stage. The record is on disk when this method returns.

        Raises:
            StoreError: the store was removed or replaced after it was opened, so other processes
                could not see the submission.
        """
        assert stage in STAGES
        self._check_still_there()
        with self._writing():
            cursor = self._db.execute("UPDATE runs SET stage = ? WHERE name = ?", (stage, name))
            assert cursor.rowcount == 1, "a submission is forgotten only under its lock"
            self._note(name, stage)

    def forget(self, name: str) -> None:
        """Remove a submission that never reached its target. Its name is free again."""
        with self._writing():
            self._delete(name, "runs", "outlays", *_OF_A_RUN)
            self.plans.give_back(name)
            self._note(name, "forgotten")

    def remove(self, name: str) -> None:
        """Remove a run whose submission is at stage `reported`; do nothing at an earlier stage. The
        run's name is never used again."""
        earlier = ", ".join(f"'{stage}'" for stage in STAGES[:-1])
        with self._writing():
            self._db.execute(
                "INSERT OR REPLACE INTO removed (name, key, submitter, counter)"
                " SELECT name, key, submitter, counter FROM runs"
                f" WHERE name = ? AND stage NOT IN ({earlier})",
                (name,),
            )
            if self._db.execute("SELECT changes()").fetchone()[0]:
                # the outlay of a run stays, and that of a sweep is the outlays of its trials
                self._db.execute(
                    "DELETE FROM outlays WHERE name IN"
                    " (SELECT name FROM runs WHERE name = ?"
                    f" AND (key GLOB '{SWEEP}*' OR key GLOB '{CAPACITY}*'))",
                    (name,),
                )
                self._delete(name, "runs", *_OF_A_RUN, "journal")

    def was_removed(self, name: str) -> bool:
        rows = self._db.execute("SELECT 1 FROM removed WHERE name = ?", (name,))
        return rows.fetchone() is not None

    def record(self, name: str, status: RunStatus) -> None:
        """Record a run's status, as the target returned it."""
        state = status.state.value
        metrics = json.dumps(status.metrics) if status.metrics else None
        main = json.dumps(status.main._asdict()) if status.main else None
        values = (state, status.reason, status.started, status.ended, metrics, main, name)
        with self._writing():
            self._db.execute(
                "UPDATE runs SET state = ?, reason = ?, started = ?, ended = ?,"
                " metrics = coalesce(?, metrics), main = coalesce(?, main) WHERE name = ?",
                values,
            )
            if status.billable_seconds is not None:
                self._db.execute(
                    "INSERT INTO money (name, billable_seconds, cost) VALUES (?, ?, ?)"
                    " ON CONFLICT (name) DO UPDATE SET"
                    " billable_seconds = excluded.billable_seconds, cost = excluded.cost",
                    (name, status.billable_seconds, status.cost),
                )

    def mark_sent(self, name: str) -> None:
        """Record that a run was sent after its wait for earlier runs. It becomes an ordinary run of
        its target."""
        with self._writing():
            values = (len(AFTER) + 1, RunState.PENDING.value, name)
            self._db.execute(
                "UPDATE runs SET key = substr(key, ?), state = ?, reason = NULL, ended = NULL"
                f" WHERE name = ? AND key GLOB '{AFTER}*'",
                values,
            )
            self._db.execute("UPDATE outlays SET at = ? WHERE name = ?", (self.now(), name))

    def spend(self, name: str, target: str, outlay: Outlay) -> None:
        """Record the outlay of a submission whose request is sent again, in place of that of its
        first request. Raises the error of `outlay.check`, and changes nothing then."""
        with self._writing():
            self._spend(name, target, outlay)

    def outlay_of(self, name: str) -> float | None:
        """Return the most that a submission can spend; None if unknown."""
        row = self._db.execute("SELECT most FROM outlays WHERE name = ?", (name,)).fetchone()
        return None if row is None else as_amount(row[0])

    def set_aside(self, sweep: str) -> float:
        """Return what a sweep on this machine can spend on the trials that it has not sent."""
        of_trials: float = self._db.execute(
            "SELECT TOTAL(most) FROM outlays WHERE sweep = ?", (sweep,)
        ).fetchone()[0]
        return max(0.0, (self.outlay_of(sweep) or 0.0) - of_trials)

    def extend_outlay(
        self, name: str, target: str, more: float, outlay: Outlay, gate: Gate = OPEN
    ) -> None:
        """Add `more` dollars to the outlay of a sweep. Raises the errors of `outlay.check` and
        `Plans.let_through`."""
        with self._writing():
            if gate.sha256:
                self.plans.let_through(name, gate, self.now(), is_covered=False)
            if outlay.check is not None:
                outlay.check(self.committed(target))
            self._db.execute("UPDATE outlays SET most = most + ? WHERE name = ?", (more, name))

    def keep_outputs(self, name: str, outputs: Mapping[str, str]) -> None:
        """Replace the recorded outputs of a run. `outputs` maps their names to their locations."""
        with self._writing():
            self._db.execute("DELETE FROM written WHERE name = ?", (name,))
            self._write_outputs(name, outputs)

    def keep_difference(self, name: str, difference: tuple[bool, str | None]) -> None:
        """Record whether the code of a run differed from its commit, and the hash of the
        difference."""
        with self._writing():
            self._db.execute(
                "UPDATE sent SET dirty = ?, difference = ? WHERE name = ?", (*difference, name)
            )

    def kept(self, name: str) -> JobRecord | None:
        """Return the data that was sent for a run; None if the store has no record of it, or a
        damaged one."""
        row = self._db.execute(
            "SELECT version, file, bundle, commit_id, branch, dirty, difference,"
            " content, files, hourly FROM sent"
            " LEFT JOIN bundles ON bundles.sha256 = sent.bundle"
            " LEFT JOIN money ON money.name = sent.name WHERE sent.name = ?",
            (name,),
        ).fetchone()
        if row is None:
            return None

        *columns, content, files, hourly = row
        if bytes in map(type, columns):  # a damaged row: only `content` and `files` are bytes
            return None
        with suppress(zlib.error, TypeError, ValueError, KeyError):
            in_columns = dict(zip(_IN_COLUMNS, columns, strict=True))
            data = _unpack(content) | in_columns
            for field in ("overrides", "hidden"):
                data[field] = tuple(map(as_text, data[field]))
            if data["dirty"] is not None:
                data["dirty"] = bool(data["dirty"])
            entries = [] if files is None else _unpack(files)
            kept_files = tuple(KeptFile(*entry) for entry in entries)
            record = JobRecord(**data, files=kept_files, hourly=as_amount(hourly))
            if _is_whole(record):
                return record
        return None

    def naming(self, words: Iterable[str]) -> dict[str, list[str]]:
        """Map each word to the names of the runs whose record contains it, newest first. A word is
        ASCII."""
        found = {word: list[str]() for word in words}
        if not found:
            return found
        query = "SELECT name, content FROM sent NATURAL JOIN runs ORDER BY seq DESC"
        for name, content in self._db.execute(query):
            with suppress(zlib.error, TypeError):
                record = zlib.decompress(content)
                for word, names in found.items():
                    if word.encode("ascii") in record:
                        names.append(as_text(name))
        return found

    def money(self, changed_since: int | None = None) -> dict[str, Money]:
        """Return the known costs of each run, by the run's name. With `changed_since`, only of runs
        that changed after that revision."""
        rows = self._of_runs("hourly, billable_seconds, cost", "money", changed_since)
        return {name: Money(*map(as_amount, rest)) for name, *rest in rows}

    def labels(self, kind: str, changed_since: int = -1) -> dict[str, dict[str, str]]:
        """Return the labels of one kind, `tag` or `hyperparameter`, of each run that has some, by
        the run's name. With `changed_since`, only of runs that changed after that revision."""
        labels: dict[str, dict[str, str]] = {}
        rows = self._db.execute(
            "SELECT name, labels.key, value FROM labels JOIN runs USING (name)"
            " WHERE kind = ? AND revision > ?",
            (kind, changed_since),
        )
        for name, key, value in rows:
            labels.setdefault(as_text(name), {})[as_text(key)] = as_text(value)
        return labels

    def annotate(
        self, name: str, note: str | None, tags: Mapping[str, str | None], *, is_pinned: bool | None
    ) -> None:
        """Change what people have added to a run. None keeps the note or the pin, and removes a
        tag."""
        with self._writing():
            for key, value in tags.items():
                self._db.execute(
                    "DELETE FROM labels WHERE name = ? AND kind = 'tag' AND key = ?", (name, key)
                )
                if value is not None:
                    self._db.execute(
                        "INSERT INTO labels (name, kind, key, value) VALUES (?, 'tag', ?, ?)",
                        (name, key, value),
                    )
            self._db.execute(
                "INSERT OR REPLACE INTO annotations (name, note, pinned)"
                " SELECT :name, coalesce(:note, max(note), ''), coalesce(:pinned, max(pinned), 0)"
                " FROM annotations WHERE name = :name",
                {"name": name, "note": note, "pinned": is_pinned},
            )

    def annotations(self, changed_since: int | None) -> dict[str, tuple[str, bool]]:
        """Return the note of each run that has annotations, and whether it is pinned, by the run's
        name. With `changed_since`, only of runs that changed after that revision."""
        rows = self._of_runs("note, pinned", "annotations", changed_since)
        return {as_text(name): (as_text(note), bool(pinned)) for name, note, pinned in rows}

    def count(self) -> int:
        """Return the number of runs without the trials of sweeps."""
        query = f"SELECT count(*) FROM runs WHERE {_NO_TRIAL}"
        return int(self._db.execute(query).fetchone()[0])

    @property
    def revision(self) -> int:
        """The number of changes of runs so far."""
        return int(self._db.execute("SELECT newest FROM revisions").fetchone()[0])

    def folders(self, changed_since: int | None) -> dict[str, str]:
        """Return the folder that each run was submitted from, by the run's name. With
        `changed_since`, only of runs that changed after that revision."""
        rows = self._of_runs("folder", "origins", changed_since)
        return {as_text(name): as_text(folder) for name, folder in rows}

    def _of_runs(self, columns: str, table: str, changed_since: int | None) -> sqlite3.Cursor:
        """Return the name and these columns of each row of a table about runs; with
        `changed_since`, only of runs that changed after that revision."""
        query = f"SELECT name, {columns} FROM {table}"
        if changed_since is None:
            return self._db.execute(query)
        return self._db.execute(
            f"{query} JOIN runs USING (name) WHERE revision > ?", (changed_since,)
        )

    def label_keys(self, kind: str) -> list[str]:
        """Return the keys of all labels of runs of one kind, `tag` or `hyperparameter`."""
        rows = self._db.execute(
            "SELECT DISTINCT CAST(key AS TEXT) FROM labels WHERE kind = ? ORDER BY 1", (kind,)
        )
        return [key for (key,) in rows]

    def get(self, name: str) -> RunRecord | None:
        """Return the run with exactly that name; None if the store has none."""
        return self._first("WHERE name = ?", (name,))

    def starting_with(self, prefix: str) -> list[RunRecord]:
        """Return the newest 50 runs whose name starts with `prefix`, newest first. Trials of sweeps
        are returned only if no other run matches."""
        values = (prefix, prefix + "\U0010ffff")
        begins = "WHERE name >= ? AND name < ?"
        newest = "ORDER BY seq DESC LIMIT 50"
        rows = self._select(f"{begins} AND {_NO_TRIAL} {newest}", values)
        return rows or self._select(f"{begins} {newest}", values)

    def with_key(self, key: str) -> list[RunRecord]:
        return self._select("WHERE key = ? ORDER BY seq DESC", (key,))

    def of_sweep(self, beginning: str) -> list[RunRecord]:
        """Return the runs whose key starts with `beginning`, such as the trials of a sweep, oldest
        first."""
        return self._select(
            "WHERE key >= ? AND key < ? ORDER BY seq", (beginning, beginning + "\U0010ffff")
        )

    def newest(
        self,
        *,
        limit: int | None = None,
        states: Sequence[RunState] = (),
        job: str | None = None,
        where: Sequence[Condition] = (),
        rehearsals: bool = True,
        trials: bool = False,
        changed_since: int | None = None,
    ) -> list[RunRecord]:
        """Return runs, newest first: all, or only those that match `states`, the job name `job` and
        the conditions `where`. With `rehearsals=False`, finished rehearsals are left out. With
        `trials=True`, the trials of sweeps are included. With `changed_since`, only runs that
        changed after that revision of the store."""
        conditions = ["1" if trials else _NO_TRIAL]
        values = list[object]()

        if states:
            marks = ", ".join("?" * len(states))
            conditions.append(f"state IN ({marks})")
            values += [state.value for state in states]
        if job is not None:
            conditions.append("job_name = ?")
            values.append(job)
        if changed_since is not None:
            conditions.append("revision > ?")
            values.append(changed_since)
        if not rehearsals:
            conditions.append(f"NOT ({_OLD_REHEARSAL})")
        for condition in where:
            on_labels, compared = condition.sql
            conditions.append(
                f"EXISTS (SELECT 1 FROM labels WHERE labels.name = runs.name AND {on_labels})"
            )
            values += compared

        values.append(-1 if limit is None else limit)
        condition_text = " AND ".join(conditions)
        return self._select(f"WHERE {condition_text} ORDER BY seq DESC LIMIT ?", values)

    def unsettled(self, changed_since: int) -> list[RunRecord]:
        """Return the runs that have not ended, and those that have ended without a main metric
        since a revision of the store, which may have one. Trials are included, newest first."""
        return self._select(
            f"WHERE state NOT IN ({_ENDED})"
            " OR (main IS NULL AND started IS NOT NULL AND revision > ?) ORDER BY seq DESC",
            (changed_since,),
        )

    def newest_from(self, origin: Origin) -> RunRecord | None:
        """Return the newest run that was submitted from the folder of `origin` or a folder inside
        it, or for a job file in these folders. Return None if no such run exists.

        A run from the same terminal as `origin` takes precedence over newer runs from other
        terminals, and of these a run from the folder itself over newer runs from the folders inside
        it. A finished rehearsal is returned only if no other run matches.
        """
        here = origin.folder
        stem = here.rstrip("/")  # empty if `here` is the root
        inside = (here, f"{stem}/", f"{stem}0")  # `0` is the character after `/`
        return self._first(
            f"""
            NATURAL JOIN origins
            WHERE folder = ? OR (folder >= ? AND folder < ?)
                OR project = ? OR (project >= ? AND project < ?)
            ORDER BY {_OLD_REHEARSAL},
                CASE
                    WHEN terminal = ? AND terminal != '' THEN 0
                    WHEN folder = ? OR project = ? THEN 1
                    ELSE 2
                END,
                seq DESC LIMIT 1
            """,
            (*inside, *inside, origin.terminal, here, here),
        )

    def newest_in(self, terminal: str) -> RunRecord | None:
        """Return the newest run that was submitted in a terminal, from any folder; None if no such
        run exists."""
        return self._first(
            "NATURAL JOIN origins WHERE terminal = ? AND terminal != '' ORDER BY seq DESC LIMIT 1",
            (terminal,),
        )

    def origin_of(self, name: str) -> Origin:
        """Return the origin of a run. If the origin is unknown, all its fields are empty."""
        row = self._db.execute(
            "SELECT folder, project, terminal FROM origins WHERE name = ?", (name,)
        ).fetchone()
        labels = self._db.execute(
            "SELECT kind, key, value FROM labels WHERE name = ? ORDER BY kind, key", (name,)
        )
        found = tuple(Label(*map(as_text, label)) for label in labels)
        folder, project, terminal = map(as_text, row or NOWHERE[:3])
        return Origin(folder, project, terminal, found)

    def unfinished(self) -> list[RunRecord]:
        """Return the runs whose submission has not reached stage `reported`: it is in progress, or
        was interrupted."""
        return self._select("WHERE stage != 'reported' ORDER BY seq", ())

    def outputs_of(self, name: str) -> dict[str, str]:
        """Return the location, a path or URI, of each output of a run. The keys are `model`,
        `checkpoint` and `outputs/NAME`."""
        rows = self._db.execute(
            "SELECT what, place FROM written WHERE name = ? ORDER BY what", (name,)
        )
        return {as_text(what): as_text(place) for what, place in rows}

    def journal(self, name: str) -> list[tuple[str, Moment]]:
        """Return each stage that a submission reached, with the time."""
        rows = self._db.execute(
            "SELECT stage, at, boot, uptime FROM journal WHERE name = ? ORDER BY id", (name,)
        )

        def seconds(value: object) -> float:
            return value if isinstance(value, int | float) else 0.0

        moments = []
        for stage, at, boot, uptime in rows:
            moment = Moment(seconds(at), as_text(boot), seconds(uptime))
            moments.append((stage, moment))
        return moments

    def seconds_since(self, name: str, stage: str, *, at_least: bool = False) -> float:
        """Return the seconds since a submission last reached a stage; infinity if it never reached
        the stage.

        With `at_least`, count only the seconds that have certainly passed, even if the clock was
        changed.
        """
        for reached, moment in reversed(self.journal(name)):
            if reached == stage:
                now = self._clock()
                return now.least_elapsed_since(moment) if at_least else now.elapsed_since(moment)
        return inf

    def lock(self, name: str) -> ProcessLock | None:
        """Take the lock of a submission. Return None if another process holds the lock. A held lock
        shows that the submitting process is alive."""
        return ProcessLock.take(self.folder / "submitting" / f"{name}.lock")

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        return self._clock().wall

    def _spend(self, name: str, target: str, outlay: Outlay) -> bool:
        """Record the outlay of a submission, and return whether it is a trial that its sweep has
        money for. Raises the error of `outlay.check`, which is not asked for such a trial."""
        self._db.execute("DELETE FROM outlays WHERE name = ?", (name,))  # it counts once
        is_paid = bool(outlay.sweep) and not exceeds(
            outlay.most or 0.0, self.set_aside(outlay.sweep)
        )
        if outlay.check is not None and not is_paid:
            outlay.check(self.committed(target))
        self._db.execute(
            "INSERT INTO outlays (name, target, at, most, pool, hourly, sweep)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (name, target, self.now(), *outlay[:4]),
        )
        return is_paid

    def committed(self, target: str) -> float:
        """Return what the submissions of the last 24 hours to a target can spend: the bill of a run
        that has one, else the most; infinity if that is not known. A sweep on this machine and a
        run that waits for others count until they have ended: they start runs later."""
        rows = self._db.execute(
            "SELECT outlays.name, key, state, most, pool, outlays.hourly,"
            " money.hourly, billable_seconds, cost"
            " FROM outlays LEFT JOIN runs USING (name) LEFT JOIN money USING (name)"
            " WHERE outlays.target = ? AND (at > ? OR (state NOT IN"
            f" ({_ENDED}) AND ({_SENDS_LATER})))",
            (target, self.now() - _DAY),
        ).fetchall()

        total = 0.0
        for name, key, state, *amounts in rows:
            most, pool, price, *bill = map(as_amount, amounts)
            money = Money(*bill)
            billed = money.amount
            has_ended = state not in UNFINISHED
            if as_text(key).startswith((SWEEP, CAPACITY)):
                left = inf if most is None else self.set_aside(name)
                total += 0.0 if has_ended else left
            elif has_ended and billed is not None:
                # the project may have lowered the price of a bill since
                least = (price or 0.0) * (money.billable_seconds or 0.0) / 3600
                total += max(billed, least) + (pool or 0.0)
            else:
                total += inf if most is None else most
        return total

    def _check_still_there(self) -> None:
        """Raise StoreError if the database's file is not the one that was opened."""
        if location_in(self.folder) != self._location:
            raise StoreError(
                f"the run store in `{self.folder}` was removed or replaced while a job was "
                "being submitted",
                hint="`cloudtrain ps` shows all known runs; submit the job again",
                code="CT961",
            )

    def _write_outputs(self, name: str, outputs: Mapping[str, str]) -> None:
        places = [(name, what, place) for what, place in outputs.items()]
        self._db.executemany(
            "INSERT OR REPLACE INTO written (name, what, place) VALUES (?, ?, ?)", places
        )

    def _write_job_record(self, name: str, record: JobRecord) -> None:
        """Write the record, and the list of its code's files unless an earlier run has the same
        code."""
        columns = [getattr(record, field) for field in _IN_COLUMNS]
        content = {field: getattr(record, field) for field in _IN_CONTENT}
        self._db.execute(
            "INSERT OR REPLACE INTO sent"
            " (name, version, file, bundle, commit_id, branch, dirty, difference, content)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (name, *columns, _pack(content)),
        )

        known = self._db.execute(
            "SELECT 1 FROM bundles WHERE sha256 = ?", (record.bundle,)
        ).fetchone()
        if record.files and known is None:
            files = _pack([list(file) for file in record.files])
            self._db.execute(
                "INSERT INTO bundles (sha256, files) VALUES (?, ?)", (record.bundle, files)
            )

        self._db.execute(
            "INSERT OR REPLACE INTO money (name, hourly) VALUES (?, ?)", (name, record.hourly)
        )

    def _delete(self, name: str, *tables: str) -> None:
        """Delete a run's rows, and the lists of code files that no run uses any more."""
        for table in tables:
            self._db.execute(f"DELETE FROM {table} WHERE name = ?", (name,))
        self._db.execute(
            "DELETE FROM bundles"
            " WHERE NOT EXISTS (SELECT 1 FROM sent WHERE sent.bundle = bundles.sha256)"
        )

    def _note(self, name: str, stage: str) -> None:
        """Add a stage to the journal of a submission, with the time."""
        values = (name, stage, *self._clock())
        self._db.execute(
            "INSERT INTO journal (name, stage, at, boot, uptime) VALUES (?, ?, ?, ?, ?)", values
        )

    def _select(self, tail: str, values: Sequence[object]) -> list[RunRecord]:
        """Return the runs that a query finds. `tail` is the query from `WHERE` on, `values` are
        those of its placeholders."""
        rows = self._db.execute(f"SELECT {_COLUMNS} FROM runs {tail}", tuple(values))
        now = self.now()
        return [RunRecord.of_row(row, now) for row in rows]

    def _first(self, tail: str, values: Sequence[object]) -> RunRecord | None:
        return next(iter(self._select(tail, values)), None)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Run a block as one transaction, and translate its errors."""
        with translate_errors(self.folder), transaction(self._db):
            yield


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run a block in one transaction. If the block or its COMMIT fails, the transaction ends, so
    that the next one can begin."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # a full disk has rolled the transaction back already
            db.execute("ROLLBACK")
        raise


def _is_whole(record: JobRecord) -> bool:
    """Return whether the parts of a record have the types that cloudtrain writes. Raises KeyError
    if a part is missing."""
    plan = record.plan
    mappings = (record.job, record.settings, plan, plan["request"], plan["summary"])
    names = (plan["sha256"], plan["run_name"], plan["target"])
    texts = (record.kind, record.settings["type"], record.rerun_of or "", *names)
    if not all(isinstance(part, str) for part in texts):
        return False
    return all(isinstance(part, dict) for part in (*mappings, *plan["uploads"]))


def _pack(value: object) -> bytes:
    """Compress JSON data for the store. Keys keep their order."""
    content = json.dumps(value, separators=(",", ":"))
    return zlib.compress(content.encode("ascii"), 1)


def _unpack(data: bytes) -> Any:
    return json.loads(zlib.decompress(data))


@contextmanager
def translate_errors(folder: Path) -> Iterator[None]:
    """Replace the errors of SQLite by a `StoreError` that names the store's folder."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        message = f"the run store in `{folder}` cannot be used: {error}"
        raise StoreError(
            message,
            hint="free disk space, or move the folder away to start an empty store",
            code="CT961",
        ) from error
