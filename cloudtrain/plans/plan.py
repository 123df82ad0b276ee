"""The compiled job: the exact request, the uploads and the findings. This module holds pure data
and does no I/O."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeVar

from cloudtrain.documents import JsonMapping, JsonObject
from cloudtrain.errors import UsageError, ValuePath, counted, dotted
from cloudtrain.job.model import format_size
from cloudtrain.plans.document import (
    Block,
    CommandLine,
    Document,
    Heading,
    Lines,
    Notice,
    Pairs,
    Section,
    Table,
    Text,
    to_text,
)
from cloudtrain.plans.processes import (
    TOLD_APART,
    Alike,
    Process,
    Processes,
    common_variables,
    processes_data,
)
from cloudtrain.plans.states import RunRef
from cloudtrain.system.plugins import ability, all_parts, find_usable, part

# Functions that hide secrets, which may be sent but must not appear in output or logs.

Shown = TypeVar("Shown")

HIDDEN = "***"
"""Replaces a secret."""


def hide(value: Shown, secrets: Iterable[str]) -> Shown:
    """Return `value` (a text, mapping or sequence) with every secret replaced by `***`. Secrets are
    also replaced inside of longer texts, and where they are written with JSON escapes."""
    forms: set[str] = set()
    for secret in secrets:
        forms.update(_forms(secret))
    longest_first = sorted(forms, key=len, reverse=True)

    def change(text: str) -> str:
        for form in longest_first:
            text = text.replace(form, HIDDEN)
        return text

    return map_texts(value, change) if forms else value


def _forms(secret: str) -> Iterable[str]:
    """Yield the forms in which a secret can be written: unchanged and with JSON escapes; of several
    lines, also those of each line, because output is printed line by line."""
    lines = [line for line in secret.splitlines() if len(line) > _SHORT]
    for form in (secret, *lines):
        yield form
        for ascii_only in (False, True):
            once = json.dumps(form, ensure_ascii=ascii_only)[1:-1]
            yield once
            yield json.dumps(once, ensure_ascii=ascii_only)[1:-1]


_SHORT = 8
"""Number of letters. Hiding a line of at most this length would also hide text that is not
secret."""


class Level(str, Enum):
    """Severity of a finding. Only errors stop a submit; warnings and notices do not."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"

    def __str__(self) -> str:
        return self.value


class Finding(NamedTuple):
    """One result of the preflight checks. `path` is the path of the value in the job; `place` is
    the value's position in the job file."""

    code: str
    level: Level
    message: str
    hint: str | None = None
    path: ValuePath = ()
    place: str | None = None
    details: tuple[str, ...] = ()

    def notice(self) -> Notice:
        """Return the finding as a `Notice` of a document."""
        where = "  ".join(filter(None, (self.place, dotted(self.path))))
        level = self.level.value
        return Notice(level, self.message, self.code, where or None, self.details, self.hint)


class Upload(NamedTuple):
    """A file that must be at `destination` before the request is sent. The destination contains the
    hash of the content, so equal files have equal destinations."""

    kind: str
    sha256: str
    destination: str
    size: int
    """Bytes of the content before compression."""
    file_count: int
    content: str | None = None
    """The text to send, if the plan knows it: the definition of an environment."""
    folder: str | None = None
    """A folder of the bundle that is sent along. `${{folder}}` in `content` becomes the folder's
    address in storage."""
    source: str | None = None
    """The folder or file on this machine to send, for data that is not part of the bundle. The
    plan's hash leaves it out, because the data is the same wherever it is stored."""


class PlannedTrial(NamedTuple):
    """One of the first trials of a sweep with `total` trials: its number, the name of its run, its
    values as text."""

    number: int
    run: str
    values: str
    total: int

    @property
    def note(self) -> str:
        return f"trial {self.number} of {self.total} will be `{self.run}`: {self.values}"


class Numbers(NamedTuple):
    """The limits of a plan, with sums in US dollars at list prices. None if unknown or without
    limit; on a target that is free, all sums are 0."""

    at_most: float | None = None
    per_hour: float | None = None
    max_runtime_seconds: int | None = None


class Bundle(NamedTuple):
    """The hash, size and file count of the user's code. Compiling a job needs nothing else about
    the code."""

    sha256: str
    size: int
    """Bytes of all files, uncompressed."""
    file_count: int


