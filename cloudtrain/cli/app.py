"""The root command: a table of commands. A command's module is imported when it is used, so
`--help` is fast."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command as built

from cloudtrain.cli.failures import (
    EXIT_INTERRUPTED,
    EXIT_PIPE,
    WORDS,
    Asked,
    guarded,
    option_names,
    own_words,
)
from cloudtrain.cli.terminal import command_line, discard, typed
from cloudtrain.errors import NearName, UsageError, did_you_mean, shortened

# The layout of a command's help: plain text, at least 80 columns, the same with every version of
# Typer.

CONTEXT: dict[Any, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_BRACKETS = r"\s*\\?\[x>=\d+\]"
"""Typer's notation of a minimum, such as `[x>=1]`, which some versions escape for rich. The help
leaves it out."""


_WIDEST = 30
"""Columns for the names in a help. The text of a longer name begins on the next line."""


def write_sections(
    formatter: Any, sections: Mapping[str, Sequence[tuple[str, str]]], *, spacing: int = 2
) -> None:
    """Write tables of names and texts. All texts begin in the same column."""
    widest = 0
    for rows in sections.values():
        for name, _ in rows:
            widest = max(widest, len(name))
    widest = min(widest, _WIDEST)

    for title, rows in sections.items():
        if rows:
            # Typer makes the column of each table only as wide as that table needs
            padded = [(name.ljust(widest), text) for name, text in rows]
            with formatter.section(title):
                formatter.write_dl(padded, _WIDEST, spacing)


class Command(TyperCommand):
    """A command whose help shows its arguments in the form `JOB`, `[CODE]` or `NAME...`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002
        arguments = _of_kind("argument", self.params)
        return ["[OPTIONS]", *map(_metavar, arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments = []
        for param in _of_kind("argument", self.params):
            name = re.sub(r"[][]", "", _metavar(param))
            arguments.append((name, param.help or self._lost_help(param.name)))

        options = []
        for param in _of_kind("option", self.get_params(ctx)):
            record = param.get_help_record(ctx)
            if record is not None:
                text = re.sub(_BRACKETS, "", record[1]).replace("\\[", "[")
                options.append((record[0], text))

        write_sections(formatter, {"Arguments": arguments, "Options": options})

    def _lost_help(self, name: str) -> str:
        """Return the help of an argument from its annotation. Versions of Typer that use Click lose
        it with Click 8.5, whose arguments have a help of their own."""
        function: Any = self.callback
        while not hasattr(function, "__signature__") and hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        parameter = signature(function, eval_str=True).parameters[name]
        infos = getattr(parameter.annotation, "__metadata__", ())
        return next((info.help for info in infos if getattr(info, "help", None)), "")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """All arguments after a Python script or `-m MODULE` go to the script, as with `python` and
        `torchrun`; those after a command of the user's go to that."""
        if any(param.name == "arguments" for param in self.params):
            args = self._separated(args)
        elif any(param.name == "command" for param in self.params):
            args = self._with_own_command(args)
        ctx.meta[WORDS] = tuple(args)
        if isinstance(ctx.obj, Asked):
            has_json = "--json" in option_names(self.params)
            ctx.obj.is_json = has_json and "--json" in own_words(args)
        try:
            rest: list[str] = super().parse_args(ctx, args)
        except Exception as error:
            # without a context, the hint could not say whose `--help` tells more
            if getattr(error, "ctx", ctx) is None:
                error.ctx = ctx  # type: ignore[attr-defined]  # of Typer's own errors
            raise
        if ctx.params.get("shortened") and not ctx.params["json"]:
            raise UsageError("`--short` shortens JSON", hint="write `--json --short`", code="CT902")
        return rest

    def _separated(self, args: list[str]) -> list[str]:
        """Return the words of the command line with `--` before those that are for the script."""
        start = self._first_argument(args)
        if start is None:
            return args

        script = args[start]
        words = args[start + 1 :]
        if start > 0 and args[start - 1] == "-m":
            script = f"-m {script}"
            start -= 1
        elif not script.endswith(".py"):
            return args

        if words[:1] == ["--"]:
            del words[0]
        else:
            self._refuse_misplaced(script, words)
        return [*args[:start], "--", script, *words]

    def _with_own_command(self, args: list[str]) -> list[str]:
        """Return the words of the command line with `--` before the second argument, with which a
        command of the user's begins."""
        first = self._first_argument(args)
        second = None if first is None else self._first_argument(args, first + 1)
        if second is None:
            return args
        return [*args[:second], "--", *args[second:]]

    def _first_argument(self, args: list[str], start: int = 0) -> int | None:
        """Return the index of the first word in `args`, from `start` on, that is neither an option
        nor an option's value. Return None if no such word exists, or if `--` comes before it."""
        with_value = set[str]()
        for option in _of_kind("option", self.params):
            if not option.is_flag:
                with_value.update(option.opts)

        index = start
        while index < len(args) and args[index] != "--":
            word = args[index]
            if not word.startswith("-") or word == "-":
                return index
            index += 2 if word in with_value else 1
        return None

    def _refuse_misplaced(self, script: str, words: list[str]) -> None:
        """Refuse options of this command among the `words` after `script`, unless the script's text
        contains their names. Otherwise `submit train.py --dry-run` would pass the option to the
        script and send the job."""
        own = set(option_names(self.params))
        options = [word.partition("=")[0] for word in words]
        own_options = [name for name in options if name in own]
        if not own_options:
            return

        from cloudtrain.documents.document import read_bytes
        from cloudtrain.job.syntax import script_file

        try:
            file = script_file(script, lambda path: Path(path).is_file(), "src")
            text = read_bytes(file or "").decode("utf-8", "replace")
        except OSError:  # reported when the job is made
            return

        for name in own_options:
            # a script writes `-o` in quotes; a long name may be that of a variable
            pattern = rf"[\"']{name}[\"']"
            if name.startswith("--"):
                argument = name[2:].replace("-", "[-_]")
                pattern = rf"\b{argument}\b"
            if not re.search(pattern, text):
                message = f"`{name}` comes after `{script}`, which has no such option"
                hint = (
                    f"write `{name}` before `{script}`, or add `--` after `{script}` to pass "
                    "it to the script"
                )
                raise UsageError(message, hint=hint, code="CT902")


def _of_kind(kind: str, params: Iterable[Any]) -> list[Any]:
    """Return the parameters that are an `argument` or an `option`, as `kind` says."""
    return [param for param in params if param.param_type_name == kind]


def _metavar(param: Any) -> str:
    """Return what the help calls the value of a parameter."""
    return str(param.metavar or param.name.upper())


PROGRAM = "cloudtrain"


class Group(TyperGroup):
    """A command that has commands of its own."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word = args[0]
        is_known = word in self.list_commands(ctx)
        if not is_known and not word.startswith("-") and not ctx.resilient_parsing:
            message = f"`{ctx.command_path}` has no command `{shortened(word)}`"
            raise UsageError(message, hint=self.suggest(args))
        return super().resolve_command(ctx, args)

    def suggest(self, args: list[str]) -> str | None:
        """Return a hint for a command line that begins with an unknown command."""
        return did_you_mean(args[0], self.commands)


def new_group(
    cls: type[Group] = Group, *, needs_command: bool = False, add_completion: bool = False
) -> typer.Typer:
    """Return a command that has commands of its own, and needs one of them or not."""
    return typer.Typer(
        cls=cls, add_completion=add_completion, rich_markup_mode=None, context_settings=CONTEXT,
        invoke_without_command=not needs_command, pretty_exceptions_enable=False,
    )  # fmt: skip


def refuse_flags(word: str, flags: Mapping[str, object]) -> None:
    """Refuse flags that have no effect with `word`: a command of a group, or another flag. `flags`
    has the value of each."""
    for flag, value in flags.items():
        if value:
            message = f"`{flag}` has no effect with `{word}`"
            raise UsageError(message, hint=f"remove `{flag}`", code="CT902")


class CommandRow(NamedTuple):
    """The section and the summary of a command in the root help, and its module in
    `cloudtrain.cli.commands`."""

    section: str
    module: str
    summary: str


COMMANDS = {
    "submit": CommandRow("Send a job", "submit", "Check a job, send it, and follow its run."),
    "plan": CommandRow(
        "Send a job", "plan", "Show exactly what `submit` would send, without sending it."
    ),
    "approve": CommandRow("Send a job", "approve", "Approve a plan that waits for you."),
    "check": CommandRow("Send a job", "plan", "Check a job for mistakes before it costs money."),
    "fit": CommandRow("Send a job", "fit", "Estimate the memory, time and cost of a job."),
    "explain": CommandRow("Send a job", "plan", "Explain a finding or an error by its code."),
    "instances": CommandRow(
        "Send a job", "instances", "List instance types, or the nodes of a cluster."
    ),
    "rehearse": CommandRow(
        "Send a job", "rehearse", "Rehearse a preemption locally: interrupt, resume, compare."
    ),
    "ps": CommandRow("Follow runs", "ps", "List runs, the newest first."),
    "queue": CommandRow("Follow runs", "queue", "List, move and drop the runs in a queue."),
    "status": CommandRow("Follow runs", "ps", "Show the state of a run and why it failed."),
    "logs": CommandRow("Follow runs", "ps", "Print the output of a run's processes."),
    "metrics": CommandRow(
        "Follow runs", "metrics", "Show the metrics of runs as a table, curves or data."
    ),
    "ui": CommandRow("Follow runs", "ui", "Show all runs on a page in your browser."),
    "wait": CommandRow("Follow runs", "ps", "Wait until a run has ended."),
    "stop": CommandRow("Follow runs", "ps", "Stop runs gracefully."),
    "exec": CommandRow(
        "Follow runs", "exec", "Run a command or a shell inside a run, or forward its ports."
    ),
    "trials": CommandRow("Follow runs", "past", "List the trials of a sweep."),
    "continue": CommandRow(
        "Follow runs", "submit", "Continue a sweep, with more trials if you like."
    ),
    "download": CommandRow(
        "Follow runs", "download", "Copy what a run wrote: model, outputs, checkpoint, logs."
    ),
    "show": CommandRow(
        "Look back", "past", "Show what was sent: the job, the request and the source."
    ),
    "diff": CommandRow(
        "Look back", "past", "Compare two runs, jobs or plans: fields, request and code."
    ),
    "rerun": CommandRow(
        "Look back", "submit", "Submit a run again with the same code and request."
    ),
    "code": CommandRow("Look back", "past", "Write the code of a run into a folder."),
    "cost": CommandRow("Look back", "past", "Sum the costs of runs by job, month, target or tag."),
    "notify": CommandRow("Follow runs", "notify", "Show and test how you are notified."),
    "recover": CommandRow("Follow runs", "submit", "Clean up after interrupted submissions."),
    "rm": CommandRow("Follow runs", "queue", "Remove ended runs from this machine."),
    "prune": CommandRow(
        "Follow runs", "queue", "Remove old, failed or large runs, and keep the best."
    ),
    "environments": CommandRow(
        "Look back", "environments", "List and remove environments; lock requirements."
    ),
    "init": CommandRow("Start", "start", "Write a first job file."),
    "adopt": CommandRow("Start", "adopt", "Convert a training job of another tool to a job file."),
    "scripts": CommandRow("Start", "start", "List, show and copy the bundled training scripts."),
    "schema": CommandRow("Start", "start", "Print the JSON Schema of a job file, for editors."),
    "agents": CommandRow("Start", "agents", "Help programs that type commands for you."),
    "doctor": CommandRow("Start", "doctor", "Show what works on this machine and what is missing."),
}
"""The commands in the order of the help. Tests compare each summary with the help of its
command."""


class LazyGroup(Group):
    """A group of commands, each imported by name from `cloudtrain.cli.commands`."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def suggest(self, args: list[str]) -> str:
        """Return a hint that names the command to type instead of the unknown one. The hint repeats
        the arguments if that command takes the same arguments."""
        word, *rest = args
        if word.startswith("bundled:") or word.endswith(_JOBS):
            return NearName.of(command_line(PROGRAM, "submit", word, *rest))
        if word == "version":
            return NearName.of(f"{PROGRAM} --version")
        if word == "resume":  # which may mean three things
            name = rest[0] if rest else "NAME"
            return (
                f"{typed(PROGRAM, 'rerun', name)} sends a run again, "
                f"{typed(PROGRAM, 'continue', name)} continues a sweep; "
                f"`{PROGRAM} rehearse job.yaml` tests locally that your script resumes from its "
                "checkpoint"
            )
        command = commands_elsewhere().get(word)
        if command is not None:
            has_options = any(argument.startswith("-") for argument in rest)
            kept = rest if command in _OF_ONE and not has_options else ()
            return NearName.of(command_line(PROGRAM, command, *kept))

        near = did_you_mean(word, COMMANDS)
        return near if isinstance(near, NearName) else f"see `{PROGRAM} --help`"

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, entry in COMMANDS.items():
            sections.setdefault(entry.section, []).append((name, entry.summary))
        write_sections(formatter, sections, spacing=4)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as Typer does, and print `--help` and `--version`, with cloudtrain's exit codes."""
        with _our_exit_codes():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with _our_exit_codes():
            return super().invoke(ctx)


@contextmanager
def _our_exit_codes() -> Iterator[None]:
    """Turn a broken pipe and Ctrl-C into exit codes without Typer's own messages."""
    try:
        yield
    except BrokenPipeError:
        discard(sys.stdout)
        raise typer.Exit(EXIT_PIPE) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def load_command(name: str) -> Any:
    """Return the command `name` as an object that Typer runs. Its help text is its function's
    docstring."""
    from cloudtrain.system.processes import without_pydantic_plugins

    without_pydantic_plugins()
    module = import_module(f"cloudtrain.cli.commands.{COMMANDS[name].module}")
    group = getattr(module, f"{name}_command")
    if not isinstance(group, typer.Typer):
        function = group
        # Typer makes a group of one command into that command
        group = new_group()
        group.command(name, cls=Command)(function)
    command = built(group)
    command.name = name
    return command


def run_command(args: Sequence[str]) -> int:
    """Run one command line and return its exit code. A traceback is shown only with
    CLOUDTRAIN_DEBUG=1."""

    asked = Asked("--json" in own_words(args))

    def run() -> object:
        return built(app).main(args=list(args), prog_name=PROGRAM, standalone_mode=False, obj=asked)

    return guarded(run, asked)


app = new_group(LazyGroup, add_completion=True)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from cloudtrain.version import __version__

        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Run one distributed training job on this machine, on Amazon SageMaker, on Azure Machine
    Learning and on a Slurm cluster.

    \b
    Try it on this machine:
      cloudtrain scripts list
      cloudtrain submit bundled:digits_ddp
      cloudtrain init                   # then: cloudtrain submit job.yaml

    `cloudtrain COMMAND --help` has examples of each command.
    """
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help(), file=sys.stdout)


def commands_elsewhere() -> dict[str, str]:
    """Map names of commands in other tools to ours."""
    from cloudtrain.documents.document import load_table

    table = load_table(__file__, "other_tools.toml")
    commands = {}
    for command, words in table.items():
        commands.update(dict.fromkeys(words.split(), command))
    return commands


_OF_ONE = ("submit", "plan", "check", "fit", "status", "logs", "stop", "download", "wait", "rm")
"""Commands that take a job file or a run as their argument, as the other tools do."""


_JOBS = (".py", ".yaml", ".yml", ".toml", ".json")
