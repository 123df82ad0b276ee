"""Reads the documents that `cloudtrain adopt` accepts, and recognizes them by their content."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloudtrain.core.adoption import Original
from cloudtrain.documents.document import Unreadable, read_document
from cloudtrain.documents.reading import read_text
from cloudtrain.errors import UsageError
from cloudtrain.targets.registry import all_targets

STDIN = "-"

_FORMATS = {".json": "json", ".yaml": "yaml", ".yml": "yaml"}


def originals_of_document(source: str) -> list[Original]:
    """Return the jobs in a file or on stdin. The text is a request, an event, a description or a job of another tool.

    Raises:
        UsageError: the source cannot be read, or no target recognizes it.
    """
    text, folder = text_of(source)
    data = parsed_text(text, source)
    found = [original for target in all_targets() for original in _of_target(target, data, folder)]
    if not found:
        _refuse_unknown(source, data)
    return found


def _of_target(target: Any, data: Any, folder: str | None) -> list[Original]:
    adopter = target.adopter()
    found: list[Original] = adopter.originals(data, folder) if adopter is not None else []
    return found


def text_of(source: str) -> tuple[str, str | None]:
    """Return the text of a file and the folder of the file; for stdin, its text and the working directory.

    Raises:
        UsageError: the file cannot be read.
    """
    if source == STDIN:
        return sys.stdin.read(), str(Path.cwd())
    try:
        return read_text(source), os.path.dirname(os.path.abspath(source))  # noqa: PTH100, PTH120
    except Unreadable as error:
        raise UsageError(f"`{source}`: {error.problem.message}", hint=error.problem.hint, code="CT981") from None
    except OSError as error:
        hint = "name a plain file that you may read"
        raise UsageError(f"`{source}` cannot be read: {error.strerror}", hint=hint, code="CT981") from None


def parsed_text(text: str, source: str) -> Any:
    """Parse the text of `source` as JSON or YAML. As in other tools, YAML has version 1.1: `yes` is true, `010` is 8
    and `1e-4` is text.

    Raises:
        UsageError: the text is neither JSON nor YAML.
    """
    name = "the text on stdin" if source == STDIN else f"`{source}`"
    form = _FORMATS.get(Path(source).suffix.lower())
    if form is None:
        form = "json" if text.lstrip("\ufeff \t\r\n")[:1] in ("{", "[") else "yaml"
    try:
        document = read_document(text, "json" if form == "json" else "yaml")
    except Unreadable as error:
        place = f" (line {error.problem.line})" if error.problem.line else ""
        raise UsageError(
            f"{name} is not valid {form.upper()}{place}: {error.problem.message}",
            hint=error.problem.hint or "correct this line",
            code="CT981",
        ) from None
    if form == "json":
        return document.data
    import yaml

    try:
        return _plain(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise UsageError(f"{name} is not valid YAML: {error}", hint="correct this line", code="CT981") from None


def _plain(value: Any) -> Any:
    """Convert YAML's values to JSON's: keys and dates become strings."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


def _refuse_unknown(source: str, data: Any) -> None:
    name = "the text on stdin" if source == STDIN else f"`{source}`"
    if isinstance(data, Mapping) and "name" in data and ("entry_point" in data or "source_dir" in data):
        hint = f"run `cloudtrain plan {source}`"
        raise UsageError(f"{name} is already a cloudtrain job file", hint=hint, code="CT981")
    hint = "`cloudtrain adopt --help` lists what can be adopted"
    raise UsageError(f"{name} contains no training job that cloudtrain recognizes", hint=hint, code="CT981")
