"""Every error that a user can meet. Each carries a `message`, a `hint` that says what to type, and an exit code.

    CloudtrainError
    ├── JobError            the job is wrong: a list of problems, each with its place in the file      exit 2
    ├── UsageError          a flag or an argument is wrong                                             exit 2
    ├── SettingsError       `cloudtrain.toml` or an account setting is wrong                           exit 2
    ├── PreflightError      a check found an error; carries the findings                               exit 2
    ├── MissingExtra        an optional dependency is not installed                                    exit 2
    ├── RunNotFound         no run has that name                                                       exit 3
    └── TargetError         the target refused, failed or cannot be reached                            exit 4
        ├── TargetUnavailable   the target cannot be used from here at all                             exit 4
        └── TargetUnreachable   the target does not answer just now; what waits for it tries again     exit 4

Exit code 1 is kept for "the run did not succeed", 130 for Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import ClassVar


class CloudtrainError(Exception):
    """Anything that cloudtrain can explain. `message` is one line without a final stop; `hint` says what to type."""

    exit_code: ClassVar[int] = 4

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n\nhint: {self.hint}"


@dataclass(frozen=True)
class Problem:
    """One mistake in a job. `path` is the way to the value: `("resources", "instance_count")`.

    `line` and `column` count from 1 and are set where the job came from a file.
    """

    path: tuple[str | int, ...]
    message: str
    hint: str | None = None
    file: str | None = None
    line: int | None = None
    column: int | None = None

    @property
    def dotted(self) -> str:
        """`inputs.train.local`, `resources.instance_groups[0].name`."""
        text = ""
        for part in self.path:
            text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
        return text

    @property
    def place(self) -> str:
        """`job.yaml:9:20  resources.instance_type`, or what of it is known."""
        where = self.file or ""
        if self.line is not None:
            where += f":{self.line}:{self.column}"
        return "  ".join(part for part in (where, self.dotted) if part)


class JobError(CloudtrainError, ValueError):
    """The job is wrong. All `problems` are reported at once."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems, "a JobError needs at least one problem"
        self.problems = tuple(problems)
        first = self.problems[0]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(first.message + more, hint=first.hint)

    def __str__(self) -> str:
        blocks = []
        for problem in self.problems:
            lines = [problem.message]
            if problem.place:
                lines.append(f"  {problem.place}")
            if problem.hint:
                lines.append(f"  hint: {problem.hint}")
            blocks.append("\n".join(lines))
        return "\n".join(blocks)


class UsageError(CloudtrainError):
    """A flag or an argument is wrong, or two of them contradict each other."""

    exit_code = 2


class SettingsError(CloudtrainError):
    """`cloudtrain.toml`, a profile or an account setting is wrong."""

    exit_code = 2


class PreflightError(CloudtrainError):
    """A check found at least one error, so nothing was sent. `findings` holds all of them, warnings too."""

    exit_code = 2

    def __init__(self, message: str, *, findings: Sequence[object], hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.findings = tuple(findings)


class MissingExtra(CloudtrainError, ImportError):
    """An optional dependency is not installed; the hint is the exact pip line."""

    exit_code = 2


class RunNotFound(CloudtrainError, LookupError):
    """No run has that name or reference."""

    exit_code = 3


class TargetError(CloudtrainError):
    """The target refused the job, failed, or cannot be reached."""

    exit_code = 4


class TargetUnavailable(TargetError):
    """The target cannot be used from here: not built into this version, or not on this machine."""


class TargetUnreachable(TargetError):
    """The target does not answer just now: no network, or it is overloaded. Trying again later may help."""


class NameTaken(TargetError):
    """The target has another run of that name: an earlier one, of a store that is no more, or of another machine."""


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A hint that names the nearest known word, or all of them when none is near; None when nothing is known."""
    options = sorted(set(known))
    if not options:
        return None
    folded = {option.casefold(): option for option in reversed(options)}
    near = get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    if near:
        return f"did you mean `{folded[near[0]]}`?"
    return "use one of " + ", ".join(f"`{option}`" for option in options)
