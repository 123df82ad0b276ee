"""Errors of a command: the message for the user, and the exit code for scripts."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer

from cloudtrain.cli.terminal import OutputError, discard, json_text, show, typed
from cloudtrain.documents import JsonObject
from cloudtrain.errors import (
    CloudtrainError,
    NearName,
    PreflightError,
    Problem,
    UsageError,
    counted,
    did_you_mean,
    more_about,
    shortened,
)

# cloudtrain/cli/__init__.py lists the exit codes.
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141

_MOST_SHOWN = 20
"""The most errors that are printed at once. If there are more, the first ones are usually the cause
of the others."""

_SHOWN = 43
"""The most characters of a long name that a message shows."""

_BadCommandLine: Any = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError"
)
"""The base class of Typer's errors about the command line. Its module differs between Typer's
versions."""


COMPLETION_VARIABLE = "_CLOUDTRAIN_COMPLETE"
"""Set by the shell when it asks for completions, while the user is in the middle of a line."""

WORDS = "cloudtrain.words"
"""The key under which Typer's context keeps the words of the command line, for the hint of an
error."""


class Defect(CloudtrainError):
    """cloudtrain, or another package's target, is wrong."""

    exit_code = 70
    code = "CT900"


@dataclass
class Asked:
    """What a command line asks for, as far as it is understood.

    Attributes:
        is_json: whether an error is printed as JSON on stdout.
    """

    is_json: bool


def own_words(words: Sequence[str]) -> Sequence[str]:
    """Return the words before `--`; those after it are for somebody else."""
    return words[: words.index("--")] if "--" in words else words


def guarded(command: Callable[[], object], asked: Asked) -> int:
    """Run a command and return its exit code. Every error becomes a message on stderr, or JSON on
    stdout."""
    try:
        code = _run(command, asked)
        # what is still to be printed may fail, too
        return _run(sys.stdout.flush, asked) or code
    except BrokenPipeError:
        discard(sys.stdout)
        return EXIT_PIPE


def _run(command: Callable[[], object], asked: Asked) -> int:
    """Run a command and return its exit code, which is 0 if it returns no number. Report its error.
    A broken pipe is raised."""
    try:
        result = command()
    except CloudtrainError as error:
        return report(error, asked)
    except _BadCommandLine as error:
        return report(_in_our_words(error), asked)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        raise
    # the last line of defence, which says what to do about it
    except Exception as error:  # noqa: BLE001
        mistake = _mistake_in(error)
        if mistake is None:
            return _report_defect(error, asked)
        return report(mistake, asked)
    return result if isinstance(result, int) else 0


def report(error: CloudtrainError, asked: Asked) -> int:
    """Print an error, and return its exit code: on stderr a block for each problem, and the number
    of problems if there are several; as JSON on stdout one line, unless stdout cannot be
    written."""
    if asked.is_json and not isinstance(error, OutputError):
        sys.stdout.write(json_text({"error": error_json(error)}) + "\n")
        return error.exit_code
    from cloudtrain.plans.document import Document, Text

    blocks = list(_notices(error))
    count = len(error.problems)
    end = ""
    if isinstance(error, PreflightError):
        levels = [notice.level for notice in blocks]
        end = f"{_count(error, levels)}; nothing was sent\n{error.hint}"
    elif count > 1:
        end = _count(error, ["error"] * count)
    if count > _MOST_SHOWN:
        end += f"; the first {_MOST_SHOWN} are shown"
    if end:
        blocks.append(Text(end))
    show(Document(blocks), sys.stderr)
    return error.exit_code


def error_json(error: CloudtrainError) -> JsonObject:
    """Return an error as JSON data."""
    if isinstance(error, PreflightError):
        problems = list(map(finding_json, error.findings))
    else:
        problems = list(map(problem_json, error.problems))
    codes = [problem["code"] for problem in problems if problem["level"] == "error"]
    data = {
        "code": error.code or codes[0],
        "exit_code": error.exit_code,
        "message": error.message,
        "hint": error.hint,
        "problems": problems,
    }
    if isinstance(error, UsageError) and error.plan:
        data["plan"] = error.plan
    return data


def finding_json(finding: Any) -> JsonObject:
    """Return a finding as JSON data. `line` is LINE of the position `FILE:LINE:COLUMN`; null
    without a position."""
    data: JsonObject = finding._asdict()
    data["level"] = str(finding.level)
    line = re.search(r":([0-9]+):[0-9]+$", finding.place or "")
    data["line"] = int(line[1]) if line else None
    return data


