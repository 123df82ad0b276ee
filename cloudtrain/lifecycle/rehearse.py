"""Rehearsal of a preemption on this machine. It tests whether the training survives a spot
interruption before you pay for one.

A rehearsal consists of three runs:

    whole        the job runs without interruption; a run that has already succeeded can be used
                 instead
    interrupted  the same job gets SIGTERM at a chosen step, as in a spot interruption, and SIGKILL
                 after the grace period
    resumed      the same job runs again, with only the checkpoint folder of the interrupted run
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import inf, isfinite, isnan
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cloudtrain.documents import JsonObject
from cloudtrain.errors import TargetError, UsageError, did_you_mean, join_names
from cloudtrain.job.data import Checkpoint
from cloudtrain.job.training import TrainingJob
from cloudtrain.lifecycle.runs.run import Run
from cloudtrain.lifecycle.submission.submit import make_repetition, submit
from cloudtrain.plans.plan import Plan, Upload, map_texts
from cloudtrain.plans.progress import RunStatus
from cloudtrain.plans.states import REHEARSAL, RunRef, RunState
from cloudtrain.runtime.holding import VARIABLE as HOLD_AT_STEP
from cloudtrain.runtime.metrics_file import FOLDER
from cloudtrain.signals.rows import SOURCES, NewRows
from cloudtrain.system.plugins import DEFAULT_TARGET
from cloudtrain.targets.common.launch import local_outputs
from cloudtrain.targets.common.specification import LaunchSpecification
from cloudtrain.targets.local.folder import FORCED, RunFolder
from cloudtrain.targets.registry import service_of
from cloudtrain.targets.settings import Settings, load_settings

# Make the runs of a rehearsal from one launch specification. All runs have the same processes and
# code, but their own names.
#
# A run's folder has the run's name, so replacing the name everywhere in a specification gives the
# specification of another run. Locations outside the run's folder (a job's `checkpoint.local`,
# outputs that are kept elsewhere) are moved into the folder, so a rehearsal neither reads earlier
# checkpoints nor changes results.


@dataclass(frozen=True)
class Original:
    """The run that a rehearsal repeats, with its launch specification."""

    spec: LaunchSpecification
    job_name: str
    """The name of the job under which its repetitions are listed."""
    ref: RunRef
    """The target and host of the run. Repetitions run there too."""

    def repeat(
        self, name: str, *, checkpoint_of: str | None = None, hold_at: int | None = None
    ) -> LaunchSpecification:
        """Return the original's specification for a run called `name`. `checkpoint_of` names the
        run whose checkpoints the repetition uses; default: its own. `hold_at` is the step at which
        the repetition waits for SIGTERM."""
        homes = self._homes(name, checkpoint_of or name)
        paths = "|".join(map(re.escape, homes))
        own_name = re.escape(self.spec.name)
        # whole paths only, and not `job-1` in `job-12`
        places_or_name = re.compile(rf"(?<![\w./-])(?:{paths})(?![\w.-])|{own_name}(?!\d)")

        def move(text: str) -> str:
            return places_or_name.sub(lambda match: homes.get(match[0], name), text)

        spec = LaunchSpecification.from_json(map_texts(self.spec.to_json(), move))
        variables = {} if hold_at is None else {HOLD_AT_STEP: str(hold_at)}
        processes = []
        for process in spec.processes:
            processes.append(replace(process, env=process.env | variables))
        return replace(spec, processes=tuple(processes))

    def _homes(self, name: str, checkpoint_of: str) -> dict[str, str]:
        """Return a map from the original's locations to those of its repetition. Checkpoints move
        to the folder of the run `checkpoint_of`. Outputs outside the original's folder move to the
        folder of the run `name`."""
        run_dir = self.spec.run_dir
        links = {link.path: link.target for link in self.spec.links or ()}
        homes = {}

        for what, folders in self.spec.downloads().items():
            is_checkpoint = what == "checkpoint"
            owner = checkpoint_of if is_checkpoint else name
            for path in map(str, folders):
                folder = links.get(path, path)
                is_inside = folder.startswith(f"{run_dir}/")
                below = folder.removeprefix(f"{run_dir}/") if is_inside else what
                if is_checkpoint or below == what:
                    homes[folder] = f"{run_dir.removesuffix(self.spec.name)}{owner}/{below}"
        return homes


def send(original: Original, settings: Settings, make: Callable[[str], LaunchSpecification]) -> Run:
    """Choose a name for a new run, and submit the specification that `make` returns for this name.
    `cloudtrain ps` lists the run like any other run."""

    def plan_as(name: str) -> Plan:
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

    sending = make_repetition(
        plan_as, original.job_name, service_of(DEFAULT_TARGET, settings), _NoBundle(), settings
    )
    return Run(submit(sending, settings).record, settings)


class _NoBundle:
    """A placeholder for the bundle of a repeated run. Nothing is uploaded, because the original's
    code archive is reused. `write` is called only if that archive no longer exists."""

    sha256 = ""

    def write(self, path: Path) -> None:
        raise TargetError(
            f"the archive with the run's code no longer exists: `{path}`",
            hint="rehearse the job file instead of the run",
            code="CT905",
        )


# Compare the losses of an interrupted and resumed run with the losses of an uninterrupted run.

Curve = Mapping[int, Mapping[str, float]]
"""Maps a step to the values reported at that step."""

TOLERANCE = 1e-5
"""Largest difference between two equal losses; for losses above 1, as a fraction of the loss."""

_AT_THE_FIRST_STEP = (
    (
        "data order: which samples a step sees must follow from the step, or its position must be "
        "saved"
    ),
    "random numbers: seed dropout and augmentation from the step, or save the generators' states",
    "weights: are all of them saved, and loaded before the first step?",
)
_AFTER_IT = (
    "optimizer state: save and load `optimizer.state_dict()`",
    "learning-rate schedule: set the rate from the step, or save the scheduler's state",
)
"""Likely causes of a difference. The loss of the first step after a resumption depends on the
loaded weights and the drawn samples. The optimizer and its rate affect only the later steps."""

_NOTHING_SAVED = (
    "checkpoints: none was saved, or none was found in the checkpoint folder of the run"
)
_NOT_FOUND = (
    "checkpoints: the script said that it saved, but not where the next run looks "
    "(`runtime.checkpoint_dir()`)"
)


class Verdict(NamedTuple):
    """The result of a rehearsal. `kind` is `same` if the training survived, otherwise a name for
    the problem, such as `skipped`. `words` is the result in one line; `look_at` lists possible
    causes, the most likely first."""

    kind: str
    words: str
    look_at: tuple[str, ...] = ()

    @property
    def survives(self) -> bool:
        """Whether the losses are the same with and without the interruption."""
        return self.kind == "same"


class CurveDifference(NamedTuple):
    """A metric of one step with its values in the uninterrupted run (`whole`) and in another run
    (`found`)."""

    step: int
    metric: str
    whole: float
    found: float


@dataclass(frozen=True)
class Comparison:
    """The curves of the three runs: for each run, the reported metrics by step. `saved_at` is the
    step at which the script saved, by its own report; None without a report."""

    whole: Curve
    interrupted: Curve
    resumed: Curve
    metrics: tuple[str, ...]
    tolerance: float = TOLERANCE
    saved_at: int | None = None

    @property
    def joined(self) -> Curve:
        """The curve of the interrupted run, continued and overridden by the curve of the resumed
        run."""
        return {**self.interrupted, **self.resumed}

    @property
    def stopped_at(self) -> int:
        """The last step that the interrupted run reported; 0 if it reported none."""
        return max(self.interrupted, default=0)

    @property
    def resumed_at(self) -> int | None:
        """The first step that the resumed run reported; None if it reported none."""
        return min(self.resumed, default=None)

    @property
    def repeated(self) -> int:
        """The number of steps that both the interrupted and the resumed run computed, according to
        their reports."""
        if self.resumed_at is None:
            return 0
        return max(0, self.stopped_at - self.resumed_at + 1)

    @property
    def compared(self) -> int:
        """The number of compared values: those reported for the same step with and without the
        interruption."""
        return len(self._pairs(self.joined))

    @property
    def largest_difference(self) -> float:
        distances = [_distance(pair.whole, pair.found) for pair in self._pairs(self.joined)]
        return max(distances, default=0.0)

    def first_difference(self, curve: Curve) -> CurveDifference | None:
        """Return the first value of `curve` that differs from the uninterrupted run by more than
        the tolerance; None without a difference. The tolerance is relative for values above 1."""
        for pair in self._pairs(curve):
            size = abs(pair.whole) if isfinite(pair.whole) else 1.0
            allowed = self.tolerance * max(1.0, size)
            if not _distance(pair.whole, pair.found) <= allowed:  # also if the tolerance is NaN
                return pair
        return None

    def _pairs(self, curve: Curve) -> list[CurveDifference]:
        """Return the values of the uninterrupted run and of `curve` for each step and metric that
        both have, by step."""
        pairs = []
        for step in sorted(self.whole.keys() & curve.keys()):
            before = self.whole[step]
            after = curve[step]
            for name in self.metrics:
                if name in before and name in after:
                    pairs.append(CurveDifference(step, name, before[name], after[name]))
        return pairs

    def verdict(self) -> Verdict:
        """Return the verdict. The checks run in a fixed order, and the first failed check
        decides."""
        return next(self._verdicts())

    def _verdicts(self) -> Iterator[Verdict]:
        """Yield what is wrong, and at last that nothing is."""
        if not self.interrupted:
            words = (
                "the interrupted run reported nothing, and the same job without an interruption did"
            )
            advice = "reports: every run of the job must report its losses"
            yield Verdict("unrepeatable", words, (advice,))
        difference = self.first_difference(self.interrupted)
        if difference is not None:
            words = f"two runs differ before the interruption already: {_describe(difference)}"
            advice = "seed: the script must repeat before its interruptions can be judged"
            yield Verdict("unrepeatable", words, (advice,))

        first = min(self.whole)
        if self.stopped_at > first and self.resumed_at is not None and self.resumed_at <= first:
            words = (
                f"the resumed run began again at step {self.resumed_at}, so an interruption "
                "costs all that was done"
            )
            advice = _NOTHING_SAVED if self.saved_at is None else _NOT_FOUND
            yield Verdict("started_over", words, (advice,))

        last = max(self.whole)
        end = max(self.resumed, default=0)
        if end > last:
            words = (
                f"the resumed run went on to step {end}, and without interruption the training "
                f"ends at {last}"
            )
            advice = "the end: count steps from the start of the training, not of the process"
            yield Verdict("overrun", words, (advice,))

        due = [step for step in self.whole if step > self.stopped_at]
        missing = [step for step in due if step not in self.resumed]
        if missing and missing == due and self.resumed:
            words = (
                "after the interruption no loss is reported at a step of the whole run "
                f"({due[0]}, ...)"
            )
            advice = "reports: report when `step % n == 0`, with the step of the training"
            yield Verdict("incomparable", words, (advice,))
        if missing:
            words = f"{len(missing)} reported steps are missing, the first is {missing[0]}"
            advice = "position: the resumed run must go on with the step after the saved one"
            yield Verdict("skipped", words, (advice,))

        difference = self.first_difference(self.joined)
        if difference is not None:
            yield Verdict("differs", _describe(difference), self._suspects(difference.step))
        largest = self.largest_difference
        words = f"all {self.compared} values are exactly those of the run without interruption"
        if largest:
            words = (
                f"the {self.compared} values differ by at most {largest:.2g}, within the tolerance "
                f"of {self.tolerance:g}"
            )
        yield Verdict("same", words)

    def _suspects(self, step: int) -> tuple[str, ...]:
        """Return the possible causes of a difference that begins at `step`. At the first resumed
        step, these are causes such as the data order; at a later step, causes such as the optimizer
        state. If the steps around the resumption were not reported, return all of these causes."""
        first = self.resumed_at
        known = (*self.whole, self.saved_at)
        if first is None or first not in self.whole or first - 1 not in known:
            return (*_AT_THE_FIRST_STEP, *_AFTER_IT)
        return _AT_THE_FIRST_STEP if step == first else _AFTER_IT


def curve_of(
    reports: Iterable[Mapping[str, float]], metrics: Sequence[str]
) -> dict[int, dict[str, float]]:
    """Return a curve, which maps each step to its metrics. Reports without a step or without any of
    the metrics are skipped. The last report of a step counts."""
    curve: dict[int, dict[str, float]] = {}
    for report in reports:
        values = {name: report[name] for name in metrics if name in report}
        if values and "step" in report:
            curve.setdefault(int(report["step"]), {}).update(values)
    return curve


def loss_names(reports: Iterable[Mapping[str, float]]) -> tuple[str, ...]:
    """Return the metrics whose names end with `loss`, such as `train_loss` or `val/loss`."""
    names = dict.fromkeys(chain.from_iterable(reports))
    return tuple(name for name in names if name.lower().endswith("loss"))


def _distance(one: float, other: float) -> float:
    """Return the absolute difference of two values: zero if both are equal or both are NaN,
    infinite if only one is NaN."""
    if one == other or (isnan(one) and isnan(other)):
        return 0.0
    distance = abs(one - other)
    return inf if isnan(distance) else distance


def _describe(difference: CurveDifference) -> str:
    where = f"at step {difference.step} `{difference.metric}`"
    return f"{where} is {difference.found:.7g}, and without interruption {difference.whole:.7g}"


# Run a rehearsal: the whole run, the interrupted run, the resumed run, then the verdict.

_LONGEST_NAME = 40

OnStage = Callable[[str, Run, int | None], None]
"""Receives each run as it starts (`whole`, `interrupted`, `resumed`), and the step at which the run
will be stopped."""

Left = Literal["saved", "exited", "killed"]
"""The effect of SIGTERM: the runtime reported a save (`saved`), the run ended silently (`exited`),
or it had to be killed."""


@dataclass(frozen=True)
class Rehearsal:
    """The three runs of a rehearsal, and its results.

    Attributes:
        at_step: the step at which SIGTERM was sent.
        left: the effect of SIGTERM.
        seconds_to_leave: the seconds from SIGTERM to the end of the interrupted run.
    """

    whole: Run
    interrupted: Run
    resumed: Run
    at_step: int
    left: Left
    seconds_to_leave: float
    comparison: Comparison
    verdict: Verdict

    def to_dict(self) -> JsonObject:
        """Return the runs and the results as JSON data, in which values can be NaN and infinite."""
        comparison = self.comparison
        difference = comparison.first_difference(comparison.joined)
        runs = {name: getattr(self, name).name for name in ("whole", "interrupted", "resumed")}
        return {
            "verdict": self.verdict.kind,
            "survives": self.verdict.survives,
            "words": self.verdict.words,
            "look_at": list(self.verdict.look_at),
            "metrics": list(comparison.metrics),
            "compared": comparison.compared,
            "tolerance": comparison.tolerance,
            "largest_difference": comparison.largest_difference,
            "first_difference": difference and difference._asdict(),
            "at_step": self.at_step,
            "stopped_at": comparison.stopped_at,
            "saved_at": comparison.saved_at,
            "resumed_at": comparison.resumed_at,
            "repeated_steps": comparison.repeated,
            "left": self.left,
            "seconds_to_leave": round(self.seconds_to_leave, 3),
            "runs": runs,
        }


def run_whole(
    job: TrainingJob, submit: Callable[[TrainingJob], Run], *, on_stage: OnStage = lambda *_: None
) -> Run:
    """Submit the job as the first run of a rehearsal, and wait for it. The run has the rehearsal's
    job name, starts without a checkpoint, and keeps its outputs in its own folder."""
    here = {DEFAULT_TARGET: None}
    outputs = {name: item.model_copy(update=here) for name, item in job.outputs.items()}
    update: JsonObject = {"name": rehearsal_name(job.name), "outputs": outputs}
    if job.checkpoint is not None:
        fields = job.checkpoint.model_dump(exclude_unset=True)
        update["checkpoint"] = Checkpoint.model_validate(fields | here)
    run = submit(job.model_copy(update=update))
    on_stage("whole", run, None)
    _wait_or_stop(run, run.wait)
    return run


def rehearsal_name(job_name: str) -> str:
    """Return the job name under which a rehearsal's runs are listed."""
    beginning = job_name.removesuffix(REHEARSAL)[: _LONGEST_NAME - len(REHEARSAL)]
    return beginning.rstrip("-") + REHEARSAL


