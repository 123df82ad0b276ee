"""The arguments and options that several commands share, each with one name, help text and
completion."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, redirect_stderr
from enum import Enum
from functools import wraps
from inspect import Parameter, Signature, signature
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_type_hints

import typer

from cloudtrain.errors import UsageError, did_you_mean, quoted, shortened
from cloudtrain.plans.states import SWEEP, TUNER, RunState
from cloudtrain.system.plugins import all_targets, target_names

if TYPE_CHECKING:
    from cloudtrain.lifecycle.store.store import Store

# Shell completion: the words offered after TAB. Completion never fails; after an error it offers
# nothing.
#
# A shell inserts an offered word unquoted. Names with special characters, such as the file
# `a;reboot.yaml`, are therefore not offered; bash then offers files itself, with quotes.

_MOST_RUNS = 50

_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
"""Text that every shell reads as one word without quotes."""

Completion = Callable[[str], list[str]]


def silent(words: Completion) -> Completion:
    """Return a completion that offers the words of `words` that begin with the typed text, and no
    words after an error. Typer reads the signature of the returned function to find out which
    arguments to pass."""

    def complete(incomplete: str) -> list[str]:
        try:
            with redirect_stderr(StringIO()):
                matches = [word for word in words(incomplete) if word.startswith(incomplete)]
            return list(filter(_PLAIN.fullmatch, matches))
        # the user is in the middle of a line; there is nowhere to complain
        except Exception:  # noqa: BLE001
            return []

    return complete


def _store() -> AbstractContextManager[Store]:
    """Return the run store. No target is asked, so that TAB answers at once."""
    from cloudtrain.lifecycle.store.schema import read_store
    from cloudtrain.targets.settings import read_environment

    return read_store(read_environment().state_dir)


@silent
def runs(_: str) -> list[str]:
    """Return `last` and the names of the newest runs in the store."""
    with _store() as store:
        rows = store.newest(limit=_MOST_RUNS)
    return ["last", *(row.name for row in rows)]


@silent
def sweeps(_: str) -> list[str]:
    """Return `last` and the names of the newest sweeps in the store."""
    with _store() as store:
        # each trial has a row of its own
        rows = store.newest(limit=20 * _MOST_RUNS)
    return ["last", *(row.name for row in rows if row.key.startswith((SWEEP, TUNER)))]


@silent
def fields(_: str) -> list[str]:
    """Return the fields of a job up to the `=`, as `--set` and `--each` take them, and the
    hyperparameters of earlier runs."""
    from cloudtrain.job.nodes import node_of_model
    from cloudtrain.job.training import TrainingJob

    job = node_of_model(TrainingJob)  # pyright: ignore[reportArgumentType]  # it is hashable
    values = []
    maps = []
    inner_values = []
    for name in job.field_names():
        node = job.child(name) or job
        if node.kind in ("value", "list", "json"):
            values.append(f"{name}=")
        elif node.kind == "map":
            maps.append(f"{name}.")
        inner_values += [f"{name}.{inner}=" for inner in node.field_names()]
    own = [f"hyperparameters.{name}=" for name in hyperparameters("")]
    return [*values, *maps, *inner_values, *own]


@silent
def hyperparameters(_: str) -> list[str]:
    """Return the names of the hyperparameters of all runs in the store."""
    with _store() as store:
        return store.label_keys("hyperparameter")


def runs_and_jobs(incomplete: str) -> list[str]:
    """Return the arguments that `diff` takes: names of runs and job files."""
    return [*runs(incomplete), *jobs(incomplete)]


@silent
def jobs(incomplete: str) -> list[str]:
    """Return the job files and folders in the folder of the typed path."""
    from cloudtrain.job.file import SUFFIXES

    # the part up to the last `/` stays as typed
    start = incomplete[: incomplete.rfind("/") + 1]
    folder = Path(start or ".")
    names = []
    entries = folder.iterdir() if folder.is_dir() else ()
    for entry in sorted(entries):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            names.append(f"{start}{entry.name}/")
        elif entry.suffix.lower() in SUFFIXES:
            names.append(f"{start}{entry.name}")
    return names


@silent
def scripts(_: str) -> list[str]:
    from cloudtrain.code.bundled import script_names

    return script_names()


@silent
def asked_plans(_: str) -> list[str]:
    """Return the hashes of the plans that wait for an approval."""
    with _store() as store:
        return [plan.sha256[:12] for plan in store.plans.asked() if plan.run is None]


@silent
def codes(_: str) -> list[str]:
    from cloudtrain.rules.engine import all_rules

    return [rule.code for rule in all_rules()]


@silent
def all_codes(_: str) -> list[str]:
    from cloudtrain.job.problems import error_codes

    return sorted([*codes(""), *error_codes()])


@silent
def targets(_: str) -> list[str]:
    return [*target_names()]


FORMATS = ("text", "json", "request")
"""The formats in which every plan can be printed."""


@silent
def formats(_: str) -> list[str]:
    """Return the formats of a plan: the common ones, then those of each target."""
    forms = dict.fromkeys(FORMATS)
    for target in all_targets():
        forms |= dict.fromkeys(target.facts.plan_formats)
    return list(forms)


@silent
def emulated(_: str) -> list[str]:
    from cloudtrain.targets.local.settings import emulated_targets

    return emulated_targets()


@silent
def states(_: str) -> list[str]:
    return list(map(str, RunState))


@silent
def groups(_: str) -> list[str]:
    """Return the values of `cost --by`: `job`, `month`, `target`, and `tag:KEY` for each tag of a
    run."""
    with _store() as store:
        tags = store.label_keys("tag")
    return ["job", "month", "target", *(f"tag:{key}" for key in tags)]


@silent
def parts(_: str) -> list[str]:
    """Return the folders of a run that `download` takes."""
    return ["model/", "outputs/", "checkpoint/", "logs/", "work/"]


# Declarations of arguments and options. `names` are separated by spaces, such as `--target -t`;
# `more` is for Typer. Where a default needs words, `text` has them.


def argument(metavar: str, text: str, **more: Any) -> Any:
    """Return the declaration of an argument, which the help calls `metavar`."""
    return typer.Argument(metavar=metavar, help=text, show_default=False, **more)


def option(names: str, metavar: str, text: str, *, show_default: bool = False, **more: Any) -> Any:
    """Return the declaration of an option with a value, which the help calls `metavar`."""
    words = names.split()
    return typer.Option(*words, metavar=metavar, help=text, show_default=show_default, **more)


def flag(names: str, text: str) -> Any:
    """Return the declaration of an option without a value."""
    return typer.Option(*names.split(), help=text, show_default=False)


def require_word(kind: str, word: str, words: Collection[str], code: str = "CT909") -> None:
    """Raise UsageError if a word that the user typed is not one of `words`. `kind` says what it
    is."""
    if word not in words:
        message = f"there is no {kind} `{shortened(word)}`"
        raise UsageError(message, hint=did_you_mean(word, words), code=code)


def measured(parse: Callable[[str], int], text: str, example: str) -> int:
    """Convert a duration or a size that the user typed with its unit. Raises UsageError for other
    text."""
    try:
        return parse(text)
    except ValueError as error:
        hint = f"write a number with a unit, for example `{example}`"
        raise UsageError(str(error), hint=hint, code="CT909") from None


def run_names(which: str) -> Any:
    """Return the argument for one or more runs. `which` says in the help which runs the command
    takes."""
    text = f"{which}: names, beginnings of names, references, or `last`."
    return argument("NAME...", text, autocompletion=runs)


def _run_name(complete: Completion) -> Any:
    text = "A run: its name, the beginning of its name, its reference, or `last`."
    return argument("NAME", text, autocompletion=complete)


RunName = Annotated[str, _run_name(runs)]
SweepName = Annotated[str, _run_name(sweeps)]
Trial = Annotated[int | None, option("--trial", "N", "For a sweep: this trial.", min=1)]
Rank = Annotated[int | None, option("--rank", "N", "The process of this rank.", min=0)]
Instance = Annotated[
    str | None,
    option(
        "--instance --host",
        "N",
        "This instance: its number from 0, or its name, such as `algo-1`.",
    ),
]
TargetName = Annotated[
    str | None,
    option(
        "--target -t",
        "TARGET",
        (
            "The target that runs the job; TAB lists the targets. Default: `target` in "
            "cloudtrain.toml, or local."
        ),
        autocompletion=targets,
    ),
]
TargetOfRuns = Annotated[
    str | None,
    option(
        "--target -t", "TARGET", "All runs on this target, by any user.", autocompletion=targets
    ),
]
Profile = Annotated[str | None, option("--profile", "NAME", "A profile in cloudtrain.toml.")]
Set = Annotated[
    list[str] | None,
    option(
        "--set",
        "FIELD=VALUE",
        "Change a field of the job, for example hyperparameters.epochs=3. Repeatable.",
        autocompletion=fields,
    ),
]
Ignore = Annotated[
    list[str] | None,
    option("--ignore", "CODE", "Ignore findings with this code. Repeatable.", autocompletion=codes),
]
PlanHash = Annotated[
    str | None,
    option(
        "--plan",
        "HASH",
        "Send only the plan with this hash, or the one in a file of `cloudtrain plan --json`. "
        "Another plan is not sent, and the exit code is 5.",
    ),
]
Detach = Annotated[bool, flag("--detach -d", "Return as soon as the target has accepted the run.")]
Csv = Annotated[bool, flag("--csv", "Print comma-separated values, with a header.")]
Json = Annotated[bool, flag("--json", "Print JSON instead of text.")]
Short = Annotated[
    bool, flag("--short", "With --json: leave out what is empty, and count long lists.")
]


class LogLevel(str, Enum):
    """The lowest severity of printed lines."""

    warning = "warning"
    error = "error"


# The arguments and options that `submit`, `plan`, `check` and `rehearse` share.

_Function = Callable[..., None]


class SubmitOptions(NamedTuple):
    """The job, where it runs and how, as the user typed it. The fields declare arguments and
    options of commands."""

    job: Annotated[
        str,
        argument(
            "JOB",
            "A job file (YAML, TOML or JSON), `bundled:NAME`, a Python script, or `-m MODULE`.",
            autocompletion=jobs,
        ),
    ]
    arguments: Annotated[
        list[str] | None,
        argument("[ARGS]...", "With a script: its arguments and options."),
    ] = None
    target: TargetName = None
    profile: Profile = None
    set_: Set = None
    ignore: Ignore = None
    pin: Annotated[
        bool,
        flag(
            "--pin",
            (
                "Ask the target for the current version of each `NAME@latest`, and write it into "
                "the job."
            ),
        ),
    ] = False
    instances: Annotated[
        int | None,
        option(
            "--instances --nnodes",
            "N",
            "Local target: simulate N instances. Other targets, with a script: use N instances.",
            min=1,
        ),
    ] = None
    processes_per_instance: Annotated[
        int | None,
        option(
            "--processes-per-instance --nproc",
            "N",
            (
                "Start N processes on each instance. For the local target, or with a script "
                "instead of a job file."
            ),
            min=1,
        ),
    ] = None
    max_restarts: Annotated[
        int | None,
        option(
            "--max-restarts", "N", "Local: after a failure, restart all ranks up to N times.", min=0
        ),
    ] = None
    launcher: Annotated[
        str | None,
        option(
            "--launcher",
            "NAME",
            "Local: `torchrun`; `fork`, which imports torch only once and starts CPU ranks "
            "faster; or `python`, one process, the default for a script that does not need "
            "torchrun on a machine without a GPU.",
            autocompletion=lambda: ["torchrun", "fork", "python"],
        ),
    ] = None
    python: Annotated[
        str | None,
        option(
            "--python",
            "PATH",
            "Local: the Python interpreter for the script: a path, `conda:NAME` or `uv`.",
        ),
    ] = None
    build_environment: Annotated[
        bool | None,
        flag(
            "--build-environment/--no-build-environment",
            (
                "Install the requirements into an environment of their own, or never. Default: if "
                "packages are missing."
            ),
        ),
    ] = None
    grace_period: Annotated[
        str | None,
        option(
            "--grace-period", "TIME", "Local: time from SIGTERM to SIGKILL, for example 30s or 2m."
        ),
    ] = None
    emulate: Annotated[
        str | None,
        option(
            "--emulate",
            "SERVICE",
            (
                "Run a local job with the paths, files and command lines of SERVICE, such as "
                "`sagemaker`."
            ),
            autocompletion=emulated,
        ),
    ] = None
    queue: Annotated[
        bool | None,
        flag(
            "--queue/--no-queue",
            "Local: wait until enough GPUs or CPU slots are free (--queue), or start at once.",
        ),
    ] = None
    priority: Annotated[
        int | None,
        option(
            "--priority",
            "N",
            "Local, with --queue: runs with a higher number start first. Default: 0.",
        ),
    ] = None
    gpu: Annotated[
        str | None,
        option(
            "--gpu",
            "MODEL[:N]",
            "With a script: the GPU model and the GPUs per instance, for example H100:8.",
        ),
    ] = None
    save_job: Annotated[
        Path | None, option("--save-job", "FILE", "With a script: also write the job to this file.")
    ] = None
    each: Annotated[
        list[str] | None,
        option(
            "--each",
            "FIELD=VALUES",
            "Run the job once for each value, for example hyperparameters.seed=1,2,3. Repeat the "
            "option to run every combination.",
            autocompletion=fields,
        ),
    ] = None
    parallel: Annotated[
        int | None, option("--parallel", "N", "With --each: N runs at a time. Default: 1.", min=1)
    ] = None
    alternatives: Annotated[
        list[str] | None,
        option(
            "--or",
            "CHANGES",
            "If there is no capacity, try this: changes as in --set, and target=, profile=, "
            "settings.NAME= and wait=, separated by spaces. Repeatable, tried in order.",
        ),
    ] = None


OF_THE_JOB = ("job", "arguments", "target", "profile", "set_", "ignore", "pin")
OF_THE_RUN = SubmitOptions._fields[len(OF_THE_JOB) :]
_DECLARATIONS = get_type_hints(SubmitOptions, include_extras=True)


def with_submit_options(
    before: Sequence[str], after: Sequence[str], *, several: bool = False
) -> Callable[[_Function], _Function]:
    """Return a decorator that lets a command take a `SubmitOptions` as its first parameter. The
    command line gets the fields `before` and `after` of `SubmitOptions`. The help shows them in
    this order, before and after the command's own options.

    With `several`, the command compares targets, and its second parameter is the list of those that
    the user names. Otherwise, two targets are a mistake."""

    def expand(command: _Function) -> _Function:
        @wraps(command)
        def expanded(**values: Any) -> None:
            fields = {name: values.pop(name) for name in (*before, *after)}
            names = list(dict.fromkeys(fields.pop("target", None) or ()))
            if len(names) > 1 and not several:
                message = f"the job can run on one target, not on {quoted(names, ' and ')}"
                flags = f"--target {' --target '.join(names)}"
                hint = f"leave out one of them; `cloudtrain plan` compares targets: `{flags}`"
                raise UsageError(message, hint=hint, code="CT902")

            fields.setdefault("job", "")  # `rehearse` takes a job by a parameter of its own
            if names:
                fields["target"] = names[0]
            options = SubmitOptions(**fields)
            if several:
                command(options, names, **values)
            else:
                command(options, **values)

        # Typer reads the options from this signature
        given = 2 if several else 1
        declared = signature(command, eval_str=True).parameters
        own = list(declared.values())[given:]
        shown = [*map(_parameter, before), *own, *map(_parameter, after)]
        parameters = [item.replace(kind=Parameter.KEYWORD_ONLY) for item in shown]
        expanded.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        expanded.__annotations__ = {}
        return expanded

    return expand


def _parameter(name: str) -> Parameter:
    """Return the parameter by which Typer knows the option `name` of `SubmitOptions`."""
    default = SubmitOptions._field_defaults.get(name, Parameter.empty)
    annotation = _DECLARATIONS[name]
    if name == "target":  # so that two of them are a mistake with a message of its own
        annotation = Annotated[list[str] | None, get_args(TargetName)[1]]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
