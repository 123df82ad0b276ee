from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from cloudtrain.cli import complete, options


def command(
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="[CODE]", help="The code of a finding; all of them unless given.", autocompletion=complete.codes
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Explain a finding by its code.

    \b
    Examples:
      cloudtrain explain            # every rule, one a line
      cloudtrain explain CT101
    """
    from cloudtrain.checks import all_rules, rule_named
    from cloudtrain.cli.terminal import print_json, show
    from cloudtrain.render.document import Block, Document, Heading, Lines, Table, Text

    rules = all_rules() if code is None else [rule_named(code)]
    if json:
        print_json([_rule_json(rule) for rule in rules] if code is None else _rule_json(rules[0]))
    elif code is None:
        rows = [(rule.code, str(rule.level), rule.summary) for rule in rules]
        show(Document([Table(("CODE", "LEVEL", "WHAT IT FINDS"), rows)]), sys.stdout)
    else:
        rule = rules[0]
        blocks: list[Block] = [Heading(f"{rule.code} ({rule.level})"), Text(rule.summary)]
        for paragraph in rule.explanation.split("\n\n"):
            is_code = paragraph.startswith("    ")
            blocks.append(Lines(_dedented(paragraph)) if is_code else Text(" ".join(paragraph.split())))
        blocks.append(Text(f"Accept it in one job with `--ignore {rule.code}`."))
        show(Document(blocks), sys.stdout)


def _dedented(text: str) -> list[str]:
    from textwrap import dedent

    return dedent(text).splitlines()


def _rule_json(rule: Any) -> dict[str, str]:
    return {
        "code": rule.code,
        "level": str(rule.level),
        "summary": rule.summary,
        "explanation": rule.explanation,
    }