def rehearse(
    whole: Run,
    *,
    at_step: int | None = None,
    metrics: Sequence[str] = (),
    tolerance: float | None = None,
    on_stage: OnStage = lambda *_: None,
) -> Rehearsal:
    """Repeat the run `whole` in two parts, an interrupted run and a resumed run, and compare their
    losses with those of `whole`. Without `at_step`, the run is stopped about half way. Without
    `metrics`, all losses are compared."""
    if whole.directory is None:
        raise UsageError(
            f"`{whole.name}` did not run on this machine",
            hint="give `rehearse` the job file; it then runs the job on this machine first",
            code="CT905",
        )
    _check_success(whole)

    reports = whole.metrics()
    metrics = _choose_metrics(whole, reports, metrics)
    curve = curve_of(reports, metrics)

    # A Trainer logs the mean since it last logged, so stopping at a step that it only evaluates
    # changes the next mean.
    most_reported = max(metrics, key=lambda name: sum(name in values for values in curve.values()))
    steps = sorted(step for step, values in curve.items() if most_reported in values)
    at_step = _choose_step(whole, steps, at_step)

    spec = RunFolder(str(whole.directory)).read_launch()
    settings = load_settings()
    original = Original(spec, rehearsal_name(whole.job_name), whole.ref)

    interrupted = send(original, settings, partial(original.repeat, hold_at=at_step))
    on_stage("interrupted", interrupted, at_step)
    seconds = _wait_or_stop(interrupted, lambda: _stop_at(interrupted, at_step))
    before = curve_of(interrupted.metrics(), metrics)
    _check_interruption(interrupted, last_step=max(before, default=0), end=max(curve))

    # `runtime.exit_preempted` writes it
    marker = RunFolder(str(interrupted.directory)).read_preempted() or {}
    saved_at = None if marker.get("step") is None else int(marker["step"])
    left: Left = "exited" if saved_at is None else "saved"
    if FORCED in (interrupted.last_status.reason or ""):
        left = "killed"

    continuing = partial(original.repeat, checkpoint_of=interrupted.name)
    resumed = send(original, settings, continuing)
    on_stage("resumed", resumed, None)
    status = _wait_or_stop(resumed, resumed.wait)

    tolerance = TOLERANCE if tolerance is None else tolerance
    after = curve_of(resumed.metrics(), metrics)
    comparison = Comparison(curve, before, after, metrics, tolerance, saved_at)
    if status.state is RunState.SUCCEEDED:
        verdict = comparison.verdict()
    else:
        words = _with_reason(f"the resumed run {status.state}", status)
        advice = f"its output: `cloudtrain logs {resumed.name}`"
        verdict = Verdict("cannot_resume", words, (advice,))
    return Rehearsal(
        whole=whole,
        interrupted=interrupted,
        resumed=resumed,
        at_step=at_step,
        left=left,
        seconds_to_leave=seconds,
        comparison=comparison,
        verdict=verdict,
    )


