"""The forms in which the page gets documents, and a run or a comparison as one file to send to
somebody."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import re
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from cloudtrain.plans.document import (
    CommandLine,
    Document,
    Span,
    shell_word,
    visible,
    visible_json,
)

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

_ESCAPE = re.compile(r"\\(?:u[0-9a-f]{4}(?:\\u[0-9a-f]{4})*|.)")
"""An escape in JSON, or several of them that may be one character."""

_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 20px auto; max-width: 1100px; padding: 0 12px; font: 14px system-ui, sans-serif; }}
</style>
<h1>{title}</h1>
{body}
</html>
"""


class Packed(NamedTuple):
    """JSON as it is sent, with a tag by which a browser knows that it has it already."""

    data: bytes
    tag: str


def pack(value: Any) -> Packed:
    """Return a value as compressed JSON."""
    data = json_text(value).encode()
    tag = hashlib.blake2b(data, digest_size=12).hexdigest()
    # the lowest level: a list of 10,000 runs then takes 20 ms
    return Packed(gzip.compress(data, 1, mtime=0), f'"{tag}"')


def json_text(value: Any) -> str:
    """Return a value as JSON in which what a text hides is written out as in a terminal, and NaN
    and infinity are texts."""
    try:
        text = _encode(value)
    except ValueError:  # a number is not finite
        text = _encode(_finite(value))
    # the whole text at once: one call for each text of 10,000 runs takes 0.2 s
    return _ESCAPE.sub(_write_out, visible_json(text))


def _write_out(escape: re.Match[str]) -> str:
    text = json.loads(f'"{escape[0]}"')
    return json.dumps(visible(text))[1:-1]


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_finite, value))
    is_lost = isinstance(value, float) and not math.isfinite(value)
    return str(value) if is_lost else value


def document_data(document: Document) -> list[Any]:
    """Return the blocks of a document as JSON data: each an object with its `kind` in lower case,
    such as `pairs`, and its fields. A cell with a style is an object with `text` and `style`; a
    command line has its words quoted in `text`."""
    return [_data(block) for block in document.blocks]


def _data(value: Any) -> Any:
    if isinstance(value, Span):
        return value._asdict()
    if isinstance(value, CommandLine):
        words = " ".join(map(shell_word, value.argv))
        return {"kind": "commandline", "text": words, "variables": value.variables}
    if hasattr(value, "_asdict"):
        fields = {name: _data(field) for name, field in value._asdict().items()}
        return {"kind": type(value).__name__.lower(), **fields}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_data(item) for item in value]
    return value


def saved_page(title: str, shown: Any) -> str:
    """Return a page with what a notebook shows of a run or a comparison, its curves included. It
    runs no code and loads nothing."""
    return _PAGE.format(title=escape(title), body=shown._repr_html_())