class Machine(NamedTuple):
    """The resources of this machine: logical CPUs, and the ids of the usable GPUs (as in
    CUDA_VISIBLE_DEVICES)."""

    cpus: int
    gpu_ids: tuple[str, ...] = ()
    memory: int = 0
    """The bytes of memory that processes may use; 0 if unknown."""

    @property
    def gpus(self) -> int:
        """The number of usable GPUs."""
        return len(self.gpu_ids)

    def __str__(self) -> str:
        return f"{counted(self.cpus, 'CPU')}, {counted(self.gpus, 'GPU')}"


class CompileContext(NamedTuple):
    """The data that compiling a job needs besides the job. Compiling looks nothing up itself, so
    the same job, target and context always give the same request."""

    run_name: str
    bundle: Bundle
    account: Any
    """The target's account settings: `LocalAccount`, `SageMakerAccount` or `AzureMLAccount`."""
    conda: str | None = None
    """The text of the job's `environment.conda_file`; None if the job names none, or the bundle
    does not contain it."""
    build: str | None = None
    """Hash of the job's `environment.build` folder; None if the job names none, or the folder has
    no Dockerfile."""
    requirements: str | None = None
    """Hash of the job's `environment.requirements` and the files it includes; None if the bundle
    has no such file."""
    package: bool = False
    """Whether the bundle has a `setup.py` at the top. SageMaker's toolkit installs such a bundle as
    a Python package."""
    after: tuple[str, ...] = ()
    """Runs on this machine that must succeed before this run starts, because it reads their
    output."""


class Printable(ABC):
    """A value that terminals and notebooks show as its document."""

    @abstractmethod
    def document(self) -> Document:
        """Return the value as a document."""

    def to_text(self, *, width: int | None = 80, color: bool = False) -> str:
        """Return the value as text. Command lines are wrapped to `width` columns; data and paths
        are never cut. The middle lines of a very long request are replaced by the number of omitted
        lines."""
        return to_text(self.document(), width=width, color=color)

    def __str__(self) -> str:
        return self.to_text().rstrip("\n")

    def _repr_html_(self) -> str:
        from cloudtrain.plans.html import to_html

        return to_html(self.document())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": self.to_text(), "text/html": self._repr_html_()}