def _wait_or_stop(run: Run, wait: Callable[[], Any]) -> Any:
    """Call `wait`, which waits for a run of the rehearsal, and return its result. If the user
    presses Ctrl-C, the run is stopped, too."""
    try:
        return wait()
    except KeyboardInterrupt:
        run.stop()
        raise


def _check_success(whole: Run) -> None:
    """Raise an error if the run has not ended or has not succeeded."""
    status = whole.status()
    if not status.state.is_final:
        hint = (
            f"wait for it: `cloudtrain wait {whole.name}`; or rehearse its job file, which "
            "starts a run of its own"
        )
        message = f"`{whole.name}` has not ended: it is {status.state}"
        raise UsageError(message, hint=hint, code="CT905")
    if status.state is not RunState.SUCCEEDED:
        what = f"`{whole.name}` {status.state}, so a rehearsal cannot compare with it"
        raise TargetError(_with_reason(what, status), hint=_logs_hint(whole), code="CT905")


def _with_reason(what: str, status: RunStatus) -> str:
    return f"{what}: {status.reason or 'it did not say why'}"


def _logs_hint(run: Run) -> str:
    return f"`cloudtrain logs {run.name}` prints its output"


def _check_interruption(run: Run, *, last_step: int, end: int) -> None:
    """Raise TargetError if the run ended on its own. `last_step` is the last step that it reported,
    `end` that of the whole run."""
    status = run.last_status
    if status.state in (RunState.FAILED, RunState.LOST):
        what = f"`{run.name}` {status.state} before it could be interrupted"
        raise TargetError(_with_reason(what, status), hint=_logs_hint(run), code="CT905")
    if last_step >= end:
        raise TargetError(
            f"`{run.name}` ended before SIGTERM reached it",
            hint="choose an earlier step with `--at-step N`; a script that calls `runtime.report` "
            "waits for the signal at that step",
            code="CT905",
        )


