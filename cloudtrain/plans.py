"""The compiled job: the exact request, the uploads, the findings. Pure data; nothing here looks anything up."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING, Any

from cloudtrain.states import RunRef
from cloudtrain.units import format_size

if TYPE_CHECKING:
    from cloudtrain.render.document import Block, Document, Notice
    from cloudtrain.render.text import RichDocument


class Level(str, Enum):
    """How bad a finding is. Errors stop a submit; warnings and notices do not."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Finding:
    """One preflight result. `path` is the way to the value in the job; `place` is where that stands in its file."""

    code: str
    level: Level
    message: str
    hint: str | None = None
    path: tuple[str | int, ...] = ()
    place: str | None = None
    details: tuple[str, ...] = ()

    def notice(self) -> Notice:
        """The finding for a reader."""
        from cloudtrain.errors import Problem
        from cloudtrain.render.document import Notice

        where = "  ".join(part for part in (self.place, Problem(self.path, "").dotted) if part)
        return Notice(self.level.value, self.message, self.code, where or None, self.details, self.hint)


@dataclass(frozen=True)
class Upload:
    """A file that must be at `destination` before the request is sent. Content-addressed: same bytes, same place."""

    kind: str
    sha256: str
    destination: str
    size: int
    """Bytes of the content before compression."""
    file_count: int
    content: str | None = None
    """What is sent, where that is a text that the plan knows: the definition of an environment."""
    folder: str | None = None
    """A folder of the bundle that goes with it; the address that storage gives it stands where `content` says
    `${{folder}}`."""


@dataclass(frozen=True)
class Process:
    """One process that the job will really start: on which instance, with which rank, argv and environment.

    `rank` is None for launchers (torchrun, mpirun) and for processes that have none. `env` holds what is set for
    this process, beside what the instance has anyway.
    """

    instance: int
    role: str
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    rank: int | None = None
    local_rank: int | None = None


@dataclass(frozen=True)
class Bundle:
    """The identity of the user's code: what compile may know of the archive."""

    sha256: str
    size: int
    """Bytes of all files, uncompressed."""
    file_count: int


@dataclass(frozen=True)
class Machine:
    """What this machine has: logical CPUs, and the ids of the GPUs that may be used (as in CUDA_VISIBLE_DEVICES)."""

    cpus: int
    gpu_ids: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """How many GPUs may be used."""
        return len(self.gpu_ids)

    def __str__(self) -> str:
        gpus = f"{self.gpus} GPU{'s' if self.gpus > 1 else ''}" if self.gpus else "no GPU"
        return f"{self.cpus} CPU{'s' if self.cpus > 1 else ''}, {gpus}"


@dataclass(frozen=True)
class LocalAccount:
    """The local target's account settings: where its runs live, and what it runs them with. Absolute paths."""

    state_dir: str
    python: str
    machine: Machine
    host: str = "localhost"
    mpirun: str | None = None

    @property
    def place(self) -> str:
        """Where runs are: the middle of their references."""
        return self.host


RUN_TAG = "cloudtrain:run"
"""Key of the tag that makes a job on SageMaker ours; its value is the run's name."""


@dataclass(frozen=True)
class SageMakerAccount:
    """The SageMaker target's account settings, as far as they are known without the network."""

    region: str
    role: str
    """ARN of the execution role."""
    bucket: str
    missing: tuple[str, ...] = ()
    """Which of the three nobody gave (`region`, `role`, `bucket`); a placeholder stands in for them."""
    profile: str | None = None
    """The AWS profile whose credentials are used; the surroundings decide unless given."""
    overlay: Any = None
    """The user's own corrections of the instance catalogue, or None."""

    @property
    def place(self) -> str:
        """Where runs are, the middle of their references: `eu-west-1`, or `research@eu-west-1` with a profile."""
        from urllib.parse import quote

        return self.region if self.profile is None else f"{quote(self.profile, safe='')}@{self.region}"


