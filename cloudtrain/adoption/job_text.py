"""Texts of an adopted job's file and of its settings, `cloudtrain.toml`, both with comments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cloudtrain.documents.toml_json import toml_key, toml_text
from cloudtrain.documents.yaml_text import plain_scalar
from cloudtrain.plans.comparison import ValuePath
from cloudtrain.plans.document import on_one_line
from cloudtrain.rules.engine import is_written

_WIDTH = 110
"""Columns after which a mapping or a list gets a line for each item."""


def job_yaml(
    job: Mapping[str, Any], comments: Mapping[ValuePath, str], head: Sequence[str] = ()
) -> str:
    """Return the text of the job file.

    Each comment is placed above its field. The comments `head`, and comments on fields that the job
    does not have, go at the top of the file.
    """
    missing = [text for path, text in comments.items() if not is_written(job, *path)]
    lines = list(_commented("\n".join([*head, *missing])))
    if lines:
        lines.append("")
    lines += _mapping(job, (), comments, "")
    return "\n".join(lines) + "\n"


def settings_toml(target: str, settings: Mapping[str, Any], head: Sequence[str] = ()) -> str:
    """Return the text of the target's table in `cloudtrain.toml`, with nested tables last."""
    lines = [*_commented("\n".join(head)), *_table((target,), settings)]
    return "\n".join(lines) + "\n"


def _commented(text: str, indent: str = "") -> Iterator[str]:
    """Return the lines of a comment, each with `# `. Control characters are escaped, because YAML
    and TOML do not allow them."""
    return (f"{indent}# {on_one_line(line)}".rstrip() for line in text.splitlines())


def _mapping(
    value: Mapping[str, Any], path: ValuePath, comments: Mapping[ValuePath, str], indent: str
) -> Iterator[str]:
    """Yield the lines of a YAML mapping. `path` leads to it from the top of the file, where it is
    empty."""
    for key, inner in value.items():
        inner_path = (*path, key)
        yield from _commented(comments.get(inner_path, ""), indent)
        start = indent + plain_scalar(key)

        block = _block(inner, indent + "  ")
        if block is not None:
            style, lines = block
            yield f"{start}: |{style}"
            yield from lines
            continue

        flow = _flow(inner)
        is_wide = len(start + flow) > _WIDTH
        has_own_lines = not path or is_wide or _has_comment_below(comments, inner_path)
        if isinstance(inner, Mapping) and inner and has_own_lines:
            yield f"{start}:"
            yield from _mapping(inner, inner_path, comments, indent + "  ")
        elif is_wide and isinstance(inner, Sequence) and not isinstance(inner, str):
            yield f"{start}:"
            for item in inner:
                yield f"{indent}  - {_flow(item)}"
        else:
            yield f"{start}: {flow}"


def _has_comment_below(comments: Mapping[ValuePath, str], path: ValuePath) -> bool:
    """Return whether a comment is about a value inside the one at `path`."""
    depth = len(path)
    return any(len(at) > depth and at[:depth] == path for at in comments)


def _flow(value: Any) -> str:
    """Return a value in YAML's form for one line: `{a: [1, 2]}`."""
    if isinstance(value, Mapping):
        pairs = [f"{plain_scalar(key)}: {_flow(inner)}" for key, inner in value.items()]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return plain_scalar(value)


def _block(value: object, indent: str) -> tuple[str, list[str]] | None:
    """Return the header and the lines of a YAML literal block for a text of several lines; None for
    other values, and if the text must be written in quotes."""
    if not isinstance(value, str) or "\n" not in value:
        return None
    if not value.strip() or value[0] in " \n" or value.endswith("\n\n"):
        return None
    for line in value.split("\n"):
        if not line.isprintable() or line.endswith(" "):
            return None
    lines = [f"{indent}{line}".rstrip() for line in value.rstrip("\n").split("\n")]
    return "" if value.endswith("\n") else "-", lines


def _table(path: tuple[str, ...], table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a TOML table. A line after the head of an inner table would belong to that
    table, so inner tables are last."""
    yield f"[{'.'.join(map(toml_key, path))}]"
    for name, value in table.items():
        if not isinstance(value, Mapping):
            yield f"{toml_key(name)} = {toml_text(value)}"
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield ""
            yield from _table((*path, name), value)
