"""Rehearsal of a preemption on this machine. It tests whether the training survives a spot interruption before you pay
for one.

A rehearsal consists of three runs:

whole         the job runs without interruption; a run that has already succeeded can be used instead
interrupted   the same job gets SIGTERM at a chosen step, as in a spot interruption, and SIGKILL after the grace period
resumed       the same job runs again, with only the checkpoint folder of the interrupted run
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cloudtrain.errors import TargetError, UsageError, did_you_mean
from cloudtrain.job.data import Checkpoint
from cloudtrain.lifecycle.curves import TOLERANCE, Comparison, Verdict, curve_of, loss_names
from cloudtrain.lifecycle.run import Run
from cloudtrain.lifecycle.submit import repeat, submit
from cloudtrain.plans.plan import Plan, Upload, map_texts
from cloudtrain.plans.states import REHEARSAL, Metrics, RunRef, RunState, RunStatus
from cloudtrain.runtime.holding import VARIABLE as HOLD_AT_STEP
from cloudtrain.system.plugins import DEFAULT_TARGET
from cloudtrain.targets.common.launch import local_outputs
from cloudtrain.targets.common.specification import LaunchSpecification
from cloudtrain.targets.local.folder import FORCED, RunFolder
from cloudtrain.targets.registry import service_of
from cloudtrain.targets.settings import Settings, load_settings

if TYPE_CHECKING:
    from cloudtrain.job.training import TrainingJob


# Make the runs of a rehearsal from one launch specification. All runs have the same processes and code, but their own
# names.
#
# A run's folder has the run's name, so replacing the name everywhere in a specification gives the specification of
# another run. Locations outside the run's folder (a job's `checkpoint.local`, outputs that are kept elsewhere) are
# moved into the folder, so a rehearsal neither reads earlier checkpoints nor changes results.


@dataclass(frozen=True)
class Original:
    """The run that a rehearsal repeats, with its launch specification."""

    spec: LaunchSpecification
    job_name: str
    ref: RunRef
    """The target and host of the run. Repetitions run there too."""

    @classmethod
    def of(cls, run: Run, job_name: str) -> Original:
        """Return the `Original` for a run on this machine. Its repetitions will be listed as runs of `job_name`."""
        return cls(RunFolder(str(run.directory)).read_launch(), job_name, run.ref)

    def repeat(self, name: str, *, checkpoint_of: str | None = None, hold_at: int | None = None) -> LaunchSpecification:
        """Return the original's specification for a run called `name`. `checkpoint_of` names the run whose checkpoints
        the repetition uses; default: its own. `hold_at` is the step at which the repetition waits for SIGTERM."""
        homes = self._homes(name, checkpoint_of or name)
        paths = "|".join(map(re.escape, homes))
        places_or_name = re.compile(rf"(?<![\w./-])(?:{paths})(?![\w.-])|{re.escape(self.spec.name)}(?!\d)")

        def moved(text: str) -> str:
            return places_or_name.sub(lambda match: homes.get(match[0], name), text)

        spec = LaunchSpecification.from_json(map_texts(self.spec.to_json(), moved))
        if hold_at is None:
            return spec
        variables = {HOLD_AT_STEP: str(hold_at)}
        return replace(spec, processes=tuple(replace(each, env=each.env | variables) for each in spec.processes))

    def _homes(self, name: str, checkpoint_of: str) -> dict[str, str]:
        """Return a map from the original's locations to those of its repetition. Checkpoints move to the folder of the
        run `checkpoint_of`. Outputs outside the original's folder move to the folder of the run `name`."""
        run_dir = self.spec.run_dir
        links = {link.path: link.target for link in self.spec.links or ()}
        homes = {}
        for what, folders in self.spec.downloads().items():
            owner = checkpoint_of if what == "checkpoint" else name
            for folder in (links.get(str(path), str(path)) for path in folders):
                below = folder.removeprefix(f"{run_dir}/") if folder.startswith(f"{run_dir}/") else what
                if what == "checkpoint" or below == what:
                    homes[folder] = f"{run_dir.removesuffix(self.spec.name)}{owner}/{below}"
        return homes


def send(original: Original, settings: Settings, make: Callable[[str], LaunchSpecification]) -> Run:
    """Choose a name for a new run, and submit the specification that `make` returns for this name. `cloudtrain ps`
    lists the run like any other run."""

    def plan(name: str) -> Plan:
        spec = make(name)
        upload = Upload("code", spec.code.sha256, spec.code.archive, 0, 0)
        return Plan(
            target=DEFAULT_TARGET,
            run_name=name,
            job_name=original.job_name,
            request=spec.to_json(),
            uploads=(upload,),
            place=original.ref.place,
            outputs=local_outputs(spec),
        )

    sending = repeat(plan, original.job_name, service_of(DEFAULT_TARGET, settings), _NoBundle(), settings)
    return Run(submit(sending, settings).record, settings)


