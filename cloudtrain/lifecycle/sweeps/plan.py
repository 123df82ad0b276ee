"""Compiles a sweep to a plan, as `lifecycle.prepare` does for a job.

The plan of a sweep is the request to the target's own tuner, or the specification for cloudtrain's
driver. Its findings are those of the first trial, because every trial runs the same code on the
same machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from cloudtrain.errors import JobError, Problem, QueueTooSmall, ValuePath
from cloudtrain.job.file import anchored
from cloudtrain.job.model import format_duration
from cloudtrain.job.sweep import MAX_TRIALS, Sweep
from cloudtrain.lifecycle.preparing.prepare import (
    NAMELESS_SWEEP,
    PlaceOf,
    Ready,
    located,
    nowhere,
    prepare,
)
from cloudtrain.lifecycle.sweeps.service import Specification, SweepService, trial_name
from cloudtrain.lifecycle.sweeps.study import needs_optuna, propose, require_optuna, shown_values
from cloudtrain.machines.spending import Spending, exceeds
from cloudtrain.plans.plan import Finding, Plan, PlannedTrial
from cloudtrain.plans.states import SWEEP, TUNER
from cloudtrain.rules.engine import finding_of
from cloudtrain.rules.machines import change_for
from cloudtrain.rules.values import values_to_hide
from cloudtrain.system.plugins import part
from cloudtrain.targets.common.compiling import run_name, submission_key
from cloudtrain.targets.contract import Service, SweepCompiler, TunerMaker
from cloudtrain.targets.where import Where

if TYPE_CHECKING:
    from cloudtrain.lifecycle.store.records import Label


_SHOWN = 3
"""Number of trials that a plan shows."""

_REPLACED_ROWS = ("target", "run", "cost", "max cost")
"""Rows of a trial's summary that the sweep's own summary replaces."""


def prepare_sweep(
    sweep: Sweep, where: Where, *, ignore: Sequence[str] = (), place_of: PlaceOf = nowhere
) -> ReadySweep:
    """Prepare a sweep for compiling, together with the job of its first trial."""
    if sweep.strategy == "grid" and sweep.trial_count > MAX_TRIALS:
        message = (
            f"the grid has {sweep.space.grid_words} combinations, but a sweep has at most "
            f"{MAX_TRIALS:,} trials"
        )
        hint = "list fewer values, or add `trials: 100`"
        problem = Problem(("search",), message, hint, code="CT060")
        raise located([problem], place_of)

    if sweep.job.capacity is not None:
        message = "the trials of a sweep have no alternatives"
        problem = Problem(("job", "capacity"), message, "remove `capacity`", code="CT074")
        raise located([problem], place_of)

    original_job = anchored(sweep.job.from_folder(sweep.folder), where.here.cwd)
    job = sweep.trial_job(propose(sweep, 1)).from_folder(sweep.folder)

    def in_job(path: ValuePath) -> str | None:
        return place_of(_path_in_sweep(sweep, path))

    # Without cloudtrain's queue, parallel trials would share the first GPU.
    queued = where
    fields = type(where.settings).model_fields
    if "queue" in fields and "queue" not in where.settings.model_fields_set:
        queued = replace(where, settings=where.settings.replace(queue=True))
    first = prepare(job, queued, ignore=ignore, place_of=in_job)
    # without the queue, a trial may ask for more than this machine has
    if queued is not where and _is_too_large(first):
        first = prepare(job, where, ignore=ignore, place_of=in_job)
    if first.context.after:
        before = first.context.after[0]
        message = f"a sweep cannot wait for other runs, and `{before}` has not ended"
        hint = f"wait for it: `cloudtrain wait {before}`"
        problem = Problem(("job", "inputs"), message, hint, code="CT021")
        raise located([problem], place_of)

    first = replace(first, times=sweep.trial_count)
    original = sweep.model_copy(update={"job": original_job})
    sweep = sweep.model_copy(update={"job": first.work})
    return ReadySweep(sweep, original, first, place_of)


def _is_too_large(first: Ready) -> bool:
    """Return whether a trial asks for more GPUs or CPU slots than the queue of this machine has."""
    try:
        first.draft  # noqa: B018 - compiles it
    except JobError as error:
        return any(isinstance(problem, QueueTooSmall) for problem in error.problems)
    return False


def _path_in_sweep(sweep: Sweep, path: ValuePath) -> ValuePath:
    """Convert the path of a field in a trial's job to its path in the sweep."""
    if path == ("trials",):
        return path
    if path[:1] == ("hyperparameters",) and path[1:2] and path[1] in sweep.search:
        return ("search", path[1])
    return ("job", *path)


