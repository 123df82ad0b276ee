"""Reads the documents that `cloudtrain adopt` accepts, and recognizes them by their content."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloudtrain.core.adoption import Original
from cloudtrain.documents.document import Unreadable, read_document
from cloudtrain.documents.limits import MAX_BYTES, MAX_DIGITS
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
    try:
        if source == STDIN:
            return _text_on_stdin(), str(Path.cwd())
        return read_text(source), os.path.dirname(os.path.abspath(source))  # noqa: PTH100, PTH120
    except Unreadable as error:
        raise UsageError(f"{_name(source)}: {error.problem.message}", hint=error.problem.hint, code="CT981") from None
    except OSError as error:
        hint = "name a plain file that you may read"
        raise UsageError(f"{_name(source)} cannot be read: {error.strerror}", hint=hint, code="CT981") from None


def _text_on_stdin() -> str:
    """Return the text on stdin.

    Raises:
        OSError: stdin is closed, or holds more than `MAX_BYTES`.
        Unreadable: the text is not UTF-8.
    """
    if sys.stdin is None:
        raise OSError(None, "it is closed")
    content = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise OSError(None, f"it holds more than {MAX_BYTES >> 20} MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"it is not UTF-8 text: byte 0x{content[error.start]:02x}"
        raise Unreadable(message, "convert it to UTF-8", code="CT001") from None


def _name(source: str) -> str:
    return "the text on stdin" if source == STDIN else f"`{source}`"


def parsed_text(text: str, source: str) -> Any:
    """Parse the text of `source` as JSON or YAML. As in other tools, YAML has version 1.1: `yes` is true, `010` is 8
    and `1e-4` is text.

    Raises:
        UsageError: the text is neither JSON nor YAML.
    """
    name = _name(source)
    form = _FORMATS.get(Path(source).suffix.lower())
    if form is None:
        form = "json" if text.lstrip("\ufeff \t\r\n")[:1] in ("{", "[") else "yaml"
    try:
        document = read_document(text, "json" if form == "json" else "yaml")
        _whole_characters(document.data)
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
        if _LONG_CLOCK.search(text):
            raise ValueError("a number in base 60 has too many digits")
        return _plain(yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError) as error:
        raise UsageError(f"{name} is not valid YAML: {error}", hint="correct this line", code="CT981") from None


_LONG_CLOCK = re.compile(r"(?::[0-5]?[0-9]){150}")
"""YAML 1.1 reads `1:30` as 90, in a time that grows with the square of the length."""


def _whole_characters(data: Any) -> None:
    """Refuse half of a surrogate pair, which JSON can hold and no file can.

    Raises:
        Unreadable: a text holds one.
    """
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start].encode("unicode_escape").decode()
        raise Unreadable(f"`{half}` is half of a character", "write the character itself", code="CT015") from None


def _plain(value: Any) -> Any:
    """Convert YAML's values to JSON's: keys and dates become strings."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, int) and value.bit_length() > 3 * MAX_DIGITS:
        raise ValueError("a number has too many digits")
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


def _refuse_unknown(source: str, data: Any) -> None:
    name = _name(source)
    if isinstance(data, Mapping) and "name" in data and ("entry_point" in data or "source_dir" in data):
        hint = f"run `cloudtrain plan {source}`"
        raise UsageError(f"{name} is already a cloudtrain job file", hint=hint, code="CT981")
    hint = "`cloudtrain adopt --help` lists what can be adopted"
    raise UsageError(f"{name} contains no training job that cloudtrain recognizes", hint=hint, code="CT981")