@dataclass(frozen=True)
class Plan(Printable):
    """The data that a submit sends: exactly the body in `request`, and the files in `uploads`.

    Attributes:
        target: the name of the target.
        run_name: the name that the run will have.
        request: the body, JSON data only.
        uploads: the files that must be uploaded before the request is sent.
        processes: every process that will run.
        findings: the results of the checks.
        summary: pairs of label and text that introduce the plan to a reader.
        trials: the first trials of a sweep that cloudtrain drives.
        place: the region, workspace or host of the run, which is the middle part of the run's
            reference.
        outputs: maps `model`, `checkpoint` and `outputs/NAME` to the locations on the target that
            the run will write to.
        settings: the files on this machine, other than the job's, that influenced the plan:
            `cloudtrain.toml`, `instances.toml`, and files of the target's tools.
    """

    target: str
    run_name: str
    job_name: str
    request: JsonObject
    uploads: tuple[Upload, ...] = ()
    processes: Sequence[Process] = ()
    findings: tuple[Finding, ...] = ()
    summary: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    trials: tuple[PlannedTrial, ...] = ()
    place: str = ""
    settings: tuple[str, ...] = ()
    outputs: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    environment: JsonMapping = field(default_factory=dict, repr=False, compare=False)
    """The packages that the job installs, as JSON data; empty if it installs none."""
    numbers: Numbers = field(default=Numbers(), repr=False, compare=False)
    hidden: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """Secrets in the request. Every rendering hides them; the request that is sent contains
    them."""

    @property
    def ref(self) -> RunRef:
        """The reference of the planned run."""
        return RunRef(self.target, self.place, self.run_name)

    @property
    def request_json(self) -> str:
        """The request as canonical JSON (sorted keys, no white space, UTF-8), from which `sha256`
        is computed."""
        return canonical_json(self.request)

    @property
    def sha256(self) -> str:
        """The SHA-256 hash of the target, the request and the uploads."""
        uploads = [_without_none(upload._replace(source=None)) for upload in self.uploads]
        content = {"target": self.target, "request": self.request, "uploads": uploads}
        return hashlib.sha256(canonical_json(content).encode()).hexdigest()

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings of level error, which stop a submit."""
        return tuple(finding for finding in self.findings if finding.level is Level.ERROR)

    def with_findings(self, findings: tuple[Finding, ...]) -> Plan:
        """Return a copy of the plan with `findings` in place of its own."""
        return replace(self, findings=findings)

    def renamed(self, name: str) -> Plan:
        """Return the plan for the run `name`: the plan that compile returns under this name. A
        longer name is unchanged: `job-3f9a1c22-1` is not replaced in `job-3f9a1c22-12`."""
        old = re.compile(rf"{re.escape(self.run_name)}(?![0-9])")

        def change(text: str) -> str:
            # Most texts do not hold the name, and looking for it is faster than the expression.
            return old.sub(name, text) if self.run_name in text else text

        def rename_process(process: Process) -> Process:
            argv = map_texts(process.argv, change)
            return replace(process, argv=argv, env=map_texts(process.env, change))

        values = {field: map_texts(getattr(self, field), change) for field in _NAMED}
        if isinstance(self.processes, Processes):
            values["processes"] = self.processes.mapped(rename_process)
        else:
            values["processes"] = tuple(map(rename_process, self.processes))

        return replace(self, **values)

    def to_dict(self) -> JsonObject:
        """Return the whole plan as JSON data, with secrets hidden. The processes are in the form of
        `processes_data`, which writes common values of many processes only once."""
        findings = []
        for finding in self.findings:
            findings.append({**finding._asdict(), "level": finding.level.value})

        content = {
            "target": self.target,
            "run_name": self.run_name,
            "job_name": self.job_name,
            "sha256": self.sha256,
            "summary": dict(self.summary),
            "request": self.request,
            "uploads": [_without_none(upload) for upload in self.uploads],
            "processes": processes_data(self.processes),
            "findings": findings,
            "notes": [trial.note for trial in self.trials] + list(self.notes),
            "settings": list(self.settings),
        }
        if self.environment:
            content["environment"] = {"requirements": self.environment}
        return hide(content, self.hidden)

    def to_json(self) -> str:
        """Return the result of `to_dict` as indented JSON, with a newline at the end."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    def short(self) -> JsonObject:
        """Return what a reader wants to know before the plan is sent, as JSON data of a few lines:
        numbers, and the first findings. Secrets are hidden."""
        findings = []
        for finding in self.findings[:_FEW]:
            level = finding.level.value
            findings.append({"code": finding.code, "level": level, "message": finding.message})
        content = {
            "plan": self.sha256,
            "run": self.run_name,
            "target": self.target,
            "place": self.place,
            **self.to_numbers(),
            "findings": findings,
            "findings_left_out": len(self.findings) - len(findings),
        }
        for upload in self.uploads:
            if upload.kind == "code":
                content["code"] = {"files": upload.file_count, "bytes": upload.size}
        return hide(content, self.hidden)

    def to_numbers(self) -> JsonObject:
        """Return how large, how long and how expensive the run can become, as JSON data."""
        processes = Processes.of(self.processes)
        numbers = self.numbers._asdict()
        seconds = numbers.pop("max_runtime_seconds")
        return {
            "instances": len(processes.started) or None,
            "processes": processes.ranks.total() or len(processes) or None,
            "cost": {**numbers, "currency": "USD"},
            "max_runtime_seconds": seconds,
        }

    def forms(self) -> dict[str, Callable[[], str]]:
        """Map each of the target's `plan_formats` to a function that returns the request in that
        format. Other tools for the target read these formats."""
        forms_of = part(find_usable(self.target), PlanForms)
        return {} if forms_of is None else forms_of(self)

    def document(self, *, whole: bool = True, once: bool = False) -> Document:
        """Return the summary and the findings, errors first. If `whole`, the uploads, the processes
        and the request follow. With `once`, the request refers to the processes that are shown
        above it. Secrets are hidden."""
        summary = [*self.summary]
        if self.settings:
            summary.append(("settings", "\n".join(self.settings)))
        if not whole:  # else it stands beside the request
            summary.append(("plan", self.sha256[:12]))

        blocks: list[Block] = [Heading(f"{self.run_name} on {self.target}"), Pairs(summary)]
        others = [finding for finding in self.findings if finding.level is not Level.ERROR]
        blocks += [finding.notice() for finding in (*self.errors, *others)]
        blocks += [Notice("notice", note) for note in self.notes]

        if self.trials:
            total = self.trials[0].total
            blocks.append(Heading(f"The first {len(self.trials)} of {total} trials"))
            trials = [(str(trial.number), trial.run, trial.values) for trial in self.trials]
            blocks.append(Table(("TRIAL", "RUN", "VALUES"), trials))

        if whole:
            if self.uploads:
                blocks.append(Heading("Uploads"))
                blocks.append(Pairs([_upload_row(upload) for upload in self.uploads]))
            if self.processes:
                blocks.append(Section("Processes", list(_process_blocks(self.processes))))
            request = self.request
            own = request.get("processes")
            if once and isinstance(own, list) and self.processes:
                above = f"{len(own)} as above; `--format request` has the text"
                request = {**request, "processes": above}
            title = f"Request (plan {self.sha256[:12]})"
            blocks.append(Section(title, list(request_blocks(request))))
        return hide(Document(blocks), self.hidden)

    def __str__(self) -> str:
        """Return the summary and the findings. `to_text()` returns the whole plan."""
        return to_text(self.document(whole=False), width=80).rstrip("\n")

    def to_html(self) -> str:
        """Return the whole plan as one self-contained `<div>`."""
        return self._repr_html_()

    def __rich__(self) -> Document:
        return self.document()

    # Convert the plan into an object or code of the service's own SDK. Every plan has these
    # methods, so that editors and type checkers find them on the result of `ct.plan`. The target's
    # part `export` does the work.

    def to_estimator(self, session: object = None) -> Any:
        """Return an estimator whose `fit(**plan.fit_arguments())` sends the request. `session` is a
        session of the SDK; None creates one. A warning says what is unusual about the estimator,
        for example that it has no `distribution`."""
        return self._export("to_estimator")(session)

    def fit_arguments(self) -> JsonObject:
        """Return the arguments for the estimator's `fit`."""
        return dict(self._export("fit_arguments")())

    def to_model_trainer(self, session: object = None) -> Any:
        """Return a model trainer whose `train(**plan.train_arguments())` sends the request.
        `session` is a session of the SDK; None creates one. A warning says what is unusual about
        the trainer. The SDK asks AWS when it makes the trainer."""
        return self._export("to_model_trainer")(session)

    def train_arguments(self) -> JsonObject:
        """Return the arguments for the trainer's `train`."""
        return dict(self._export("train_arguments")())

    def to_command(self) -> Any:
        """Return a command job, which `ml_client.jobs.create_or_update` accepts."""
        return self._export("to_command")()

    def to_python(self, *options: object, **named_options: object) -> str:
        """Return code that sends the request with the SDK. The options differ by target."""
        return str(self._export("to_python")(*options, **named_options))

    def to_yaml(self) -> str:
        """Return the job as YAML for the service's command line."""
        return str(self._export("to_yaml")())

    def _export(self, method: str) -> Any:
        """Return a method of the target's exports, or refuse with the names of the targets that
        have it (CT904)."""
        exports = part(find_usable(self.target), PlanExports)
        own = None if exports is None else exports.of(self)
        export = getattr(own, method, None)
        if export is not None:
            return export

        by_target = all_parts(PlanExports)
        names = [name for name, other in by_target.items() if hasattr(other, method)]
        calls = " or ".join(f'`ct.plan(job, "{name}").{method}()`' for name in names)
        message = f"a plan for `{self.target}` has no `{method}`"
        raise UsageError(message, hint=f"write {calls}" if calls else None, code="CT904")


