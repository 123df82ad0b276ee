"""Show which process does what, and when, as text and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from schedules import Event

FORWARDS = "0123456789"
# of the same microbatches; I and W in zero-bubble schedules are both shown so
BACKWARDS = "abcdefghij"
COLOURS = {"F": "#7fb3d5", "B": "#76c7a0", "I": "#76c7a0", "W": "#f5c26b"}
NAMES = {
    "F": "forward",
    "B": "backward (zero bubble: of the inputs)",
    "W": "backward of the weights",
}
DARK, LIGHT = 1.0, 0.6


def as_text(events: list[list[Event]], width: int = 100) -> str:
    """Return one line for each process. A digit is the forward of that microbatch, a letter its backward (`w`: of
    weights alone), a point is a bubble."""
    begin, end = _span(events)
    lines = []
    for process, of_process in enumerate(events):
        line = ["."] * width
        for event in of_process:
            first, last = (
                round((moment - begin) / (end - begin) * width)
                for moment in (event.start, event.end)
            )
            line[first:last] = _letter(event) * (last - first)
        lines.append(f"{process} |{''.join(line)}|")
    return "\n".join(lines)


def _letter(event: Event) -> str:
    if event.action.kind == "W":
        return "w"
    return (FORWARDS if event.action.kind == "F" else BACKWARDS)[event.action.microbatch % 10]


def _span(events: list[list[Event]]) -> tuple[float, float]:
    everything = [event for of_process in events for event in of_process]
    return min(event.start for event in everything), max(event.end for event in everything)


def draw(path: Path, runs: Mapping[str, list[list[Event]]], unit: str = "seconds") -> bool:
    """Draw one panel for each schedule, all on one scale of time, so that shorter is faster. Return False without
    matplotlib."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ModuleNotFoundError:
        return False
    figure = Figure(figsize=(11, 1.45 * len(runs) + 1.0), layout="constrained")
    panels = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    processes = len(next(iter(runs.values())))
    longest = max(end - begin for begin, end in map(_span, runs.values()))
    for panel, (name, events) in zip(panels, runs.items(), strict=True):
        begin, _ = _span(events)
        for process, of_process in enumerate(events):
            for (kind, stage, microbatch), start, end in of_process:
                length, left = end - start, start - begin
                look = {
                    "color": COLOURS[kind],
                    "edgecolor": "white",
                    "alpha": DARK if stage >= processes else LIGHT,
                }
                panel.barh(process, length, left=left, height=0.9, linewidth=0.5, **look)
                if length > 0.008 * longest:
                    panel.text(
                        left + length / 2, process, microbatch, ha="center", va="center", fontsize=7
                    )
        panel.set_title(name, loc="left", fontsize=10)
        panel.set_yticks(range(processes))
        panel.set_ylabel("process", fontsize=9)
        panel.invert_yaxis()
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel(f"{unit}; the numbers are microbatches", fontsize=9)
    panels[-1].set_xlim(left=0)
    shown = [
        action for events in runs.values() for of_process in events for action, _, _ in of_process
    ]
    kinds = {action.kind for action in shown}
    handles = [
        Patch(facecolor=COLOURS[k], alpha=LIGHT, label=name)
        for k, name in NAMES.items()
        if k in kinds
    ]
    if any(action.stage >= processes for action in shown):
        handles.append(Patch(facecolor="black", alpha=0.5, label="darker: a process's later stage"))
    figure.legend(handles=handles, loc="outside upper right", ncols=4, fontsize=8, frameon=False)
    figure.savefig(path, dpi=130)
    return True
