"""The paths of inputs and outputs on an instance, and the command line with these paths filled in.

The folder names follow published logs: the folder of the input `train` is `INPUT_train`, and that of the output `model`
is `model`. A few paths in these logs suggest that a single input file keeps its name in the folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from shlex import quote
from typing import Any

from cloudtrain.core.references import find_references
from cloudtrain.targets.azureml.launch.body import Body

_FILE_NAME = r"/paths/(?:.*/)?([^/]+)$|^(?!azureml:)\w+://.*/([^/?]+)(?:\?.*)?$"
"""The last part of a datastore path or of an address; data assets do not have it."""


def service_paths(body: Body, data: str) -> dict[str, str]:
    """Map `inputs.NAME` and `outputs.NAME` to the texts that replace them in the command.

    The text is a path in the folder `data`; with the mode `Direct`, the data's address; for a literal input, its value.
    """
    inputs = {f"inputs.{name}": _input(name, item, data) for name, item in body.inputs.items()}
    return inputs | {f"outputs.{name}": _output(name, item, data) for name, item in body.outputs.items()}


def is_literal(item: Mapping[str, Any]) -> bool:
    """Return whether an input is a literal value instead of data."""
    return item.get("jobInputType") == "literal"


def mounted_path(name: str, item: Mapping[str, Any], data: str) -> str:
    """Return the path of an input in the folder `data`: `INPUT_NAME`, or `INPUT_NAME/FILE` for a single file."""
    folder = f"{data}/INPUT_{name}"
    uri = item.get("uri")
    match = re.search(_FILE_NAME, uri) if item.get("jobInputType") == "uri_file" and isinstance(uri, str) else None
    return f"{folder}/{match[1] or match[2]}" if match else folder


def _input(name: str, item: Mapping[str, Any], data: str) -> str:
    if is_literal(item):
        return str(item.get("value", ""))
    return str(item.get("uri", "")) if item.get("mode") == "Direct" else mounted_path(name, item, data)


def _output(name: str, item: Mapping[str, Any], data: str) -> str:
    return str(item["uri"]) if item.get("mode") == "Direct" and item.get("uri") else f"{data}/{name}"


def fill_command(body: Body, paths: Mapping[str, str]) -> str:
    """Return the command with every reference replaced by its text in `paths`; other references stay unchanged.

    Values of literal inputs are inserted unchanged, as the service does. Every other text is escaped to fit the quotes
    around its reference, so that the script gets even a path with spaces as one argument.
    """
    literals = {f"inputs.{name}" for name, item in body.inputs.items() if is_literal(item)}
    command, parts, end, quotes = body.command, [], 0, _Quotes()
    for found in find_references(command):
        value = paths.get(found.inner)
        if value is None:
            continue
        between = command[end : found.start]
        quotes.pass_over(between)
        parts += [between, value if found.inner in literals else _quote_for(value, quotes.is_open)]
        quotes.pass_over(found.text)
        end = found.end
    return "".join([*parts, command[end:]])


def _quote_for(text: str, around: str) -> str:
    if around == "'":
        return text.replace("'", "'\\''")
    if around == '"':
        return re.sub(r'([\\"$`])', r"\\\1", text)
    return quote(text)


class _Quotes:
    """The quote that is open at the end of the shell text read so far: `'`, `"` or nothing."""

    def __init__(self) -> None:
        self.is_open = ""
        self._escaped = False

    def pass_over(self, text: str) -> None:
        for character in text:
            if self._escaped:
                self._escaped = False
            elif character == "\\" and self.is_open != "'":
                self._escaped = True
            elif character == self.is_open:
                self.is_open = ""
            elif character in "'\"" and not self.is_open:
                self.is_open = character
