"""The layout of a command's help: plain text, at least 80 columns, the same with every version of Typer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from cloudtrain.errors import UsageError

CONTEXT: dict[Any, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_BRACKETS = re.compile(r"\s*\\?\[x>=\d+\]")
"""Typer's notation of a minimum, such as `[x>=1]`, which some versions escape for rich. The help leaves it out."""


_WIDEST = 30
"""Columns for the names in a help. The text of a longer name begins on the next line."""


def write_sections(formatter: Any, sections: Mapping[str, Sequence[tuple[str, str]]], *, spacing: int = 2) -> None:
    """Write tables of names and texts. All texts begin in the same column."""
    widest = min(_WIDEST, max((len(name) for rows in sections.values() for name, _ in rows), default=0))
    for title, rows in sections.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), text) for name, text in rows], _WIDEST, spacing)


class Command(TyperCommand):
    """A command whose help shows its arguments in the form `JOB`, `[CODE]` or `NAME...`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line, such as `[OPTIONS] NAME [PATH]`."""
        return ["[OPTIONS]", *(_metavar(param) for param in self._arguments(ctx))]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options."""
        arguments = [(re.sub(r"[][]", "", _metavar(param)), param.help or "") for param in self._arguments(ctx)]
        options = [
            (record[0], _BRACKETS.sub("", record[1]).replace("\\[", "["))
            for param in self.get_params(ctx)
            if param.param_type_name == "option" and (record := param.get_help_record(ctx)) is not None
        ]
        write_sections(formatter, {"Arguments": arguments, "Options": options})

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as Typer does, but pass all arguments after a Python script to the script, as `python`
        and `torchrun` do."""
        if any(param.name == "arguments" for param in self.params):
            end = self._first_argument(args)
            if end is not None and args[end].endswith(".py") and args[end + 1 :][:1] != ["--"]:
                self._refuse_misplaced(args[end], args[end + 1 :])
                args = [*args[: end + 1], "--", *args[end + 1 :]]
        try:
            parsed: list[str] = super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:  # then nobody could say whose `--help` tells more
                error.ctx = ctx  # type: ignore[attr-defined]  # of Typer's own errors
            raise
        return parsed

    def _first_argument(self, args: list[str]) -> int | None:
        """Return the index of the first word in `args` that is neither an option nor an option's value. Return None if
        no such word exists, or if `--` comes before it."""
        options: list[Any] = [param for param in self.params if param.param_type_name == "option"]
        with_value = {name for option in options if not option.is_flag for name in option.opts}
        index = 0
        while index < len(args):
            if not args[index].startswith("-") or args[index] == "-":
                return index
            if args[index] == "--":
                return None
            index += 2 if args[index] in with_value else 1
        return None

    def _refuse_misplaced(self, script: str, words: list[str]) -> None:
        """Refuse options of this command among the `words` after `script`, unless the script's text contains their
        names. Otherwise `submit train.py --dry-run` would pass the option to the script and send the job.

        Raises:
            UsageError: `words` contains such an option.
        """
        own = {name for param in self.params for name in (*param.opts, *param.secondary_opts) if name[0] == "-"}
        typed = [word.partition("=")[0] for word in words]
        found = [name for name in typed if name in own]
        if not found or not Path(script).is_file():
            return
        from cloudtrain.documents.reading import read_bytes

        try:
            text = read_bytes(script).decode("utf-8", "replace")
        except OSError:  # reported when the job is made
            return
        for name in found:
            known = rf"\b{name[2:].replace('-', '[-_]')}\b" if name.startswith("--") else rf"[\"']{name}[\"']"
            if not re.search(known, text):
                message = f"`{name}` comes after `{script}`, which has no such option"
                hint = f"write `{name}` before `{script}`, or add `--` after `{script}` to pass it to the script"
                raise UsageError(message, hint=hint, code="CT902")

    def _arguments(self, ctx: Any) -> list[Any]:
        return [param for param in self.get_params(ctx) if param.param_type_name == "argument"]


def _metavar(param: Any) -> str:
    return str(param.metavar or param.name.upper())