@ability("forms")
class PlanForms(Protocol):
    """The part of a target that writes requests in the formats of other tools."""

    def __call__(self, plan: Plan, /) -> dict[str, Callable[[], str]]:
        """Map each format's name to a function that returns the request in that format; empty if
        other tools cannot send the request."""
        ...


@ability("export")
class PlanExports(Protocol):
    """The part of a target that exports plans to the SDKs: a class with those methods of `Plan`,
    such as `to_yaml`, that the target supports."""

    def of(self, plan: Plan, /) -> object | None:
        """Return an instance for a plan, or None if other tools cannot send the request."""


_FEW = 8
"""The most findings of a plan's short form."""

_NAMED = ("run_name", "request", "uploads", "summary", "notes", "trials", "outputs")
"""The fields of a plan that may hold the run's name, besides the processes."""


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a copy of JSON data, or of tuples of such data, in which every text is the result of
    `change`."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {map_texts(key, change): map_texts(inner, change) for key, inner in value.items()}
    if not isinstance(value, (list, tuple)):
        return value

    items = [map_texts(inner, change) for inner in value]
    if isinstance(value, list):
        return items
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


def _without_none(upload: Upload) -> dict[str, object]:
    """Return an upload as JSON data, without the fields that it does not use."""
    return {name: value for name, value in upload._asdict().items() if value is not None}


