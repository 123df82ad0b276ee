"""A run and its status as a document."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from cloudtrain.errors import shortened
from cloudtrain.job.model import format_duration, format_size
from cloudtrain.plans.document import (
    Block,
    Cell,
    Document,
    Heading,
    Lines,
    Pairs,
    Span,
    Style,
    Table,
)
from cloudtrain.plans.progress import (
    PLACES,
    MetricSummary,
    Notice,
    RunStatus,
    TrainingProgress,
    Transition,
)
from cloudtrain.plans.sparkline import sparkline
from cloudtrain.plans.states import RunState

STATE_STYLE: dict[RunState, Style] = {
    RunState.PENDING: "dim",
    RunState.QUEUED: "dim",
    RunState.PREPARING: "dim",
    RunState.RUNNING: "info",
    RunState.STOPPING: "warn",
    RunState.SUCCEEDED: "good",
    RunState.FAILED: "bad",
    RunState.STOPPED: "warn",
    RunState.LOST: "bad",
}


def state_cell(state: RunState, queue_place: int | None = None) -> Span:
    """Return a coloured cell with the state and the place in the queue, such as `queued 3`."""
    text = str(state)
    if queue_place is not None:
        text += f" {queue_place}"
    return Span(text, STATE_STYLE[state])


def run_document(
    name: str, ref: str, status: RunStatus, more: Mapping[str, str] | None = None
) -> Document:
    """Return a page with all known facts about a run. `more` adds label-value pairs after the
    reference."""
    place = status.queue_place
    before: dict[str, Cell | None] = {
        "state": state_cell(status.state),
        "reason": status.reason,
        "queue": None if place is None else f"place {place}",
    }
    after: dict[str, Cell | None] = {
        "page": status.page,
        "started": _moment(status.started) if status.started else None,
        "duration": duration_of(status),
        "restarts": str(status.restarts) if status.restarts else None,
        "cost": cost_text(status),
        "progress": progress_text(status),
        "metric": _main_text(status.main),
        "metrics": _others_text(status),
    }
    for instance, values in status.machines.items():
        label = f"instance {instance}" if len(status.machines) > 1 else "machine"
        after[label] = machine_text([values])
    rows = _present(before)
    rows += [(notice.kind.replace("_", " "), _notice_cell(notice)) for notice in current(status)]
    rows.append(("reference", ref))
    rows += (more or {}).items()
    rows += _present(after)

    blocks: list[Block] = [Heading(name), Pairs(rows)]
    if status.transitions:
        blocks += [Heading("Phases"), phases_table(status.transitions)]
    if status.details:
        blocks += [Heading("Last output"), Lines(status.details)]
    return Document(blocks)


def phases_table(phases: Iterable[Transition]) -> Table:
    """Return a table of phases with their times and what the provider says of them."""
    return Table(("PHASE", "STARTED", "TOOK", ""), [_phase(item) for item in phases])


def machine_text(machines: Collection[Mapping[str, float]]) -> str:
    """Return a text such as `8 GPUs 93%, GPU memory 88%, cpu 45%, memory 61% of 64 GiB`. Of
    several machines, it has the mean CPU, the fullest memory and disk, and all GPUs."""
    of: dict[str, list[float]] = defaultdict(list)
    for values in machines:
        for name, value in values.items():
            gpu, _, kind = name.partition(".")
            of[f"gpu.{kind}" if kind else gpu].append(value)

    words = []
    rates = of["gpu.utilization"]
    if rates:
        count = "GPU" if len(rates) == 1 else f"{len(rates)} GPUs"
        words.append(f"{count} {sum(rates) / len(rates):.0f}%")
    shares = [*map(_share, zip(of["gpu.memory"], of["gpu.memory_limit"], strict=False))]
    if shares:
        words.append(f"GPU memory {max(shares):.0%}")
    if of["gpu.power"]:
        words.append(f"{sum(of['gpu.power']):.0f} W")
    if of["cpu"]:
        words.append(f"cpu {sum(of['cpu']) / len(of['cpu']):.0f}%")
    pairs = list(zip(of["memory"], of["memory_limit"], strict=False))
    if pairs:
        fullest = max(pairs, key=_share)
        words.append(f"memory {_share(fullest):.0%} of {format_size(fullest[1])}")
    if of["disk_free"]:
        words.append(f"{format_size(min(of['disk_free']))} of disk free")
    return ", ".join(words)


def _share(pair: tuple[float, float]) -> float:
    used, limit = pair
    return used / limit if limit else 0.0


_LASTING = ("alert", "not_finite", "exploding")
"""Kinds of notices that still explain something when the run has ended."""

_NOTICES = 5
"""Notices that are shown."""


def current(status: RunStatus) -> list[Notice]:
    """Return the newest notices of what is not over, the newest last."""
    lasting = [notice for notice in status.notices if notice.ended is None]
    if status.state.is_final:
        lasting = [notice for notice in lasting if notice.kind in _LASTING]
    return lasting[-_NOTICES:]


def _notice_cell(notice: Notice) -> Span:
    text = notice.text if notice.rank is None else f"rank {notice.rank}: {notice.text}"
    return Span(f"{text} ({_moment(notice.time)})", "warn" if notice.kind == "alert" else "bad")


_NARROW = 8
"""Columns of a sparkline in a list."""

_LONGEST = 20
"""Letters of a metric's name in a list."""


def _main_text(main: MetricSummary | None) -> str:
    """Return a text such as `loss 0.25 (step 100), lowest 0.2 (step 80)` and a sparkline."""
    if main is None:
        return ""
    text = f"{main.name} {number(main.last)}{_at(main.step)}"
    if main.best is not None and main.best != main.last:
        word = "lowest" if main.is_minimized else "highest"
        text += f", {word} {number(main.best)}{_at(main.best_step)}"
    return f"{text} {sparkline(main.trend, len(main.trend))}".rstrip()


