"""The page docs/reference/cli.md, from the help texts. `make docs` writes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import cloudtrain.cli
from cloudtrain.cli.app import COMMANDS, load_command

WIDTH = 80

INTRODUCTION = """\
# The command line

<!-- Written by tools/generate/cli_docs.py from the help texts. Change those, then run `make docs`. -->

Data goes to stdout; progress, messages and errors go to stderr. `--json` prints one JSON document (for `logs`, one
object a line), in which a metric that is NaN or infinite is `null`. Colour appears only on a terminal, and never when
`NO_COLOR` is set. `-h` is `--help`.

Wherever a run is asked for, its full name, the beginning of a name that only one run has, its reference
(`local://host/name`) or `last`, the newest run of this folder, will do.

`cloudtrain --install-completion` sets up completion in bash, zsh and fish: commands, options, run names, job files
and codes.

## Exit codes

| code | meaning |
|---|---|
"""


def document() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION + "".join(f"| {code} | {meaning} |\n" for code, meaning in _exit_codes())]
    for section in dict.fromkeys(entry.section for entry in COMMANDS.values()):
        parts.append(f"## {section}\n")
        for name in (name for name, entry in COMMANDS.items() if entry.section == section):
            parts += [
                f"### cloudtrain {title}\n\n```text\n{text}\n```\n" for title, text in _helps(name)
            ]
    return "\n".join(parts)


def _exit_codes() -> Iterator[tuple[str, str]]:
    """Yield the table in the docstring of `cloudtrain.cli`."""
    text = cloudtrain.cli.__doc__ or ""
    for code, meaning in re.findall(r"^ {4}(\d+) +(.*(?:\n {10}.*)*)", text, re.MULTILINE):
        yield code, " ".join(meaning.split())


def _helps(name: str) -> Iterator[tuple[str, str]]:
    command = load_command(name)
    yield name, _help(command, f"cloudtrain {name}")
    for inner, subcommand in getattr(command, "commands", {}).items():
        yield f"{name} {inner}", _help(subcommand, f"cloudtrain {name} {inner}")


def _help(command: Any, path: str) -> str:
    with command.make_context(path, [], resilient_parsing=True, terminal_width=WIDTH) as context:
        text: str = command.get_help(context)
        return text.rstrip()