def problem_json(problem: Problem) -> JsonObject:
    """Return a problem as JSON data with the same fields as a finding."""
    place = problem.file
    if problem.line is not None:
        place = f"{problem.file}:{problem.line}:{problem.column}"
    hint = more_about(problem.code) if problem.hint is None else problem.hint
    return {
        "code": problem.code,
        "level": "error",
        "message": problem.message,
        "hint": hint or None,
        "path": problem.path,
        "place": place,
        "details": (),
        "line": problem.line,
    }


def _notices(error: CloudtrainError) -> Iterator[Any]:
    """Yield a block for each finding, or for each of the first problems."""
    from cloudtrain.plans.document import Notice

    if isinstance(error, PreflightError):
        # `cloudtrain.errors` may import no other part of cloudtrain, so it cannot name their type
        yield from (finding.notice() for finding in error.findings)  # type: ignore[attr-defined]
        return
    for problem in error.problems[:_MOST_SHOWN]:
        hint = more_about(problem.code) if problem.hint is None else problem.hint
        yield Notice("error", problem.message, problem.code, problem.place or None, (), hint)


def _count(error: CloudtrainError, levels: Sequence[str]) -> str:
    """Return how often each level occurs, as a text such as `5 errors in job.yaml` or `1 error, 2
    warnings`."""
    words = [counted(levels.count(level), level) for level in dict.fromkeys(levels)]
    text = ", ".join(words)
    files = {problem.file for problem in error.problems if problem.file}
    if len(files) == 1:
        text += f" in {files.pop()}"
    return text


def _in_our_words(error: Any) -> UsageError:
    """Convert an error of Typer to cloudtrain's form: a message without a full stop, and a hint."""
    path = error.ctx.command_path if error.ctx is not None else "cloudtrain"
    hint = f"see `{path} --help`"
    option = getattr(error, "option_name", None)
    # by their names, because the classes' module differs between Typer's versions
    if option is not None and type(error).__name__ == "NoSuchOption":
        return _no_such_option(option, path, error.ctx, hint)
    param = getattr(error, "param", None)
    if type(error).__name__ == "MissingParameter" and param is not None:
        missing = param.metavar or param.opts[0]
        name = _usual(missing, path)
        if name is not None:
            hint = f"write for example {typed(*path.split(), name)}"
        return UsageError(f"`{path}` needs {missing}", hint=hint)

    text = error.format_message().rstrip(".").replace("'", "`")
    for theirs, ours in _SAID.items():
        text = re.sub(theirs, ours, text)

    hint = _value_hint(error, text) or hint
    # `submit job.yaml epochs=3`
    extra = re.search(r"unexpected extra argument\S* \(([\w.-]+=\S*)", text)
    if extra and "--set" in _options(error.ctx):
        hint = f"to change a field of the job, write `--set {extra[1].rstrip(')')}`"
    is_value = type(error).__name__ == "BadParameter"
    return UsageError(text[:1].lower() + text[1:], hint=hint, code="CT909" if is_value else None)


def _usual(argument: str, path: str) -> str | None:
    """Return what most people mean by an `argument` of the command `path`: the job beside them, or
    their last run; None for others."""
    if argument == "JOB":
        files = filter(os.path.isfile, ("job.yaml", "job.yml", "job.toml", "job.json", "train.py"))
        return next(files, None)
    is_run = argument.startswith("NAME") and len(path.split()) == 2
    return "last" if is_run else None


def _no_such_option(option: str, path: str, ctx: Any, see_help: str) -> UsageError:
    """Return the error for an option that the command `path` does not have. `see_help` is the hint
    if none is better."""
    replacement = _REPLACEMENTS.get((path, option))
    if replacement is not None:
        return UsageError(f"`{path}` has no option `{option}`", hint=replacement)
    options = _options(ctx)
    message = f"`{path}` has no option `{option}`"
    field_hint = None
    if "--set" in options:
        root = ctx.find_root()
        others = []
        for name in ("submit", "check", "plan", "rehearse"):
            command = root.command.get_command(root, name)
            if option in option_names(command.params):
                others.append(f"`cloudtrain {name}`")
        if others:
            return UsageError(message, hint=f"it is an option of {' and '.join(others)}")
        field_hint = _field_hint(option, ctx)
    near = did_you_mean(option, options, _LIKENESS if field_hint else 0.6)
    if isinstance(near, NearName):
        return UsageError(message, hint=near)
    return UsageError(message, hint=field_hint or see_help)


_REPLACEMENTS = {
    ("cloudtrain adopt", "--static"): (
        "leave out `--static`: cloudtrain runs the script up to its first job, in a copy of its "
        "folder, without network and credentials; `--yes` allows it"
    ),
    **dict.fromkeys(
        [("cloudtrain plan", "--offline"), ("cloudtrain plan", "--dry-run")],
        "leave it out: a plan contacts no service and sends nothing",
    ),
    ("cloudtrain check", "--dry-run"): "leave it out: a check sends nothing",
}
"""Options that a command had once, or does not need, each with what to type instead."""