class _NoBundle:
    """A placeholder for the bundle of a repeated run. Nothing is uploaded, because the original's code archive is
    reused. `write` is called only if that archive no longer exists."""

    sha256 = ""

    def write(self, path: Path) -> None:
        raise TargetError(
            f"the archive with the run's code no longer exists: `{path}`",
            hint="rehearse the job file instead of the run",
            code="CT905",
        )


# Run a rehearsal: the whole run, the interrupted run, the resumed run, then the verdict.

_LONGEST_NAME = 40

OnStage = Callable[[str, Run, int | None], None]
"""Receives each run as it starts (`whole`, `interrupted`, `resumed`), and the step at which the run will be stopped."""

Left = Literal["saved", "exited", "killed"]
"""The effect of SIGTERM: the runtime reported a save (`saved`), the run ended silently (`exited`), or it had to be
killed."""


@dataclass(frozen=True)
class Rehearsal:
    """The three runs of a rehearsal, and its results."""

    whole: Run
    interrupted: Run
    resumed: Run
    at_step: int
    left: Left
    seconds_to_leave: float
    comparison: Comparison
    verdict: Verdict

    def to_dict(self) -> dict[str, Any]:
        """Return the runs and the results as JSON data."""
        comparison = self.comparison
        difference = comparison.first_difference(comparison.joined)
        return {
            "verdict": self.verdict.kind,
            "survives": self.verdict.survives,
            "words": self.verdict.words,
            "look_at": list(self.verdict.look_at),
            "metrics": list(comparison.metrics),
            "compared": comparison.compared,
            "tolerance": comparison.tolerance,
            "largest_difference": _finite(comparison.largest_difference),
            "first_difference": difference and {name: _finite(value) for name, value in difference._asdict().items()},
            "at_step": self.at_step,
            "stopped_at": comparison.stopped_at,
            "saved_at": comparison.saved_at,
            "resumed_at": comparison.resumed_at,
            "repeated_steps": comparison.repeated,
            "left": self.left,
            "seconds_to_leave": round(self.seconds_to_leave, 3),
            "runs": {name: getattr(self, name).name for name in ("whole", "interrupted", "resumed")},
        }


def _finite(value: Any) -> Any:
    """Replace NaN and infinity by None, because JSON has neither."""
    return None if isinstance(value, float) and not isfinite(value) else value


@dataclass(frozen=True)
class RehearsalOptions:
    """The user's options. Without `at_step`, the run is stopped about half way. Without `metrics`, all losses are
    compared."""

    at_step: int | None = None
    metrics: tuple[str, ...] = ()
    tolerance: float = TOLERANCE


def run_whole(job: TrainingJob, submit: Callable[[TrainingJob], Run], *, on_stage: OnStage = lambda *_: None) -> Run:
    """Submit the job as the first run of a rehearsal, and wait for it. The run has the rehearsal's job name, starts
    without a checkpoint, and keeps its outputs in its own folder."""
    update: dict[str, Any] = {
        "name": rehearsal_name(job.name),
        "outputs": {name: item.model_copy(update={DEFAULT_TARGET: None}) for name, item in job.outputs.items()},
    }
    if job.checkpoint is not None:
        update["checkpoint"] = Checkpoint(**{**job.checkpoint.model_dump(exclude_unset=True), DEFAULT_TARGET: None})
    run = submit(job.model_copy(update=update))
    on_stage("whole", run, None)
    _wait_or_stop(run, run.wait)
    return run


def rehearsal_name(job_name: str) -> str:
    """Return the job name under which a rehearsal's runs are listed."""
    return job_name.removesuffix(REHEARSAL)[: _LONGEST_NAME - len(REHEARSAL)].rstrip("-") + REHEARSAL


def rehearse(whole: Run, options: RehearsalOptions, *, on_stage: OnStage = lambda *_: None) -> Rehearsal:
    """Repeat the run `whole` in two parts, an interrupted run and a resumed run, and compare their losses with those of
    `whole`."""
    if whole.directory is None:
        raise UsageError(
            f"`{whole.name}` did not run on this machine",
            hint="give `rehearse` the job file; it then runs the job on this machine first",
            code="CT905",
        )
    _must_succeed(whole)
    reports = whole.metrics()
    metrics = _choose_metrics(whole, reports, options.metrics)
    curve = curve_of(reports, metrics)
    at_step = _step(whole, sorted(curve), options.at_step)

    settings, original = load_settings(), Original.of(whole, rehearsal_name(whole.job_name))
    interrupted = send(original, settings, lambda name: original.repeat(name, hold_at=at_step))
    on_stage("interrupted", interrupted, at_step)
    seconds = _wait_or_stop(interrupted, lambda: _stop_at(interrupted, at_step))
    before = curve_of(interrupted.metrics(), metrics)
    _must_be_interrupted(interrupted, last_step=max(before, default=0), end=max(curve))
    marker = RunFolder(str(interrupted.directory)).read_preempted() or {}  # `runtime.exit_preempted` writes it
    saved_at = None if marker.get("step") is None else int(marker["step"])
    was_killed = FORCED in (interrupted.last_status.reason or "")

    resumed = send(original, settings, lambda name: original.repeat(name, checkpoint_of=interrupted.name))
    on_stage("resumed", resumed, None)
    status = _wait_or_stop(resumed, resumed.wait)
    comparison = Comparison(curve, before, curve_of(resumed.metrics(), metrics), metrics, options.tolerance, saved_at)
    return Rehearsal(
        whole=whole,
        interrupted=interrupted,
        resumed=resumed,
        at_step=at_step,
        left="killed" if was_killed else "exited" if saved_at is None else "saved",
        seconds_to_leave=seconds,
        comparison=comparison,
        verdict=_cannot_resume(resumed, status) or comparison.verdict(),
    )


