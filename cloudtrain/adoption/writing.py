"""Writes the adopted job as a job file, and its settings as `cloudtrain.toml`, both with comments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cloudtrain.core.differences import Path
from cloudtrain.documents.scalars import read_scalar
from cloudtrain.render.escape import on_one_line

_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./@+-]*(?: [A-Za-z0-9_./@+=-]+)*")
"""Text that needs no quotes in YAML 1.1 and 1.2."""

_WORDS = frozenset("y n yes no on off true false null".split())
"""Texts that some YAML readers take for a Boolean value or null."""

_WIDTH = 110


def job_yaml(job: Mapping[str, Any], comments: Mapping[Path, str], head: Sequence[str] = ()) -> str:
    """Return the text of the job file.

    Each comment is placed above its field. The comments `head`, and comments on fields that the job does not have, go
    at the top of the file.
    """
    missing = [f"{text}" for path, text in comments.items() if not _holds(job, path)]
    lines = [line.rstrip() for text in (*head, *missing) for line in _commented(text)]
    return "\n".join([*lines, *([""] if lines else []), *_mapping(job, (), comments, "")]) + "\n"


def settings_toml(target: str, settings: Mapping[str, Any], head: Sequence[str] = ()) -> str:
    """Return the text of the target's table in `cloudtrain.toml`, with nested tables last."""
    lines = [line.rstrip() for text in head for line in _commented(text)]
    return "\n".join([*lines, *_table((target,), settings)]) + "\n"


def _commented(text: str, indent: str = "") -> Iterator[str]:
    """Return the lines of a comment, each with `# `. Control characters are escaped, because YAML and TOML do not allow
    them."""
    return (f"{indent}# {on_one_line(line)}" for line in text.splitlines())


def _holds(value: Any, path: Path) -> bool:
    for part in path:
        if not isinstance(value, Mapping) or part not in value:
            return False
        value = value[part]
    return True


def _mapping(value: Mapping[str, Any], path: Path, comments: Mapping[Path, str], indent: str) -> Iterator[str]:
    for key, inner in value.items():
        here = (*path, key)
        yield from _commented(comments.get(here, ""), indent)
        name = _scalar(key)
        flow = _flow(inner)
        commented = any(at[: len(here)] == here and at != here for at in comments)
        if isinstance(inner, str) and "\n" in inner and (block := _block(inner, indent + "  ")):
            yield f"{indent}{name}: |{block[0]}"
            yield from block[1]
        elif isinstance(inner, Mapping) and inner and (commented or not path or len(indent + name + flow) > _WIDTH):
            yield f"{indent}{name}:"
            yield from _mapping(inner, here, comments, indent + "  ")
        elif isinstance(inner, Sequence) and not isinstance(inner, str) and len(indent + name + flow) > _WIDTH:
            yield f"{indent}{name}:"
            yield from (f"{indent}  - {_flow(item)}" for item in inner)
        else:
            yield f"{indent}{name}: {flow}"


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if not isinstance(value, str):
        return _number(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS and read_scalar(value) == value:
        return value
    return _quoted(value)


def _quoted(text: str) -> str:
    """Return a text in double quotes, for YAML and TOML."""
    return "".join(
        letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in json.dumps(text, ensure_ascii=False)
    )


def _number(value: Any) -> str:
    """Return a number as text. Floats get a decimal point, because YAML 1.1 reads `1e-05` as text."""
    text = json.dumps(value)
    return re.sub(r"^(-?\d+)e", r"\1.0e", text) if isinstance(value, float) else text


def _block(text: str, indent: str) -> tuple[str, list[str]] | None:
    """Return the header and the lines of a YAML literal block for a text of several lines; None if the text must
    be written in quotes."""
    plain = all(line.isprintable() and not line.endswith(" ") for line in text.split("\n"))
    if not plain or text[:1] in (" ", "\n") or text.endswith("\n\n") or not text.strip():
        return None
    return ("" if text.endswith("\n") else "-"), [f"{indent}{line}".rstrip() for line in text.rstrip("\n").split("\n")]


def _table(path: tuple[str, ...], table: Mapping[str, Any]) -> Iterator[str]:
    yield f"[{'.'.join(map(_key, path))}]"
    for name, value in table.items():
        if not isinstance(value, Mapping):
            yield f"{_key(name)} = {_toml(value)}"
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield ""
            yield from _table((*path, name), value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {_toml(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return _quoted(value) if isinstance(value, str) else _number(value)
