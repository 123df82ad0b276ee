from __future__ import annotations

import sys
from typing import Annotated, Any, NamedTuple

import typer

from cloudtrain.cli import complete, options


class Entry(NamedTuple):
    """The explanation of the code of a rule or of an error."""

    code: str
    level: str
    summary: str
    explanation: str
    can_be_ignored: bool


def command(
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="[CODE]",
            help="The code of a finding or an error. Default: list all of them.",
            autocompletion=complete.all_codes,
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Explain a finding or an error by its code.

    \b
    Examples:
      cloudtrain explain            # every rule and error, one per line
      cloudtrain explain CT101
    """
    from cloudtrain.cli.terminal import print_json, show
    from cloudtrain.render.document import Block, Document, Heading, Lines, Table, Text

    if code is None:
        entries = _all()
        if json:
            print_json([_as_json(entry) for entry in entries])
            return
        rows = [(entry.code, entry.level, entry.summary) for entry in entries]
        show(Document([Table(("CODE", "LEVEL", "WHAT IT FINDS"), rows)]), sys.stdout)
        return
    entry = _entry(code)
    if json:
        print_json(_as_json(entry))
        return
    blocks: list[Block] = [Heading(f"{entry.code} ({entry.level})"), Text(entry.summary)]
    for paragraph in entry.explanation.split("\n\n"):
        is_code = paragraph.startswith("    ")
        blocks.append(Lines(_dedent(paragraph)) if is_code else Text(" ".join(paragraph.split())))
    if entry.can_be_ignored:
        blocks.append(Text(f"Accept it in one job with `--ignore {entry.code}`."))
    show(Document(blocks), sys.stdout)


def _all() -> list[Entry]:
    """Return the entries of all rules and errors, sorted by code."""
    from cloudtrain.problems.codes import ERROR_CODES
    from cloudtrain.targets.rules import all_rules

    return sorted([*map(_of_rule, all_rules()), *map(_of_error, ERROR_CODES.values())])


def _entry(code: str) -> Entry:
    """Return the entry of the rule or error with this code, in upper or lower case.

    Raises:
        UsageError: no rule or error has this code.
    """
    from cloudtrain.problems.codes import ERROR_CODES

    if code.upper() in ERROR_CODES:
        return _of_error(ERROR_CODES[code.upper()])
    from cloudtrain.targets.rules import rule_named

    return _of_rule(rule_named(code))


def _of_rule(rule: Any) -> Entry:
    return Entry(rule.code, str(rule.level), rule.summary, rule.explanation, can_be_ignored=True)


def _of_error(error: Any) -> Entry:
    return Entry(error.code, "error", error.summary, error.explanation, can_be_ignored=False)


def _dedent(text: str) -> list[str]:
    from textwrap import dedent

    return dedent(text).splitlines()


def _as_json(entry: Entry) -> dict[str, Any]:
    return entry._asdict()