@dataclass(frozen=True)
class AzureMLAccount:
    """The Azure ML target's account settings, as far as they are known without the network."""

    subscription_id: str
    resource_group: str
    workspace: str
    missing: tuple[str, ...] = ()
    """Which of the three nobody gave; a placeholder stands in for them."""
    credential: str | None = None
    """Which of azure-identity's credentials is used; the first that works unless given."""
    cloud: str | None = None
    """The name of the Azure cloud; the surroundings decide, and else it is the public one."""
    overlay: Any = None
    """The user's own corrections of the instance catalogue, or None."""

    @property
    def place(self) -> str:
        """Where runs are, the middle of their references: `[CREDENTIAL@]SUBSCRIPTION:GROUP:WORKSPACE[:CLOUD]`."""
        from urllib.parse import quote

        parts = (self.subscription_id, self.resource_group, self.workspace, *([self.cloud] if self.cloud else []))
        place = ":".join(quote(part, safe="") for part in parts)
        return place if self.credential is None else f"{self.credential}@{place}"

    @property
    def workspace_id(self) -> str:
        """The workspace's id in Azure Resource Manager."""
        return (
            f"/subscriptions/{self.subscription_id}/resourceGroups/{self.resource_group}"
            f"/providers/Microsoft.MachineLearningServices/workspaces/{self.workspace}"
        )


@dataclass(frozen=True)
class CompileContext:
    """Everything that compile may not look up itself. The same job, target and context give the same bytes."""

    run_name: str
    bundle: Bundle
    account: Any
    """The target's account settings: `LocalAccount`, `SageMakerAccount` or `AzureMLAccount`."""
    conda: str | None = None
    """The text of the job's `environment.conda_file`; None where it names none, or the bundle does not have it."""
    build: str | None = None
    """Hash of the job's `environment.build` folder; None where it names none, or the bundle has no Dockerfile there."""


