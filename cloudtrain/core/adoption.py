"""What `cloudtrain adopt` and the targets hand each other: the request of another tool, and the job it becomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cloudtrain.core.differences import Path

if TYPE_CHECKING:
    from cloudtrain.core.plan import CompileContext, Plan


UNREAD = "0" * 64
"""In the place of the hash of data of this machine, which an adoption does not read."""


class Search(NamedTuple):
    """The search that a tuner makes: the fields of a sweep beside its job, and what is lost where only the job can be
    adopted."""

    fields: Mapping[str, Any]
    lost: Mapping[str, str]


@dataclass(frozen=True)
class Original:
    """One job as another tool sends it: the whole request, and what is known beside it."""

    target: str
    request: Mapping[str, Any]
    name: str
    """The name that the other tool gave the job."""
    kind: str
    """What it was read from, in words: `a CreateTrainingJob request`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the target that are known beside the request."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts that the job needs beside its code, by name: the conda file of its environment."""
    folder: str | None = None
    """The folder of the file that it was read from: relative places start there."""
    source: str | None = None
    """The folder, or the one file, of this machine that holds the job's code, from `folder`; None where it is not
    known."""
    code: bytes | None = None
    """An archive (tar, gzip) of the code, where it is no folder of this machine."""
    start: Mapping[str, Any] | None = None
    """What the job starts, where files beside the request say it; the target compares it instead of what starts it."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """What the source says and no request can hold, with the reason."""
    search: Search | None = None
    """Where it is a search over many trials of the job."""


@dataclass
class Draft:
    """A job and settings that say what a request says, as far as fields go."""

    job: dict[str, Any]
    settings: dict[str, Any]
    comments: dict[Path, str] = field(default_factory=dict)
    """What to write beside a field of the job: that its value was guessed, or what it was before."""
    last_resort: bool = False
    """Whether it counts only where no draft before it is equal."""
    settings_head: tuple[str, ...] = ()
    """What to write above the settings."""
    sweep: Mapping[str, Any] | None = None
    """The fields of a sweep beside the job, where the file is to hold one."""


@dataclass(frozen=True)
class Unknown:
    """What the text of a script does not say: the expression."""

    text: str


@dataclass(frozen=True)
class StaticCall:
    """A call in the text of a script: its name with dots, and its arguments, as far as they are known."""

    name: str
    arguments: list[Any]
    keywords: dict[str, Any]


@dataclass(frozen=True)
class Comparable:
    """A request without what every submission of cloudtrain writes anew: the run's name, the code's place."""

    request: dict[str, Any]
    renewed: tuple[tuple[str, str], ...] = ()
    """Each place that was left out, and why."""


class Adopter(Protocol):
    """A target's part of adopting: it reads requests of its own service."""

    def originals(self, data: Any, folder: str | None) -> list[Original]:
        """The jobs in a document that is this target's: a request, an event, a description. Empty where it is not.

        Raises:
            UsageError: it is this target's, and no training job can be made of it.
        """
        ...

    def drafts(self, original: Original) -> Iterator[Draft]:
        """Jobs that say the same, the most portable first."""
        ...

    def context(self, original: Original, settings: Any) -> CompileContext:
        """What the draft is compiled with: the original's name, and the account as the request names it."""
        ...

    def comparable(
        self, request: Mapping[str, Any], original: Original, context: CompileContext, plan: Plan | None
    ) -> Comparable:
        """A request without what each submission writes anew: the original, or ours, which has a plan."""
        ...

    def overrides(self, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
        """What has to be merged into our comparable request so that it is theirs, as far as a job may say it."""
        ...

    def hook(self) -> str | None:
        """The source of a module that stops a script at the first job that it creates (`adoption.driver`); None where
        the target's jobs are not created by Python."""
        ...

    def captured(self, record: Mapping[str, Any], uploads: Mapping[str, bytes]) -> tuple[list[Original], bytes | None]:
        """The jobs that a hook wrote down, and their code (tar, gzip) out of the script's uploads."""
        ...

    def reason(self, path: Path) -> str:
        """Why a place of the request differs after all."""
        ...