_LIKENESS = 0.75
"""How alike an unknown option is to the one that was probably meant, where it may also be an option
of the script."""


def _field_hint(option: str, ctx: Any) -> str | None:
    """Return a hint for an option that the command does not have, such as `--epochs 3`: the `--set`
    for the field of the job with this name, or else for a hyperparameter. None for a short
    option."""
    if not option.startswith("--"):
        return None

    # the value follows `=` or is the next word; a flag has none
    words = [*ctx.meta.get(WORDS, ()), ""]
    value = ""
    for word, after in pairwise(words):
        given, _, value_text = word.partition("=")
        if given == option:
            value = value_text
            if not value and not after.startswith("--"):
                value = after
            break
    value = value or "true"

    name = option.removeprefix("--")
    field = name.replace("-", "_")
    # a command without a mistake need not read the options
    from cloudtrain.cli.options import fields

    if f"{field}=" in fields(""):
        change = typed("--set", f"{field}={value}")
        return f"to change this field of the job, write {change}"
    change = typed("--set", f"hyperparameters.{name}={value}")
    return f"for an option of your script, write {change}"


_SAID = {
    r"Value error, ": "",
    r": Input should be a valid integer.*|: (`.*`) is not a valid int(?:eger)?( range)?$": (
        ": it is not a whole number"
    ),
    r": Input should be a valid number.*|: (`.*`) is not a valid float( range)?$": (
        ": it is not a number"
    ),
    r": Input should be greater than or equal to (\S+)$": r": it must be at least \1",
    r": \S+ is not in the range x>=(\S+)$": r": it must be at least \1",
}
"""Patterns of the messages of Typer's versions, and cloudtrain's text for each."""


def _value_hint(error: Any, text: str) -> str | None:
    """Return what to write for an option whose value is wrong; None if `text`, the message, is
    about something else."""
    names = getattr(getattr(error, "param", None), "opts", ())
    flag = next((name for name in names if name.startswith("--")), None)
    if flag is None:
        return None

    value, is_choice, choices = text.partition(" is not one of ")
    if is_choice:
        word = value.rpartition("`: ")[2].strip("`")
        return did_you_mean(word, re.findall(r"`([^`]+)`", choices))
    least = re.search(r"it must be at least (\S+)$", text)
    if least:
        return f"write `{flag} {least[1]}` or more"
    if text.endswith(("it is not a whole number", "it is not a number")):
        return f"write for example `{flag} 1`"
    return None


def _options(ctx: Any) -> list[str]:
    """Return the long names of a command's options."""
    names = option_names(ctx.command.get_params(ctx))
    return [name for name in names if name.startswith("--")]


def option_names(params: Iterable[Any]) -> Iterator[str]:
    """Yield the names of options, long and short."""
    for param in params:
        for name in (*param.opts, *param.secondary_opts):
            if name.startswith("-"):
                yield name


def _mistake_in(error: Exception) -> UsageError | None:
    """Convert an OSError that the user caused, such as a path that is too long. Return None for
    other errors."""
    if not isinstance(error, OSError):
        return None
    if error.errno == errno.ENAMETOOLONG:
        names = os.fsdecode(error.filename or "").split("/")
        longest = max(names, key=len)
        return UsageError(
            f"a path is too long for this machine: `{shortened(longest, _SHOWN)}`",
            hint="a name in a path can have at most 255 bytes, the whole path 4096",
            code="CT906",
        )
    try:
        Path.cwd()
    except OSError:
        return UsageError(
            "the working directory has been deleted",
            hint="change to another folder, for example with `cd`",
            code="CT906",
        )
    return None


def _report_defect(error: Exception, asked: Asked) -> int:
    """Return the exit code. During a completion, nothing is printed into the user's line."""
    from cloudtrain.targets.settings import debug_wanted

    if debug_wanted():
        traceback.print_exception(error)
        return Defect.exit_code
    if COMPLETION_VARIABLE in os.environ:
        return Defect.exit_code
    from cloudtrain.system.plugins import plugin_of

    what = " ".join(f"{type(error).__name__}: {error}".split())  # on one line
    package = plugin_of(error)
    whose = "cloudtrain"
    them = ""
    if package is not None:
        whose = f"the package `{package}`"
        them = " to its authors"
    message = f"this is a defect in {whose}, not a mistake of yours: {what}"
    hint = (
        "run the command again with `CLOUDTRAIN_DEBUG=1` in front, and report the "
        f"traceback{them} with the output of `cloudtrain doctor`"
    )
    return report(Defect(message, hint=hint), asked)