@dataclass(frozen=True)
class Plan:
    """What a submit would send. `request` is the exact body; a submit sends it unchanged.

    Attributes:
        target: `local`, `sagemaker` or `azureml`.
        run_name: the name that the run will have.
        request: the body, JSON data only.
        uploads: what must be in place before the request is sent.
        processes: what will really run, process by process.
        findings: what the checks found.
        summary: label and text pairs that a person reads first.
        place: where the run will be: the middle of its reference.
    """

    target: str
    run_name: str
    job_name: str
    request: dict[str, Any]
    uploads: tuple[Upload, ...] = ()
    processes: tuple[Process, ...] = ()
    findings: tuple[Finding, ...] = ()
    summary: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    place: str = ""

    @property
    def ref(self) -> RunRef:
        """The reference that the run will have."""
        return RunRef(self.target, self.place, self.run_name)

    @property
    def request_json(self) -> str:
        """The request as canonical JSON: sorted keys, no white space, UTF-8; the bytes that the hash covers."""
        return canonical_json(self.request)

    @property
    def sha256(self) -> str:
        """Hash of the target, the request and the uploads."""
        content = {
            "target": self.target,
            "request": self.request,
            "uploads": [_without_none(asdict(upload)) for upload in self.uploads],
        }
        return hashlib.sha256(canonical_json(content).encode()).hexdigest()

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that stop a submit."""
        return tuple(finding for finding in self.findings if finding.level is Level.ERROR)

    def with_findings(self, findings: tuple[Finding, ...]) -> Plan:
        """The same plan with other findings."""
        return replace(self, findings=findings)

    def to_dict(self) -> dict[str, Any]:
        """The whole plan as JSON data."""
        return {
            "target": self.target,
            "run_name": self.run_name,
            "job_name": self.job_name,
            "sha256": self.sha256,
            "summary": dict(self.summary),
            "request": self.request,
            "uploads": [_without_none(asdict(upload)) for upload in self.uploads],
            "processes": [asdict(process) for process in self.processes],
            "findings": [asdict(finding) | {"level": finding.level.value} for finding in self.findings],
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        """The whole plan as indented JSON, keys in order, ending with a newline."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    def forms(self) -> dict[str, Callable[[], str]]:
        """What else the request can be printed as, by name (`aws-cli`, `python`); targets add theirs."""
        return {}

    def document(self, *, whole: bool = True) -> Document:
        """The plan for a reader: all of it, or only what it will do and what the checks found."""
        from cloudtrain.render.document import Document, Heading, Pairs

        blocks: list[Block] = [Heading(f"{self.run_name} on {self.target}"), Pairs(self.summary)]
        if whole:
            blocks += _upload_blocks(self.uploads)
            blocks += _process_blocks(self.processes)
            blocks += _request_blocks(self.request, self.sha256)
        blocks += _note_blocks(self.notes)
        blocks += [finding.notice() for finding in self.findings]
        return Document(blocks)

    def to_text(self, *, width: int | None = 80, color: bool = False) -> str:
        """The whole plan as text. Command lines are wrapped to `width` columns; data and paths are never cut."""
        from cloudtrain.render.text import to_text

        return to_text(self.document(), width=width, color=color)

    def to_html(self) -> str:
        """The whole plan as one self-contained `<div>`."""
        from cloudtrain.render.html import to_html

        return to_html(self.document())

    def _repr_html_(self) -> str:
        return self.to_html()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": self.to_text(), "text/html": self.to_html()}

    def __rich__(self) -> RichDocument:
        from cloudtrain.render.text import RichDocument

        return RichDocument(self.document())


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def canonical_json(value: Any) -> str:
    """One text per value: sorted keys, no white space, no NaN.

    Raises:
        ValueError: the value holds NaN or infinity, which JSON has no word for.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _upload_blocks(uploads: Sequence[Upload]) -> Iterator[Block]:
    from cloudtrain.render.document import Heading, Pairs

    if uploads:
        yield Heading("Uploads")
        yield Pairs([(upload.kind, f"{_amount(upload)}\n{upload.destination}") for upload in uploads])


def _amount(upload: Upload) -> str:
    files = "1 file" if upload.file_count == 1 else f"{upload.file_count:,} files"
    return f"{files}, {format_size(upload.size)}"


def _process_blocks(processes: Sequence[Process]) -> Iterator[Block]:
    """Every process that will run; neighbours that differ only in their number are shown as one, and of many instances
    that start the same the first two and the last."""
    from cloudtrain.render.document import Command, Heading, Pairs, Text

    groups = [list(group) for _, group in groupby(processes, key=_likeness)]
    shared = _shared_variables([group[0].env for group in groups if group[0].rank is None or group[0].role != "rank"])
    if processes:
        yield Heading("Processes")
    for group, left_out in _shown(groups):
        if left_out:
            yield Text(f"{len(left_out)} more like these, {_places(left_out)}: `--format json` has them all")
        variables = _common(process.env for process in group)
        yield Heading(_title(group))
        yield Command(group[0].argv, [(key, value) for key, value in variables.items() if key not in shared])
    if shared:
        yield Heading("Variables of every process")
        yield Pairs(list(shared.items()))


def _shown(groups: Sequence[list[Process]]) -> Iterator[tuple[list[Process], list[Process]]]:
    """Each group that is worth a block, with the processes that are left out before it."""
    for _, neighbours in groupby(groups, key=lambda group: (group[0].role, group[0].rank is None, len(group))):
        alike = list(neighbours)
        if len(alike) <= _WORTH_SHOWING or len(alike[0]) > 1:
            yield from ((group, []) for group in alike)
            continue
        first, second, *between, last = alike
        yield first, []
        yield second, []
        yield last, [process for group in between for process in group]


_WORTH_SHOWING = 8
"""Instances that start the same program, before a reader would rather be told that they do."""


def _likeness(process: Process) -> tuple[object, ...]:
    """Equal for processes that one block can show: ranks are told apart by RANK and LOCAL_RANK alone."""
    alone = process.instance if process.role != "rank" else None
    return (process.role, process.argv, alone, process.rank if process.role != "rank" else None)


def _title(group: Sequence[Process]) -> str:
    first, last = group[0], group[-1]
    if first.rank is None:
        return f"{first.role} on instance {first.instance}"
    if first is last:
        return f"{first.role} {first.rank} on instance {first.instance}"
    return f"{first.role}s {first.rank} to {last.rank} {_places(group)}"


def _places(processes: Sequence[Process]) -> str:
    numbers = [process.instance for process in processes]
    instances = dict.fromkeys((min(numbers), max(numbers)))  # SageMaker ranks algo-10 before algo-2
    return ("on instance " if len(instances) == 1 else "on instances ") + " to ".join(map(str, instances))


def _shared_variables(envs: Sequence[dict[str, str]]) -> dict[str, str]:
    """What several processes have in common; nothing for a single one, whose variables stand with it."""
    return _common(envs) if len(envs) > 1 else {}


def _common(envs: Iterable[dict[str, str]]) -> dict[str, str]:
    first, *others = envs
    return {key: value for key, value in first.items() if all(env.get(key) == value for env in others)}


def _request_blocks(request: dict[str, Any], sha256: str) -> Iterator[Block]:
    from cloudtrain.render.document import Heading, Lines

    yield Heading(f"Request (plan {sha256[:12]})")
    yield Lines(json.dumps(request, indent=2, ensure_ascii=False).splitlines())


def _note_blocks(notes: Sequence[str]) -> Iterator[Block]:
    from cloudtrain.render.document import Notice

    return (Notice("notice", note) for note in notes)