def _wait_or_stop(run: Run, wait: Callable[[], Any]) -> Any:
    """Call `wait`, which waits for a run of the rehearsal, and return its result. If the user presses Ctrl-C, the run
    is stopped, too."""
    try:
        return wait()
    except KeyboardInterrupt:
        run.stop()
        raise


def _must_succeed(whole: Run) -> None:
    status = whole.status()
    if not status.state.is_final:
        hint = f"wait for it: `cloudtrain wait {whole.name}`; or rehearse its job file, which starts a run of its own"
        raise UsageError(f"`{whole.name}` has not ended: it is {status.state}", hint=hint, code="CT905")
    if status.state is not RunState.SUCCEEDED:
        raise TargetError(
            f"`{whole.name}` did not succeed, so a rehearsal cannot compare with it: it {status.state}"
            + (f": {status.reason}" if status.reason else ""),
            hint=f"`cloudtrain logs {whole.name}` prints its output",
            code="CT905",
        )


def _must_be_interrupted(run: Run, *, last_step: int, end: int) -> None:
    status = run.last_status
    if status.state in (RunState.FAILED, RunState.LOST):
        raise TargetError(
            f"`{run.name}` {status.state} before it could be interrupted: {status.reason or 'it did not say why'}",
            hint=f"`cloudtrain logs {run.name}` prints its output",
            code="CT905",
        )
    if last_step >= end:
        raise TargetError(
            f"`{run.name}` ended before SIGTERM reached it",
            hint="choose an earlier step with `--at-step N`; if the script calls `runtime.report`, it waits "
            "for the signal at that step",
            code="CT905",
        )


def _choose_metrics(whole: Run, reports: Sequence[Mapping[str, float]], choice: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics to compare: those in `choice`, or all losses if `choice` is empty."""
    options = dict.fromkeys(name for report in reports for name in report if name != "step")
    if not options:
        hint = (
            "call `runtime.report(step=step, loss=loss)`, print `[metrics] step=10 loss=0.25`, or say how to read what "
            "the script prints: `metrics: {loss: 'loss: ([0-9.]+)'}` in the job"
        )
        raise UsageError(
            f"`{whole.name}` reported no metrics, but a rehearsal compares losses", hint=hint, code="CT905"
        )
    for name in choice:
        if name not in options:
            raise UsageError(f"`{whole.name}` reported no `{name}`", hint=did_you_mean(name, options), code="CT905")
    metrics = tuple(choice) or loss_names(reports)
    if not metrics:
        names = ", ".join(f"`{name}`" for name in options)
        hint = f"compare another metric: `--metric {next(iter(options))}`"
        raise UsageError(f"`{whole.name}` reported no loss, only {names}", hint=hint, code="CT905")
    return metrics


def _step(whole: Run, steps: Sequence[int], min_step: int | None) -> int:
    """Return the reported step at which to interrupt the run: the first one that is at least `min_step`, or one about
    half way if `min_step` is None."""
    if len(steps) < 2:
        what = f"at step {steps[0]} alone" if steps else "without a step"
        hint = (
            "call `runtime.report(step=step, loss=loss)` several times during the training; with `metrics` in the job, "
            "print the step in the same line (`step 10 loss: 0.25`), or add a pattern for it: `step: 'at ([0-9]+)'`"
        )
        raise UsageError(f"`{whole.name}` reports its loss {what}", hint=hint, code="CT905")
    if min_step is None:
        return steps[(len(steps) - 1) // 2]
    if min_step >= steps[-1]:
        hint = f"choose a step before {steps[-1]}"
        raise UsageError(
            f"`{whole.name}` ends at step {steps[-1]}, so it cannot be stopped at {min_step}", hint=hint, code="CT905"
        )
    return next(step for step in steps if step >= min_step)


def _stop_at(run: Run, step: int) -> float:
    """Send SIGTERM when `step` is reported. Return the seconds from the signal to the end of the run."""
    metrics = Metrics()
    for line in run.logs(follow=True):
        values = metrics.of(line)
        if values and values.get("step", -1) >= step:
            break
    start = time.monotonic()
    run.stop()
    run.wait()
    return time.monotonic() - start


def _cannot_resume(resumed: Run, status: RunStatus) -> Verdict | None:
    if status.state is RunState.SUCCEEDED:
        return None
    words = f"the resumed run {status.state}: {status.reason or 'it did not say why'}"
    return Verdict("cannot_resume", words, (f"its output: `cloudtrain logs {resumed.name}`",))
