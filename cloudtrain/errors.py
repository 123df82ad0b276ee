"""Every error that cloudtrain reports. Each has a `message`, a `hint` that says what to type, and
an exit code.

    CloudtrainError
    ├── JobError            the job is wrong: a list of problems with their positions      exit 2
    ├── UsageError          a flag or an argument is wrong                                 exit 2
    │   ├── PlanDiffers     the plan is not the one that was to be sent                    exit 5
    │   └── PersonNeeded    a person has to confirm or approve it                          exit 6
    ├── SettingsError       `cloudtrain.toml` or an account setting is wrong               exit 2
    ├── PreflightError      a check found an error; holds the findings                     exit 2
    ├── MissingExtra        an optional dependency is not installed                        exit 2
    ├── NotResolved         uv found no versions for the requirements                      exit 1
    ├── RunNotFound         no run has that name                                           exit 3
    ├── StoreError          the run store cannot be read or written                        exit 4
    └── TargetError         the target refused, failed or cannot be reached                exit 4
        ├── NothingWritten  the run wrote nothing to the path                              exit 1
        ├── TargetUnavailable  the target cannot be used from this machine               exit 4
        └── TargetUnreachable  the target does not answer now; waiting calls try again   exit 4
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar


class CloudtrainError(Exception):
    """An error that cloudtrain can explain. `message` is one line without a period; `hint` says
    what to type.

    `code` is the code for `cloudtrain explain` (`cloudtrain/job/codes.toml`). Default: the code of
    the error's class.
    """

    exit_code: ClassVar[int] = 4
    code: str = ""
    _problems: tuple[Problem, ...] = ()

    def __init__(self, message: str, *, hint: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.hint: str = hint or more_about(self.code)

    def __str__(self) -> str:
        # Names in a message may hold control characters, which a terminal would obey.
        text = ""
        for letter in self._text():
            is_safe = letter.isprintable() or letter == "\n"
            text += letter if is_safe else ascii(letter)[1:-1]
        return text

    def _text(self) -> str:
        return f"{self.message}\n\nhint: {self.hint}"

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The mistakes to report: all mistakes of a job or settings file, or this error alone."""
        return self._problems or (Problem((), self.message, self.hint, code=self.code),)


def more_about(code: str) -> str:
    """Return the default hint for an error with this code: to run `cloudtrain explain` with the
    code."""
    return f"`cloudtrain explain {code}` explains the error and what to do"


def dotted(path: Iterable[str | int]) -> str:
    """Return a path in the syntax of `--set`: `inputs.train.local`,
    `resources.instance_groups[0].name` or `hyperparameters."a.b"`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
            continue

        if text:
            text += "."
        name = str(part)
        text += name if re.fullmatch(_PLAIN_NAME, name) else f'"{name}"'
    return text


_PLAIN_NAME = r"[^.\[\]]+"
"""Names that need no quotes in a path."""


ValuePath = tuple[str | int, ...]
"""The path of a value in a document: `("resources", "instance_count")`."""


@dataclass(frozen=True)
class Problem:
    """One mistake in a job or in settings. `path` is the path of the value: `("resources",
    "instance_count")`.

    `line` and `column` count from 1. They are set only if the value came from a file. `code` is the
    code for `cloudtrain explain`.
    """

    path: ValuePath
    message: str
    hint: str | None = None
    file: str | None = None
    line: int | None = None
    column: int | None = None
    code: str = field(default="", kw_only=True)

    @property
    def dotted(self) -> str:
        """The path of the value as text, such as `inputs.train.local` or
        `resources.instance_groups[0].name`."""
        return dotted(self.path)

    @property
    def place(self) -> str:
        """The position of the value, such as `job.yaml:9:20  resources.instance_type`. Unknown
        parts are left out."""
        where = self.file or ""
        if self.line is not None:
            where += f":{self.line}:{self.column}"
        return "  ".join(part for part in (where, shortened(self.dotted)) if part)


_LONGEST = 80
"""Maximum length of a path in a message, in characters: a name or an override can be as long as a
file."""


def shortened(text: str, length: int = _LONGEST) -> str:
    """Return the text, cut to at most `length` characters with three dots at the end."""
    if len(text) <= length:
        return text
    return f"{text[: length - 3]}..."


def _and_more(problems: Sequence[Problem]) -> str:
    """Return the end of the first problem's message: how many others there are."""
    others = len(problems) - 1
    return f" (and {others} more)" if others else ""


class QueueTooSmall(Problem):
    """The job asks for more GPUs or CPU slots than the queue of this machine has."""


