"""The compiled job: the exact request, the uploads, the findings. Pure data; nothing here looks anything up."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any


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


@dataclass(frozen=True)
class Upload:
    """A file that must be at `destination` before the request is sent. Content-addressed: same bytes, same place."""

    kind: str
    sha256: str
    destination: str
    size: int
    """Bytes of the content before compression."""
    file_count: int


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


@dataclass(frozen=True)
class CompileContext:
    """Everything that compile may not look up itself. The same job, target and context give the same bytes."""

    run_name: str
    bundle: Bundle
    account: Any
    """The target's account settings: `LocalAccount` for local."""
    git_commit: str | None = None


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
            "uploads": [asdict(u) for u in self.uploads],
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
            "uploads": [asdict(upload) for upload in self.uploads],
            "processes": [asdict(process) for process in self.processes],
            "findings": [asdict(finding) | {"level": finding.level.value} for finding in self.findings],
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        """The whole plan as indented JSON, keys in order, ending with a newline."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"


def canonical_json(value: Any) -> str:
    """One text per value: sorted keys, no white space, no NaN.

    Raises:
        ValueError: the value holds NaN or infinity, which JSON has no word for.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
