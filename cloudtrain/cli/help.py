"""The look of a command's help: plain, 80 columns at least, the same with every version of Typer."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

CONTEXT: dict[Any, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_BRACKETS = re.compile(r"\s*\\?\[x>=\d+\]")
"""Typer's notation of a smallest number, which some versions escape for rich. The error says it when it matters."""


class Command(TyperCommand):
    """A command whose arguments look in its help as they do in its examples: `JOB`, `[CODE]`, `NAME...`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`[OPTIONS] NAME [PATH]`."""
        return ["[OPTIONS]", *(_metavar(param) for param in self._arguments(ctx))]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The arguments, then the options."""
        arguments = [(_metavar(param).strip("[]"), param.help or "") for param in self._arguments(ctx)]
        options = [
            (record[0], _BRACKETS.sub("", record[1]).replace("\\[", "["))
            for param in self.get_params(ctx)
            if param.param_type_name == "option" and (record := param.get_help_record(ctx)) is not None
        ]
        for title, rows in (("Arguments", arguments), ("Options", options)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def _arguments(self, ctx: Any) -> list[Any]:
        return [param for param in self.get_params(ctx) if param.param_type_name == "argument"]


def _metavar(param: Any) -> str:
    return str(param.metavar or param.name.upper())