def _choose_metrics(
    whole: Run, reports: Sequence[Mapping[str, float]], choice: Sequence[str]
) -> tuple[str, ...]:
    """Return the metrics to compare: those in `choice`, or all losses if `choice` is empty."""
    options = dict.fromkeys(chain.from_iterable(reports))
    options.pop("step", None)
    if not options:
        message = f"`{whole.name}` reported no metrics, but a rehearsal compares losses"
        hint = (
            "call `runtime.report(step=step, loss=loss)`, print `[metrics] step=10 loss=0.25`, "
            "or say how to read what the script prints: `metrics: {loss: 'loss: ([0-9.]+)'}` in "
            "the job; for a Trainer of Hugging Face or Lightning: `integrations.train(trainer)` "
            "or `integrations.fit(trainer, ...)`"
        )
        raise UsageError(message, hint=hint, code="CT905")

    for name in choice:
        if name not in options:
            message = f"`{whole.name}` reported no `{name}`"
            raise UsageError(message, hint=did_you_mean(name, options), code="CT905")

    metrics = tuple(choice) or loss_names(reports)
    if not metrics:
        names = join_names(list(options), len(options))
        hint = f"compare another metric: `--metric {next(iter(options))}`"
        message = f"`{whole.name}` reported no loss, only {names}"
        raise UsageError(message, hint=hint, code="CT905")
    return metrics