class JobError(CloudtrainError, ValueError):
    """The job is wrong. All `problems` are reported together, in the order of the file."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems, "an error needs at least one problem"
        first = problems[0]
        message = first.message + _and_more(problems)
        super().__init__(message, hint=first.hint, code=first.code)
        self._problems = tuple(problems)

    def _text(self) -> str:
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
    """A flag or an argument is wrong, or two of them cannot be combined.

    `plan` is the hash of the plan that the error is about; empty without one.
    """

    exit_code = 2
    code = "CT901"
    plan: str = ""


class PlanDiffers(UsageError):
    """The plan is not the one that was to be sent, so nothing was sent. The `problems` after the
    first one say what differs."""

    exit_code = 5
    code = "CT927"

    @classmethod
    def of(cls, problems: Sequence[Problem], plan: str) -> PlanDiffers:
        """Return the error whose first problem is its message. `plan` is the hash of the plan as it
        is now."""
        first = problems[0]
        error = cls(first.message, hint=first.hint)
        error._problems = tuple(problems)
        error.plan = plan
        return error


class PersonNeeded(UsageError):
    """A person has to confirm or approve this at a terminal; nothing was done."""

    exit_code = 6
    code = "CT924"


class SettingsError(CloudtrainError):
    """`cloudtrain.toml`, a profile or an account setting is wrong."""

    exit_code = 2
    code = "CT915"

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> SettingsError:
        """Return the error that reports all mistakes of a settings file together."""
        first = problems[0]
        message = first.message + _and_more(problems)
        if first.place:
            message = f"{first.place}: {message}"
        error = cls(message, hint=first.hint, code=first.code)
        error._problems = tuple(problems)
        return error


class PreflightError(CloudtrainError):
    """A check found at least one error, so nothing was sent. `findings` holds all errors, warnings
    and notices."""

    exit_code = 2

    def __init__(
        self,
        message: str,
        *,
        findings: Sequence[object],
        hint: str | None = None,
        errors: Sequence[str] = (),
    ) -> None:
        super().__init__(message, hint=hint)
        self.findings: tuple[object, ...] = tuple(findings)
        self._errors = tuple(errors)

    def _text(self) -> str:
        text = "\n\n".join([self.message, *self._errors, f"hint: {self.hint}"])
        # A finding's hint is for the command line; Python code has an argument for it.
        return re.sub(r"`--ignore ([A-Z]+[0-9]+)`", r'`ignore=["\1"]`', text)

    def _render_traceback_(self) -> list[str]:
        """The lines that a notebook shows: the text alone, because the mistake is in the job and
        not in the call."""
        return [f"{type(self).__name__}: {self}"]


class MissingExtra(CloudtrainError, ImportError):
    """An optional dependency is not installed. The hint is the `pip install` command for it."""

    exit_code = 2
    code = "CT921"


class NotResolved(CloudtrainError):
    """uv found no versions that fit together, or could not ask the index. The message is uv's."""

    exit_code = 1
    code = "CT059"


class RunNotFound(CloudtrainError, LookupError):
    """No run has the given name or reference."""

    exit_code = 3
    code = "CT931"


class StoreError(CloudtrainError):
    """The run store on this machine cannot be read or written, for example because the disk is
    full."""

    exit_code = 4


class TargetError(CloudtrainError):
    """The target refused the job, failed, or cannot be reached."""

    exit_code = 4
    code = "CT941"


class NothingWritten(TargetError):
    """The run wrote nothing to this path."""

    exit_code = 1
    code = "CT935"


class TargetUnavailable(TargetError):
    """This version of cloudtrain does not have the target, or this machine cannot use it."""

    code = "CT946"


class TargetUnreachable(TargetError):
    """The target does not answer now, because the network is down or the target is overloaded.
    Trying again later may help."""

    code = "CT942"


class NameTaken(TargetError):
    """The target already has a run of this name, submitted by another user or recorded in a lost
    run store."""

    code = "CT945"


# Hints that programs ask for their kind. A hint is text; no program reads the text.


class InPlace(str):
    """A hint that fits wherever the value is written, in the job or in the overrides: another
    value, or a field to add beside it."""


class NearName(InPlace):
    """The suggestion of a known `name` that is like the unknown one."""

    name: str

    @classmethod
    def of(cls, name: str) -> NearName:
        """Return the suggestion of the name."""
        hint = cls(f"did you mean `{name}`?")
        hint.name = name
        return hint


def quoted(names: Iterable[object], separator: str = ", ") -> str:
    """Return names in backticks."""
    return separator.join(f"`{name}`" for name in names)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 run`, `3 runs` or `no run`."""
    plural = "s" if number > 1 else ""
    return f"{number or 'no'} {noun}{plural}"


def join_names(names: Sequence[str], most: int = 6) -> str:
    """Return at most `most` of the names as text: `` `a`, `b` and 3 more``."""
    text = quoted(names[:most])
    if len(names) > most:
        text += f" and {len(names) - most} more"
    return text


class ValidNames(str):
    """The list of all valid names, none of which is like the unknown one."""

    @classmethod
    def of(cls, names: Iterable[str]) -> ValidNames:
        """Return the list of the names, in the order given."""
        return cls(f"use one of {quoted(names)}")


def did_you_mean(
    word: str, words: Iterable[str], likeness: float = 0.6
) -> NearName | ValidNames | None:
    """Return a hint with the nearest known word, or with all known words if none is near; None if
    no word is known. `likeness`, from 0 to 1, says how alike two near words are. `epoch` and `lr`
    are near `num_epochs` and `learning_rate`, if no other word holds them or has these initials."""
    options = sorted(set(words))
    if not options:
        return None

    from difflib import get_close_matches  # importing it costs start-up time

    # Of two options that differ only in case, the first in order counts.
    word = word.casefold()
    folded = {option.casefold(): option for option in reversed(options)}
    near = get_close_matches(word, folded, n=1, cutoff=likeness)
    if not near:
        near = [option for option in folded if _abbreviates(word, option)]

    if len(near) == 1:
        return NearName.of(folded[near[0]])
    return ValidNames.of(options)


def _abbreviates(word: str, option: str) -> bool:
    """Return whether the word is a part of the option, of three letters or more, or its initials,
    of two or more."""
    if len(word) > 2 and word in option:
        return True
    initials = "".join(part[:1] for part in re.split("[-_.]", option))
    return len(word) > 1 and word == initials
