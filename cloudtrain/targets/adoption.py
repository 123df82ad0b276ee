"""The types that `cloudtrain adopt` and the targets exchange: another tool's request, and the job
made from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cloudtrain.plans.comparison import ValuePath
from cloudtrain.plans.plan import Bundle, CompileContext

if TYPE_CHECKING:
    from cloudtrain.plans.plan import Plan


FILL_IN = "FILL-IN"
"""Stands for a value that the user adds."""

UNREAD = "0" * 64
"""Placeholder for the hash of data on this machine. An adoption does not read that data."""


def draft_context(
    name: str, account: object, *, conda: str | None = None, build: str | None = None
) -> CompileContext:
    """Return the context for compiling a draft. An adoption does not read the code, so the bundle
    is a placeholder."""
    return CompileContext(name, Bundle(UNREAD, 0, 0), account, conda=conda, build=build)


class Search(NamedTuple):
    """A search for hyperparameters by another tool's tuner. `fields` are the fields of the
    equivalent sweep, except its job. `lost` holds the parts of the search that are lost if only the
    job is adopted, each with the reason."""

    fields: Mapping[str, Any]
    lost: Mapping[str, str]


@dataclass(frozen=True)
class Original:
    """One job as another tool sends it: the whole request, and the settings, files and code that
    accompany it."""

    target: str
    request: Mapping[str, Any]
    name: str
    """The name that the other tool gave the job."""
    kind: str
    """The kind of document that the job was read from, in words: `a CreateTrainingJob request`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the target that come from outside the request."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Text files that the job needs besides its code, by name, such as the conda file of its
    environment."""
    folder: str | None = None
    """The folder of the file that the job was read from. Relative paths start there."""
    source: str | None = None
    """The folder or single file on this machine that holds the job's code, relative to `folder`;
    None if unknown."""
    code: bytes | None = None
    """An archive (tar, gzip) of the code, when the code is not a folder on this machine."""
    start: Mapping[str, Any] | None = None
    """What the job starts, if files beside the request say so. The target compares this instead of
    the request's command."""
    secrets: tuple[str, ...] = ()
    """The environment variables of the other tool's job that were secrets, which the request no
    longer has."""
    gaps: tuple[str, ...] = ()
    """What did not run of the script that creates the job: `failed: cell 3, cell 4`."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """Parts of the source that no request can express, each with the reason."""
    replaced: Mapping[str, str] = field(default_factory=dict)
    """Fields that cloudtrain writes in its own way, each with the reason. They do not count as
    differences."""
    search: Search | None = None
    """The search, if the job is searched with many trials."""
    uploads: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    """Maps the address of each input that the script uploads to its files, by their paths below the
    address."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Maps these addresses to paths of this machine, relative to `folder`. The path of a folder
    ends with `/`."""
    made_data: bytes | None = None
    """An archive (tar, gzip) of the `data` that is not on this machine, by its paths beside the job
    file."""
    other_uploads: tuple[str, ...] = ()
    """The addresses of the uploads that the request does not name."""


@dataclass
class Draft:
    """A job and settings that express as much of a request as their fields allow."""

    job: dict[str, Any]
    settings: dict[str, Any]
    comments: dict[ValuePath, str] = field(default_factory=dict)
    """Comments to write beside fields of the job: that a value was guessed, or what it was
    before."""
    last_resort: bool = False
    """Whether to use this draft only if no earlier draft compiles to the same request."""
    settings_head: tuple[str, ...] = ()
    """Comment lines to write above the settings."""
    sweep: Mapping[str, Any] | None = None
    """The fields of a sweep beside the job; None unless the file holds a sweep."""


@dataclass(frozen=True)
class BatchSettings:
    """The options of a batch script, or of the command in it that starts the processes, that no
    field of a job can express. Some become `settings` of the target; the others are `lost`."""

    settings: dict[str, Any]
    """The target's table of `cloudtrain.toml`."""
    lost: Mapping[str, str]
    """Maps each option that neither the job nor a setting can express to the reason."""
    head: tuple[str, ...] = ()
    """What to write above the settings."""
    image: str | None = None
    """The container image of the processes."""


@dataclass(frozen=True)
class Comparable:
    """A request without the values that change with each submission: the run's name and the code's
    location."""

    request: dict[str, Any]
    renewed: tuple[tuple[str, str], ...] = ()
    """Each field that was left out, with the reason."""


class Adopter(Protocol):
    """The part of a target that converts requests of the target's service into jobs."""

    def originals(self, data: Any, folder: str | None) -> list[Original]:
        """Return the jobs in `data`, if it is a request, an event or a description of this target's
        service; an empty list for any other document.

        Raises:
            UsageError: the document is for this target, but cannot be converted into a training
                job.
        """
        ...

    def drafts(self, original: Original) -> Iterator[Draft]:
        """Yield jobs that are equivalent to the original, the most portable first."""
        ...

    def context(self, original: Original, settings: Any) -> CompileContext:
        """Return the context for compiling a draft: the original's name, and the account in the
        original's request."""
        ...

    def comparable(
        self,
        request: Mapping[str, Any],
        original: Original,
        context: CompileContext,
        plan: Plan | None,
    ) -> Comparable:
        """Return a request without the values that change with each submission. `plan` is the
        draft's plan, or None if `request` is the original request."""
        ...

    def overrides(self, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the overrides that turn the request `ours` into `theirs`. Changes that no job can
        make are omitted."""
        ...

    def hook(self) -> str | None:
        """Return the source text of a Python module with which `adoption.driver` captures the jobs
        that a script creates. Each record has the `name` that the script was told. Return None if
        the target's jobs are not created from Python."""

    def home(self, environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
        """Yield the user's settings that a script finds, without secrets: path below the home
        folder, text of the file, and words that name the settings."""
        ...

    def captured(
        self, record: Mapping[str, Any], uploads: Mapping[str, bytes]
    ) -> tuple[list[Original], bytes | None]:
        """Return the jobs in the `record` of a hook, and an archive (tar, gzip) of their code. The
        archive is None if the code is not among `uploads`, the files that the script uploaded."""
        ...

    def reason(self, path: ValuePath) -> str:
        """Return why the draft's request and the original request still differ at this path."""
        ...
