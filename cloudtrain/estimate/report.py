"""What a user gets to see of an estimate: memory against the GPU, time, money, other machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape

from cloudtrain.documents import JsonObject
from cloudtrain.estimate.devices import GpuInstance
from cloudtrain.estimate.memory import CONTEXT, Need, Verdict
from cloudtrain.estimate.scaling import Suggestion
from cloudtrain.estimate.time import StepTime, assumptions
from cloudtrain.machines.table import over
from cloudtrain.plans.document import (
    Block,
    Cell,
    Document,
    Heading,
    Notice,
    Pairs,
    Span,
    Style,
    Table,
)
from cloudtrain.plans.html import to_html
from cloudtrain.plans.plan import Printable

_GIB = 2**30
_STYLES: dict[Verdict, Style] = {"fits": "good", "tight": "warn", "does not fit": "bad"}
_WIDE = 30
"""Characters of a bar for the whole memory."""


@dataclass(frozen=True)
class Batch:
    """What a rank computes in one step: `samples`, and `tokens` if it computes with tokens. `ranks`
    is the number of ranks that have different samples."""

    samples: int
    tokens: int
    ranks: int


@dataclass(frozen=True)
class MachineFit:
    """How the job fits one kind of machine.

    Attributes:
        instances: how many of them have as many GPUs as the job has ranks.
        step: the seconds of a step; None if unknown.
        hours: the hours of the whole training, at least and at most.
        dollars: its cost at the list price.
    """

    machine: GpuInstance
    instances: int
    verdict: Verdict
    step: StepTime | None = None
    hours: tuple[float, float] | None = None
    dollars: tuple[float, float] | None = None

    @classmethod
    def of(
        cls,
        machine: GpuInstance,
        instances: int,
        need: Need,
        step: StepTime | None,
        steps: float | None,
    ) -> MachineFit:
        """Return how the job fits. `steps`: of the whole training."""
        verdict = need.verdict(machine.memory)
        if step is None or steps is None:
            return cls(machine, instances, verdict, step)
        hours = (step.least * steps / 3600, step.most * steps / 3600)
        if machine.price is None:
            return cls(machine, instances, verdict, step, hours)
        rate = machine.price * instances
        dollars = (over(rate, hours[0] * 3600), over(rate, hours[1] * 3600))
        return cls(machine, instances, verdict, step, hours, dollars)


@dataclass(frozen=True)
class FitReport(Printable):
    """Whether a job fits its GPUs, how long a step takes, and what it costs.

    Attributes:
        ranks: the ranks of the job; `rank` is the one that needs most.
        peak: the bytes of its tensors at the peak, and `kinds` what they are for.
        place: the module of the model at the peak.
        need: the bytes with what a GPU needs besides the tensors.
        own: the machine of the job; None if it is unknown.
        others: the other machines, the cheapest first.
        suggestion: the largest batch that fits the job's machine; None if it was not sought.
        notes: what the estimate takes for granted.
        seconds: how long the estimate took.
    """

    job_name: str
    target: str
    ranks: int
    rank: int
    peak: int
    kinds: Mapping[str, int]
    place: str
    need: Need
    batch: Batch | None
    own: MachineFit | None
    others: Sequence[MachineFit] = ()
    suggestion: Suggestion | None = None
    notes: Sequence[str] = ()
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict | None:
        """Whether the job fits its machine; None if the machine is unknown."""
        return None if self.own is None else self.own.verdict

    @property
    def fits(self) -> bool:
        """Whether the job is not known to run out of memory."""
        return self.verdict != "does not fit"

    def to_dict(self) -> JsonObject:
        """Return the estimate as JSON data. Memory is in bytes, time in seconds."""
        data = asdict(self)
        data["verdict"] = self.verdict
        data["need"] = self.need._asdict()
        if self.suggestion is not None:
            data["suggestion"] = self.suggestion._asdict()
        return data

    def document(self) -> Document:
        rows: list[tuple[str, Cell]] = []
        if self.own is not None:
            machine = self.own.machine
            verdict = self.own.verdict
            words = f"{verdict}: {machine.gpus} x {machine.gpu} have {_gib(machine.memory)} each"
            rows.append(("verdict", Span(words, _STYLES[verdict])))
        rows.append(("peak", f"{_gib(self.peak)} of tensors on rank {self.rank} of {self.ranks}"))
        if self.place:
            rows.append(("at", self.place))
        for kind, size in self.kinds.items():
            if size:
                bar = "█" * round(_WIDE * size / self.peak)
                rows.append((f"  {kind}", f"{_gib(size)}  {bar}"))
        if self.own is not None:
            rows.append(("needed", f"{_gib(self.need.least)} to {_gib(self.need.most)} of a GPU"))
            rows += self._speed(self.own)
        if self.suggestion is not None:
            rows.append(("largest", _largest(self.suggestion)))

        blocks: list[Block] = [Heading(f"{self.job_name} on {self.target}"), Pairs(rows)]
        if self.others:
            blocks.append(self._table())
        blocks += [Notice("notice", note) for note in self.notes]
        if self.own is None:
            blocks.append(
                Notice(
                    "notice",
                    "no GPU is known, so it ran as on a CPU",
                    hint="name a target and an `instance_type`, or `resources.gpu`",
                )
            )
        if self.own is not None and self.own.step is not None:
            blocks.append(Notice("notice", "the times assume:", details=assumptions()))
        return Document(blocks)

    def _repr_html_(self) -> str:
        return self._bar_html() + to_html(self.document())

    def _speed(self, own: MachineFit) -> list[tuple[str, Cell]]:
        rows: list[tuple[str, Cell]] = []
        if own.step is None:
            return rows
        rows.append(("step", f"{_seconds(own.step.least)} to {_seconds(own.step.most)}"))
        if self.batch is not None:
            what = "tokens" if self.batch.tokens else "samples"
            count = self.batch.tokens or self.batch.samples
            count *= self.batch.ranks
            speed = _range((count / own.step.most, count / own.step.least), "{:,.0f}")
            rows.append(("speed", f"{speed} {what}/s, all ranks together"))
        if own.hours is not None:
            hours = _range(own.hours, "{:,.1f}") + " hours"
            if own.hours[1] < 1:
                hours = _range([60 * bound for bound in own.hours], "{:.2g}") + " minutes"
            rows.append(("training", hours))
        if own.dollars is not None:
            rows.append(("cost", _range(own.dollars, "${:,.2f}") + " at list prices"))
        return rows

    def _table(self) -> Table:
        fitting = [item for item in self.others if item.verdict == "fits"]
        priced = [item for item in fitting if item.dollars is not None]
        timed = [item for item in fitting if item.step is not None]
        cheapest = min(priced, key=lambda item: (item.dollars or (0, 0))[1], default=None)
        fastest = min(timed, key=lambda item: item.step or StepTime(0, 0), default=None)
        rows = []
        for item in self.others:
            marks = []
            if item is cheapest:
                marks.append("cheapest")
            if item is fastest:
                marks.append("fastest")
            machine = item.machine
            step = _range(item.step, "{:.3g}")
            hours = _range(item.hours, "{:,.2f}")
            dollars = _range(item.dollars, "${:,.2f}")
            verdict = Span(item.verdict, _STYLES[item.verdict])
            name = f"{item.instances} x {machine.name}"
            gpus = f"{machine.gpus} x {machine.gpu}"
            rows.append((name, gpus, verdict, step, hours, dollars, ", ".join(marks)))
        headers = ("INSTANCES", "GPUS", "MEMORY", "STEP (S)", "HOURS", "COST", "")
        return Table(headers, rows)

    def _bar_html(self) -> str:
        """Return the memory by kind as a bar, with a line where the memory of the GPU ends."""
        memory = 0.0 if self.own is None else self.own.machine.memory
        whole = max(memory, self.need.most)
        margin = self.need.most - self.peak - CONTEXT
        parts = {**self.kinds, "context": CONTEXT, "gaps, at most": margin}
        boxes = ""
        for number, (kind, size) in enumerate(parts.items()):
            if size <= 0:
                continue
            share = 100 * size / whole
            title = f"{escape(kind)}: {_gib(size)}"
            color = f"hsl({210 + 40 * number},55%,60%)"
            boxes += (
                f'<div title="{title}" style="width:{share:.2f}%;background:{color};'
                f'overflow:hidden;white-space:nowrap;font-size:11px;color:#000">{title}</div>'
            )
        line = ""
        if memory:
            place = 100 * memory / whole
            line = (
                f'<div title="the GPU has {_gib(memory)}" style="position:absolute;top:-3px;'
                f'left:calc({place:.2f}% - 2px);height:28px;border-left:2px solid red"></div>'
            )
        return (
            '<div style="position:relative;max-width:60em;margin:6px 0">'
            f'<div style="display:flex;height:22px">{boxes}</div>{line}</div>\n'
        )


def _largest(found: Suggestion) -> Span:
    """Return the words about the largest batch."""
    name, value, needs, end = found

    def need_of(tried: int) -> str:
        need = needs[tried]
        return "is refused by the script" if need is None else f"needs up to {_gib(need)}"

    if value is None:
        smallest = min(needs)
        return Span(f"none fits: {name}={smallest} {need_of(smallest)}", "bad")
    words = f"{name}={value} fits, with up to {_gib(needs[value] or 0.0)}"
    larger = sorted(other for other in needs if other > value)
    # of those that were tried, one that needs too much says more than one that is refused
    larger.sort(key=lambda other: needs[other] is None)
    if end == "level":
        words += "; larger values need no more"
    elif end == "tries":
        words += "; larger values may fit, too"
    elif larger:
        words += f"; {larger[0]} {need_of(larger[0])}"
    return Span(words, "good")


def _gib(size: float) -> str:
    """Return bytes in the unit that a reader takes in."""
    if size >= 0.1 * _GIB:
        return f"{size / _GIB:,.2f} GiB"
    return f"{size / 2**20:,.2f} MiB"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _range(bounds: Sequence[float] | None, form: str) -> str:
    """Return two bounds as text; a dash if they are not known."""
    if bounds is None:
        return "-"
    return " to ".join(map(form.format, bounds))