def _others_text(status: RunStatus) -> str:
    """Return the metrics besides the main one."""
    others = dict(status.metrics)
    if status.main is not None:
        others.pop(status.main.name, None)
    return metrics_text(others) if others.keys() - {*PLACES, *PROGRESS} else ""


def _at(step: float | None) -> str:
    return "" if step is None else f" (step {number(step)})"


def _present(facts: Mapping[str, Cell | None]) -> list[tuple[str, Cell]]:
    """Return the facts without those that are empty."""
    return [(label, text) for label, text in facts.items() if text]


def duration_of(status: RunStatus, now: float | None = None) -> str:
    """Return how long the run took or has been running, such as `1h 2m`; empty before it starts,
    and if the target does not tell when it ended."""
    end = status.ended
    if end is None and not status.state.is_final:
        end = time.time() if now is None else now
    if status.started is None or end is None:
        return ""
    return format_duration(max(0.0, end - status.started))


def cost_text(status: RunStatus) -> str:
    """Return a text such as `1h 2m billed on each instance, $12.34 by list price, 64% saved by spot
    capacity`; empty if the time billed is unknown."""
    if status.billable_seconds is None:
        return ""
    text = f"{format_duration(status.billable_seconds)} billed on each instance"
    if status.cost is not None:
        text += f", ${status.cost:,.2f} by list price"
    if status.saved is not None:
        text += f", {status.saved:.0%} saved by spot capacity"
    return text if status.state.is_final else f"{text} so far"


def _phase(item: Transition) -> tuple[Cell, ...]:
    """Return a row of the table of phases."""
    took = ""
    if item.ended is not None:
        took = format_duration(max(0.0, item.ended - item.started))
    message = item.message or ""
    if message == item.phase:
        message = ""
    return (item.phase, _moment(item.started), took, message)


PROGRESS = ("total", "seconds_left")
"""Values that `runtime.report(step=, total=)` adds to the measured values."""


def progress_text(status: RunStatus) -> str:
    """Return a text such as `45%, step 207 of 460, 3m left`; empty if the end is unknown. For an
    ended run, the time left is omitted."""
    progress = status.progress
    step = status.metrics.get("step")
    total = status.metrics.get("total")
    if progress is None and step is not None and total:
        progress = TrainingProgress("step", step, total, status.metrics.get("seconds_left"))
    # the last epoch counts as open until the next one begins
    if progress is None or (progress.unit == "epoch" and status.state.is_final):
        return ""
    text = f"{progress.fraction:.0%}, {progress.unit} {number(progress.at)} of "
    text += number(progress.end)
    if progress.seconds_left is not None and not status.state.is_final:
        text += f", {format_duration(progress.seconds_left)} left"
    return text


_EXIT = re.compile(r"^[^:]*\bexit code \d+: ")
"""The beginning of a reason that names the rank that failed, and its exit code."""


def news_text(status: RunStatus) -> str:
    """Return the newest fact about a run, the important part first: why it failed, was stopped or
    waits, the best trial of a sweep, or the metrics and the step. Empty if nothing is known."""
    metrics = status.metrics
    if status.reason and status.state not in (RunState.SUCCEEDED, RunState.RUNNING):
        return _EXIT.sub("", status.reason)
    if "trials" in metrics and "ended" in metrics:
        ended = number(metrics["ended"])
        return best_words(metrics) or f"{ended} of {number(metrics['trials'])} ended"
    notices = current(status)
    if notices and not status.state.is_final:  # a list does not ask again for those of others
        return notices[-1].text
    main = status.main
    parts = _values(metrics, without=(*PLACES, *PROGRESS))
    if main is not None:
        name = shortened(main.name, _LONGEST)
        parts = [f"{name} {number(main.last)} {sparkline(main.trend, _NARROW)}".rstrip()]
        if main.best is not None and main.best != main.last:
            parts.append(f"best {number(main.best)}")
    progress = progress_text(status)
    if progress and not status.state.is_final:
        parts.insert(0, progress.partition(",")[0])
    elif "step" in metrics:
        parts.append(f"step {number(metrics['step'])}")
    return ", ".join(parts)


def best_words(metrics: Mapping[str, float]) -> str:
    """Return the best trial of a sweep, such as `loss 0.25, trial 7`; empty if there is none."""
    if "best_trial" not in metrics:
        return ""
    trial = f"trial {number(metrics['best_trial'])}"
    return ", ".join([*_values(metrics, without=OF_A_SWEEP), trial])


def _values(metrics: Mapping[str, float], *, without: Collection[str]) -> list[str]:
    """Return texts such as `loss 0.25`, without the metrics of the names `without`."""
    return [f"{name} {number(value)}" for name, value in metrics.items() if name not in without]


OF_A_SWEEP = ("trials", "ended", "running", "best_trial")
"""Values of a sweep's status besides the best value of its objective."""


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Return a text such as `loss 0.25, accuracy 0.98 (step 100)`. The step or epoch of the
    measurement comes last."""
    values = ", ".join(_values(metrics, without=(*PLACES, *PROGRESS)))
    measured = {name: metrics[name] for name in PLACES if name in metrics}
    places = ", ".join(_values(measured, without=()))
    if values and places:
        return f"{values} ({places})"
    return values or places


def number(value: float) -> str:
    """Format a metric's value with four significant digits. Integers keep all digits."""
    if abs(value) < 1e15 and value == int(value):
        return str(int(value))
    return f"{value:.4g}"


def _moment(seconds: float) -> str:
    """Return a time since the epoch as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(seconds))