@dataclass(frozen=True)
class ReadySweep:
    """A sweep with all that its plan depends on.

    Attributes:
        sweep: the sweep. In its job, paths are absolute, and references to earlier runs are
            replaced by storage paths.
        original: the sweep as the user wrote it, with absolute paths.
        first: the job of the first trial.
    """

    waits_for = ()
    """A sweep never waits for other runs."""

    sweep: Sweep
    original: Sweep
    first: Ready
    place_of: PlaceOf

    @property
    def where(self) -> Where:
        return self.first.where

    @cached_property
    def _tuner(self) -> tuple[Plan | None, str]:
        """The plan for the target's own tuner, or None if cloudtrain's driver runs the sweep; and
        the reason for this choice."""
        sweep = self.sweep
        target = self.where.target
        if sweep.driver == "cloudtrain":
            return None, "the sweep has `driver: cloudtrain`"

        compile_sweep = part(target, SweepCompiler)
        try:
            if compile_sweep is None:
                problem = Problem(
                    ("driver",),
                    f"{target.title} has no tuner of its own",
                    "remove `driver: service`",
                    code="CT061",
                )
                raise JobError([problem])
            context = self.first.context._replace(run_name=NAMELESS_SWEEP)
            plan = compile_sweep(sweep, self.where.settings, context)
        except JobError as error:
            if sweep.driver == "service" or any(item.code != "CT061" for item in error.problems):
                raise located(error.problems, self.place_of) from None
            return None, error.problems[0].message

        if sweep.driver == "service":
            return plan, "the sweep has `driver: service`"
        return plan, "it supports everything that the sweep uses"

    @property
    def is_driven(self) -> bool:
        return self._tuner[0] is None

    @cached_property
    def draft(self) -> Plan:
        """The plan without its run name: the request to the target's tuner, or the specification
        for the driver."""
        plan = self._tuner[0]
        if plan is not None:
            return plan

        specification = Specification(NAMELESS_SWEEP, self.sweep, self.first)
        count = self.sweep.trial_count
        plans = []
        shown = []
        for number in range(1, min(_SHOWN, count) + 1):
            values = propose(self.sweep, number)
            plans.append(specification.trial_plan(number, values))
            name = trial_name(NAMELESS_SWEEP, number)
            shown.append(PlannedTrial(number, name, shown_values(values), count))

        first = plans[0]
        return Plan(
            target=self.where.target.name,
            run_name=NAMELESS_SWEEP,
            job_name=self.sweep.name,
            request=specification.to_json(),
            uploads=first.uploads,
            processes=first.processes,
            summary=tuple(row for row in first.summary if row[0] not in _REPLACED_ROWS),
            place=first.place,
            trials=tuple(shown),
        )

    @cached_property
    def key(self) -> str:
        """The submission key. Two submissions with equal keys are the same sweep."""
        return (SWEEP if self.is_driven else TUNER) + submission_key(self.draft)

    @property
    def service(self) -> Service:
        """The service for the target's tuner, or for cloudtrain's own driver."""
        here = self.where.here
        if self.is_driven:
            specification = Specification(NAMELESS_SWEEP, self.sweep, self.first)
            return SweepService(here.environ, here.state_dir, specification=specification)
        make_tuner = part(self.where.target, TunerMaker)
        assert make_tuner is not None, "a target that compiles sweeps has a tuner"
        return make_tuner(here.environ)

    @property
    def labels(self) -> tuple[Label, ...]:
        """The labels by which users search for the sweep: those of its job, without the
        hyperparameters that trials change."""
        return tuple(label for label in self.first.labels if label.key not in self.sweep.search)

    def plan(self, counter: int, salt: str, *, is_asked: bool = False) -> Plan:
        """Return the plan of the sweep's run number `counter`, with the findings of checks that
        need only this machine; see `Ready.plan`."""
        first = self.first.plan(1, salt, is_asked=is_asked)
        name = run_name(self.sweep.name, self.key, self.where.here.submitter, salt, counter)
        plan = self.draft.renamed(name)
        spending = self.spending(plan)
        self._check_budget(spending)

        who = f"{self.where.target.title}'s own tuner"
        if self.is_driven:
            who = "cloudtrain, on this machine"
            if needs_optuna(self.sweep):
                require_optuna()

        summary = _summary(self.sweep, plan, f"{who}: {self._tuner[1]}", spending.most)
        notes = dict.fromkeys((*plan.notes, *first.notes))
        findings = list(map(self._placed, first.findings))
        count = self.sweep.trial_count
        for field in ("trials", "parallel"):
            number = getattr(self.sweep, field) or 0
            if number > count:
                message = f"`{field}` is {number:,}, and the sweep has {count:,} trials in all"
                hint = f"write `{field}: {count}`"
                findings.append(finding_of("CT532", message, hint, (field,)))
        return replace(
            plan,
            summary=(*summary, *plan.summary),
            notes=tuple(notes),
            uploads=(*plan.uploads, *self.first.uploads),
            findings=tuple(findings),
            settings=first.settings,
            numbers=first.numbers._replace(at_most=spending.most),
            hidden=values_to_hide(self.first.work.view),
        )

    def check_online(
        self,
        plan: Plan,
        *,
        ask: bool = True,
        may_wait: bool = False,  # noqa: ARG002
    ) -> Plan:
        """Return the plan with the target's findings about the first trial. With `ask=False`, or if
        the plan has errors, return it unchanged. `may_wait` has no effect, because a sweep never
        waits for other runs."""
        if plan.errors or not ask:
            return plan
        first = self.first.check_online(self.first.draft.renamed(plan.run_name), ask=ask)
        return plan.with_findings((*plan.findings, *first.findings))

    def spending(self, plan: Plan) -> Spending:
        if self.is_driven:
            return self.first.spending(self.first.draft)
        return replace(self.first, times=1).spending(plan)  # the request says how many trials

    def _check_budget(self, spending: Spending) -> None:
        """Raise JobError if the trials can cost more than `max_cost`, or if that is not known."""
        budget = self.sweep.max_cost
        cost = spending.most
        if budget is None or (cost is not None and not exceeds(cost, budget)):
            return
        if cost is None:
            message = "the cost of a trial is not known, so `max_cost` cannot be enforced"
            hint = (
                "add `max_runtime` to the job, and the price of its instance type to "
                "`instances.toml`"
            )
        else:
            count = self.sweep.trial_count
            message = f"{count} trials can cost ${cost:,.2f}, and `max_cost` is ${budget:,.2f}"
            hint = f"{change_for(spending, budget)[1]}, or raise `max_cost`"
        raise located([Problem(("max_cost",), message, hint, code="CT062")], self.place_of)

    def _placed(self, finding: Finding) -> Finding:
        """Return a finding about the first trial's job with its path in the sweep."""
        if not finding.path:
            return finding
        return finding._replace(path=_path_in_sweep(self.sweep, finding.path))


def _summary(sweep: Sweep, plan: Plan, driver: str, cost: float | None) -> list[tuple[str, str]]:
    """Return the rows at the top of the plan. A `cost` of 0 is not shown."""
    goal = "none: every trial"
    if sweep.objective is not None:
        goal = f"{sweep.objective.goal} `{sweep.objective.metric}`"
    count = f"{sweep.trial_count:,}, {min(sweep.parallel, sweep.trial_count)} at a time"
    if sweep.max_runtime is not None:
        count += f", none started after {format_duration(sweep.max_runtime)}"
    ranges = [f"{name}: {item}" for name, item in sweep.space.ranges.items()]
    rows = [
        ("target", plan.target),
        ("driver", driver),
        ("strategy", sweep.strategy),
        ("objective", goal),
        ("trials", count),
        ("search", "\n".join(ranges)),
    ]
    if cost != 0.0:
        text = "not known" if cost is None else f"up to ${cost:,.2f} for all trials at list prices"
        if sweep.max_cost is not None:
            text += f", and `max_cost` is ${sweep.max_cost:,.2f}"
        rows.append(("cost", text))
    return rows