def _choose_step(whole: Run, steps: Sequence[int], min_step: int | None) -> int:
    """Return the reported step at which to interrupt the run: the first one that is at least
    `min_step`, or one about half way if `min_step` is None."""
    if len(steps) < 2:
        what = f"at step {steps[0]} alone" if steps else "without a step"
        hint = (
            "call `runtime.report(step=step, loss=loss)` several times during the training; with "
            "`metrics` in the job, print the step in the same line (`step 10 loss: 0.25`), or add "
            "a pattern for it: `step: 'at ([0-9]+)'`"
        )
        message = f"`{whole.name}` reports its loss {what}"
        raise UsageError(message, hint=hint, code="CT905")

    if min_step is None:
        return steps[(len(steps) - 1) // 2]
    last = steps[-1]
    if min_step >= last:
        message = f"`{whole.name}` ends at step {last}, so it cannot be stopped at {min_step}"
        raise UsageError(message, hint=f"choose a step before {last}", code="CT905")
    return next(step for step in steps if step >= min_step)


_LOOK_EVERY = 0.05
"""Seconds between two looks for the step."""


def _stop_at(run: Run, step: int) -> float:
    """Send SIGTERM when `step` is reported. Return the seconds from the signal to the end of the
    run."""
    assert run.directory is not None
    rows = NewRows(str(run.directory / FOLDER), SOURCES)
    while not run.state.is_final:
        if any(values.get("step", -1) >= step for _, values in rows.read()):
            break
        time.sleep(_LOOK_EVERY)
    start = time.monotonic()
    run.stop()
    run.wait()
    return time.monotonic() - start