def canonical_json(value: Any) -> str:
    """Return a value as canonical JSON: sorted keys, no white space, no NaN.

    Raises:
        ValueError: the value holds NaN or infinity, which JSON cannot express.
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def _upload_row(upload: Upload) -> tuple[str, str]:
    """Return label and value for a row of `Pairs`."""
    files = "file" if upload.file_count == 1 else "files"
    amount = f"{upload.file_count:,} {files}, {format_size(upload.size)}"
    if upload.source is not None:
        amount += f" of {upload.source}"
    return upload.kind, f"{amount}\n{upload.destination}"


def _process_blocks(processes: Sequence[Process]) -> Iterator[Heading | Text | CommandLine | Pairs]:
    """Yield blocks that show the processes. Ranks that differ only in their number are shown as
    one. If many instances start the same program, only the first two of these processes and the
    last one are shown."""
    groups = Processes.of(processes).groups
    envs: list[Mapping[str, str]] = []
    for group in groups:
        if group.role != "rank":
            envs += [process.env for process in group.examples]

    # A single process is shown with its own variables.
    shared = common_variables(envs) if len(envs) > 1 else {}
    for group in groups:
        for item in _shown(group):
            if isinstance(item, str):
                yield Text(item)
                continue

            env = dict(group.env if group.role == "rank" else item.env)
            for key in shared:
                env.pop(key, None)
            yield Heading(_title(group, item))
            yield CommandLine(item.argv, list(env.items()))
    if shared:
        yield Heading("Variables of every process")
        yield Pairs(list(shared.items()))


def _shown(group: Alike) -> Iterator[Process | str]:
    """Yield the processes of a group that are shown, and a line of text in place of the omitted
    ones."""
    if group.role == "rank":
        yield group.first
    elif group.count <= _WORTH_SHOWING:
        yield from group
    else:
        yield group.first
        yield group.make(1)
        instances: list[int] = []
        for instance, number in group.spread:
            instances += [instance] * number

        between = instances[2:-1]
        where = _places(between)
        if group.count <= TOLD_APART:
            where += ": `--format json` has them all"
        yield f"{len(between):,} more like these, {where}"
        yield group.last


_WORTH_SHOWING = 8
"""Number of instances that start the same program, above which the plan summarizes them."""


def _title(group: Alike, process: Process) -> str:
    """Return the heading of a process; of ranks, that of the whole group."""
    if process.rank is None:
        return f"{group.role} on instance {process.instance}"
    if group.role == "rank" and group.count > 1:
        places = _places([instance for instance, _ in group.spread])
        return f"ranks {process.rank} to {group.last.rank} {places}"
    return f"{group.role} {process.rank} on instance {process.instance}"


def _places(numbers: Sequence[int]) -> str:
    """Return a text such as `on instances 2 to 7`."""
    # SageMaker sorts algo-10 before algo-2, so the numbers are not in order.
    first = min(numbers)
    last = max(numbers)
    if first == last:
        return f"on instance {first}"
    return f"on instances {first} to {last}"


def request_blocks(request: JsonObject) -> Iterator[Lines | Text]:
    """Yield a request as JSON. A value that is a script is shown as several lines. The middle lines
    of a very long request are replaced by the number of omitted lines."""
    text = json.dumps(request, indent=2, ensure_ascii=False)
    lines: list[str] = []
    for line in text.splitlines():
        lines += _readable(line)
    start = _within(lines, _READ)
    end = len(lines) - _within(lines[::-1], _READ // 10)
    if end <= start:
        yield Lines(lines)
        return
    yield Lines(lines[:start])
    yield Text(
        f"{end - start:,} more lines of the request: `cloudtrain plan --format request` has "
        "them all"
    )
    yield Lines(lines[end:])


def _readable(line: str) -> list[str]:
    """Return a line of JSON, or several lines if its value is a script."""
    script = re.fullmatch(r'(\s*)("[^"]*": )("#!(?:[^"\\]|\\.)*"),?', line)
    if script is None:
        return [line]
    indent, key, text = script.groups()
    lines = [f"{indent}{key}|"]
    for line in json.loads(text).splitlines():
        lines.append(f"{indent}  {line}".rstrip())
    return lines


_READ = 200_000
"""Characters of a request (about 80 pages) that are shown from its start; a tenth of this is shown
from its end. A thousand instances on this machine mean a thousand lists of arguments and
variables."""


def _within(lines: Sequence[str], most: int) -> int:
    """Return how many lines, counted from the first, fit into `most` characters."""
    size = 0
    for count, line in enumerate(lines):
        size += len(line) + 1
        if size > most:
            return count
    return len(lines)
