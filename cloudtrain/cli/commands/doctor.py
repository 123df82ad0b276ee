from __future__ import annotations

import sys

import typer

from cloudtrain.cli import options


def command(json: options.Json = False) -> None:
    """Show what works on this machine and what is missing.

    The exit code is 2 when something must be fixed before the local target works, and 0 otherwise.

    \b
    Example:
      cloudtrain doctor
    """
    from cloudtrain.cli.diagnosis import examine
    from cloudtrain.cli.terminal import print_json, show
    from cloudtrain.render.document import Document, Notice, Span, Table
    from cloudtrain.render.layout import LEVEL_STYLE

    findings = examine()
    if json:
        print_json([finding._asdict() for finding in findings])
    else:
        rows = [
            (finding.subject, Span(finding.level, LEVEL_STYLE[finding.level]), finding.message) for finding in findings
        ]
        hints: dict[tuple[str, str, str], list[str]] = {}  # a mistake in the settings stops several examinations
        for finding in findings:
            if finding.hint and finding.level != "ok":
                hints.setdefault((finding.level, finding.message, finding.hint), []).append(finding.subject)
        notices = [
            Notice(level, message if len(subjects) > 1 else f"{subjects[0]}: {message}", hint=hint)
            for (level, message, hint), subjects in hints.items()
        ]
        show(Document([Table(("WHAT", "LEVEL", "FOUND"), rows), *notices]), sys.stdout)
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(2)
