"""Compiles a list of alternatives to a plan, as `lifecycle.prepare` does for a job.

Every entry is an ordinary job with an ordinary plan: the job as it is, and the job with the changes
of each alternative. The plan of the list has the request of each try, under the name that its run
will have.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from cloudtrain.documents import JsonObject
from cloudtrain.errors import JobError, Problem
from cloudtrain.job.file import anchored, fields_of
from cloudtrain.job.model import format_duration
from cloudtrain.job.overrides import override
from cloudtrain.job.training import Alternative, Capacity, TrainingJob
from cloudtrain.lifecycle.capacity.service import CapacityService, try_key
from cloudtrain.lifecycle.detached.waiting import Order, Try
from cloudtrain.lifecycle.past.sent import JobSource, keep_plan
from cloudtrain.lifecycle.preparing.prepare import NAMELESS, PlaceOf, Ready, located, prepare
from cloudtrain.lifecycle.store.records import JobRecord, Label
from cloudtrain.lifecycle.sweeps.service import trial_name
from cloudtrain.machines.spending import Spending
from cloudtrain.plans.plan import Finding, Level, Plan
from cloudtrain.plans.states import CAPACITY, RunRef
from cloudtrain.system.plugins import has_part, part
from cloudtrain.targets.capacity import CapacityWords
from cloudtrain.targets.common.compiling import run_name, submission_key
from cloudtrain.targets.where import Where

_WAIT = 15 * 60.0
_SPOT_WAIT = 30 * 60.0
"""Seconds that a paid try waits for capacity, if the job does not say it."""

_OF_ONE_ENTRY = ("target", "run", "cost")
"""Rows of the first entry's summary that the list's own rows replace."""


def prepare_list(
    job: TrainingJob, where: Where, *, ignore: Sequence[str], place_of: PlaceOf
) -> ReadyList:
    """Prepare every entry of a list for compiling.

    Raises:
        JobError: an alternative has a mistake; the message has its number.
    """
    capacity = job.capacity
    assert capacity is not None, "the caller has looked"
    original = anchored(job, where.here.cwd)
    assert isinstance(original, TrainingJob), "anchoring keeps the kind"
    alone = original.model_copy(update={"capacity": None})

    entries = [prepare(alone, where, ignore=ignore, place_of=place_of)]
    for number, alternative in enumerate(capacity.alternatives, 2):
        try:
            its_where = _where_of(alternative, where)
            entry = prepare(
                _changed(alone, alternative, where), its_where, ignore=ignore, place_of=place_of
            )
            entry.key  # noqa: B018 - compiles it
            entries.append(entry)
        except JobError as error:
            problems = []
            for problem in error.problems:
                problems.append(replace(problem, message=f"try {number}: {problem.message}"))
            raise JobError(problems) from None
    problems = _misplaced(entries)
    if problems:
        raise located(problems, place_of)
    return ReadyList(original, capacity, tuple(entries))


def _where_of(alternative: Alternative, where: Where) -> Where:
    """Return where an alternative runs. No alternative raises a cap."""
    name = alternative.target or where.target.name
    here = where.here
    if name != where.target.name or alternative.profile is not None:
        settings = here.target(name, profile=alternative.profile, **alternative.settings)
    elif alternative.settings:
        settings = where.settings.replace(**alternative.settings)
    else:
        return where
    settings = here.capped(settings, alternative.profile)
    return Where.of(settings, here, profile=alternative.profile)


def _changed(job: TrainingJob, alternative: Alternative, where: Where) -> TrainingJob:
    """Return the job with the changes of an alternative."""
    data, changes = override(deepcopy(fields_of(job)), alternative.set, TrainingJob)
    if changes.problems:
        raise JobError(changes.problems)
    changed = TrainingJob(**data).from_folder(job.folder)
    placed = anchored(changed, job.folder or where.here.cwd)
    assert isinstance(placed, TrainingJob), "anchoring keeps the kind"
    return placed


def _misplaced(entries: Sequence[Ready]) -> list[Problem]:
    """Return a problem for each entry that would never be reached, or that is there twice."""
    problems = []
    first_with = dict[str, int]()
    for index, entry in enumerate(entries):
        path = ("capacity", "alternatives", index - 1)
        first = first_with.setdefault(entry.key, index)
        if first < index:
            message = f"try {index + 1} sends the same as try {first + 1}"
            problems.append(
                Problem(path, message, "remove it, or write what differs under `set`", code="CT074")
            )
        if index + 1 < len(entries) and not has_part(entry.where.target, CapacityWords):
            title = entry.where.target.title
            message = f"{title} never lacks capacity, so what follows try {index + 1} never runs"
            problems.append(Problem(path, message, "put it last", code="CT074"))
    return problems


@dataclass(frozen=True, eq=False)
class ReadyList:
    """A list of alternatives with all that its plan depends on.

    Attributes:
        original: the job as the user wrote it, with absolute paths.
        entries: the job as it is, then each alternative.
    """

    waits_for = ()
    """The list waits itself for the runs that an entry reads from; see `order`."""

    original: TrainingJob
    capacity: Capacity
    entries: tuple[Ready, ...]

    @property
    def first(self) -> Ready:
        """The job as it is."""
        return self.entries[0]

    @property
    def where(self) -> Where:
        """Where the first entry that costs money runs: caps and approvals are asked for it."""
        return self.entries[self._home].where

    @cached_property
    def _home(self) -> int:
        for index, entry in enumerate(self.entries):
            if entry.where.target.facts.is_paid:
                return index
        return 0

    @cached_property
    def key(self) -> str:
        """Hash of the plans of all entries without their run names. Lists with equal keys are the
        same submission."""
        drafts = tuple(entry.draft for entry in self.entries)
        return CAPACITY + submission_key(self._whole(NAMELESS, drafts))

    @property
    def labels(self) -> tuple[Label, ...]:
        """The labels by which users search for the list: those of the job as it is."""
        return self.first.labels

    @property
    def service(self) -> CapacityService:
        return self.service_keeping(JobSource())

    def service_keeping(self, source: JobSource) -> CapacityService:
        """Return the service for lists, which records the job's source with each try."""
        here = self.where.here
        trees = [entry.tree for entry in self.entries]
        return CapacityService(
            here.environ,
            here.state_dir,
            order_of=lambda plan: self.order(plan, source),
            trees=trees,
        )

    @cached_property
    def waits(self) -> tuple[float | None, ...]:
        """How many seconds each entry waits for capacity; None for no limit. The last one waits
        without a limit, unless the list begins again."""
        waits = list[float | None]()
        given = [self.capacity.wait]
        given += [alternative.wait for alternative in self.capacity.alternatives]
        for entry, wait in zip(self.entries, given, strict=True):
            is_last = entry is self.entries[-1] and self.capacity.give_up_after is None
            if wait is not None or is_last or not entry.where.target.facts.is_paid:
                waits.append(wait)
            else:
                waits.append(_WAIT if getattr(entry.work, "spot", None) is None else _SPOT_WAIT)
        return tuple(waits)

    @cached_property
    def _plans(self) -> dict[tuple[str, bool], list[Plan]]:
        return {}

    def plans(self, name: str, *, is_asked: bool = False) -> Sequence[Plan]:
        """Return the plan of each entry in the list `name`, under the name of its first try."""
        known = self._plans.setdefault((name, is_asked), [])
        for number, entry in enumerate(self.entries[len(known) :], len(known) + 1):
            known.append(entry.named(trial_name(name, number), is_asked=is_asked))
        return known

    def plan(self, counter: int, salt: str, *, is_asked: bool = False) -> Plan:
        """Return the plan of the list's run number `counter`, with the findings of every entry that
        need only this machine; see `Ready.plan`."""
        submitter = self.where.here.submitter
        name = run_name(self.original.name, self.key, submitter, salt, counter)
        plans = self.plans(name, is_asked=is_asked)
        notes = dict[str, None]()
        settings = dict[str, None]()
        hidden = dict[str, None]()
        for plan in plans:
            notes |= dict.fromkeys(plan.notes)
            settings |= dict.fromkeys(plan.settings)
            hidden |= dict.fromkeys(plan.hidden)
        whole = self._whole(name, plans)
        numbers = [plan.numbers for plan in plans]
        dearest = max(numbers, key=lambda item: inf if item.per_hour is None else item.per_hour)
        of_first = [row for row in plans[0].summary if row[0] not in _OF_ONE_ENTRY]
        return replace(
            whole,
            summary=(*self._rows(plans), *of_first),
            findings=_merged([plan.findings for plan in plans]),
            notes=tuple(notes),
            settings=tuple(settings),
            numbers=dearest._replace(at_most=self.spending(whole).most),
            hidden=tuple(hidden),
            environment=plans[0].environment,
        )

    def check_online(self, plan: Plan, *, ask: bool = True, may_wait: bool = False) -> Plan:
        """Return the plan with the findings of each entry's target about it; see
        `Ready.check_online`."""
        if plan.errors:
            return plan
        findings = []
        rows = dict(plan.summary)
        plans = self.plans(plan.run_name, is_asked=ask)
        for index, (entry, its_plan) in enumerate(zip(self.entries, plans, strict=True)):
            checked = entry.check_online(its_plan, ask=ask, may_wait=may_wait)
            words = part(entry.where.target, CapacityWords)
            for finding in checked.findings:
                if words is not None and finding.code in words.starts:
                    rows[f"try {index + 1}"] += f"\n{finding.message}"
            findings.append(checked.findings)
        plan = replace(plan, summary=tuple(rows.items()))
        return plan.with_findings(_merged(findings))

    def spending(self, plan: Plan) -> Spending:
        """Return the most that a list can spend, which is what its dearest entry can: only one
        runs. It is unknown if that of any entry is."""
        plans = self.plans(plan.run_name)
        every = [entry.spending(its) for entry, its in zip(self.entries, plans, strict=True)]
        return max(every, key=lambda item: inf if item.most is None else item.most)

    def record(self, plan: Plan, source: JobSource) -> JobRecord:
        """Return the record of the list. Its hourly price is left out, because each try has its own
        record."""
        records = self._records(plan, source)
        shown = replace(plan, processes=()).to_dict()
        del shown["processes"]
        for row, record in zip(shown["request"]["tries"], records, strict=True):
            row["request"] = record.plan["request"]
        fields = {**records[0].job, "capacity": fields_of(self.original)["capacity"]}
        return records[0]._replace(job=fields, plan=shown, hourly=None)

    def _records(self, plan: Plan, source: JobSource) -> list[JobRecord]:
        records = []
        for entry, its_plan in zip(self.entries, self.plans(plan.run_name), strict=True):
            records.append(keep_plan(entry, entry.original, its_plan, source))
        return records

    def order(self, plan: Plan, source: JobSource) -> Order:
        """Return what the watcher of the list needs."""
        plans = self.plans(plan.run_name)
        records = self._records(plan, source)
        tries = []
        after = dict[RunRef, None]()
        for index, entry in enumerate(self.entries):
            spending = entry.spending(plans[index])
            content: JsonObject = records[index]._asdict()
            content["files"] = [list(file) for file in records[index].files]
            item = Try(
                _label(plans[index], entry),
                self.waits[index],
                plans[index],
                entry.tree.sha256,
                (spending.most, spending.pool, spending.hourly),
                content,
            )
            tries.append(item)
            after |= dict.fromkeys(entry.waits_for)
        return Order(
            replace(plan, uploads=()),
            self.first.tree.sha256,
            try_key(plan.run_name, 0),
            self.where.here.submitter,
            tuple(after),
            tuple(tries),
            self.capacity.give_up_after,
        )

    def _whole(self, name: str, plans: Sequence[Plan]) -> Plan:
        """Return the plan of the list without its summary and findings."""
        tries = []
        for plan, wait in zip(plans, self.waits, strict=True):
            row: JsonObject = {"target": plan.target, "place": plan.place, "run": plan.run_name}
            tries.append({**row, "wait": wait, "plan": plan.sha256, "request": plan.request})
        home = plans[self._home]
        return Plan(
            target=home.target,
            run_name=name,
            job_name=self.original.name,
            request={"tries": tries, "give_up_after": self.capacity.give_up_after},
            uploads=plans[0].uploads,
            processes=plans[0].processes,
            place=home.place,
        )

    def _rows(self, plans: Sequence[Plan]) -> list[tuple[str, str]]:
        """Return the rows at the top of the plan: each entry with its price and its wait."""
        rows = [("tries", f"{len(plans)}, one after the other until one has capacity; one runs")]
        for index, plan in enumerate(plans):
            wait = self.waits[index]
            words = [_label(plan, self.entries[index]), dict(plan.summary).get("cost", "")]
            if wait is not None:
                words.append(f"waits {format_duration(int(wait))} for capacity")
            words.append(f"run {plan.run_name}")
            rows.append((f"try {index + 1}", "\n".join(filter(None, words))))
        limit = self.capacity.give_up_after
        if limit is not None:
            rows.append(("gives up", f"after {format_duration(limit)}; until then it begins again"))
        return rows


def _label(plan: Plan, entry: Ready) -> str:
    """Return the machines and the target of an entry: `2 x ml.g5.12xlarge, spot, on sagemaker`."""
    machines, _, _ = dict(plan.summary).get("instances", "1 machine").partition(" (")
    is_spot = getattr(entry.work, "spot", None) is not None
    if is_spot and has_part(entry.where.target, CapacityWords):  # nobody takes this machine away
        machines += ", spot,"
    return f"{machines} on {plan.target} {plan.place}".strip()


def _merged(findings: Sequence[Sequence[Finding]]) -> tuple[Finding, ...]:
    """Return the findings of all entries. Those of the first one are as they are; others have the
    number of their try."""
    merged = list(findings[0])
    for number, own in enumerate(findings[1:], 2):
        for finding in own:
            if finding not in findings[0]:
                merged.append(finding._replace(message=f"try {number}: {finding.message}"))
    return tuple(sorted(merged, key=lambda item: item.level is not Level.ERROR))
