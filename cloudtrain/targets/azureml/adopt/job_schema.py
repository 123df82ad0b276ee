"""Say what azure-ai-ml 1.35.2 refuses of a job file, by the table `job_file.toml`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cloudtrain.documents.document import load_table
from cloudtrain.errors import did_you_mean, shortened
from cloudtrain.plans.comparison import ValuePath
from cloudtrain.targets.azureml.fields import JsonMapping

SCHEMA: dict[str, Any] = load_table(__file__, "job_file.toml")

Refusal = tuple[ValuePath, str]
"""The path of a value that azure-ai-ml refuses or changes, and the reason."""


TYPES = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "flag",
    list: "list",
    dict: "mapping",
}
"""The words of the table for types. A subclass of `str`, which has no word, stands for what YAML
reads as another type, such as a date."""

_NAME = "[a-zA-Z_][a-zA-Z0-9_]*"
"""The name of an input or an output."""

_REFUSE = "Azure ML's tools refuse the file"


def refused(value: Any, rule: Any, path: ValuePath = ()) -> Iterator[Refusal]:
    """Yield what azure-ai-ml refuses of a value, or would change, by a rule of the table."""
    is_mapping = isinstance(value, Mapping)
    if isinstance(rule, list):
        if not _is_word(value, rule):
            word = shortened(str(value))
            yield path, f"{_REFUSE}: `{word}` is none of its words: {did_you_mean(word, rule)}"
    elif isinstance(rule, dict) and is_mapping:
        for name, item in value.items():
            is_variable = rule["each"] in ("input", "output")
            if type(name) is not str or (is_variable and not re.fullmatch(_NAME, name)):
                yield (*path, name), f"{_REFUSE}: `{name}` is no name"
            yield from refused(item, rule["each"], (*path, name))
    elif str(rule) in SCHEMA and is_mapping:
        yield from _refused_in_part(value, str(rule), path)
    elif str(rule) in SCHEMA["scalars"]:
        yield from refused(value, SCHEMA["scalars"][rule], path)
    elif rule != "any":
        types = "mapping" if isinstance(rule, dict) or rule in SCHEMA else rule
        kind = _type_of(value) or "a date"
        if kind not in types.split(" or "):
            yield path, f"Azure ML's tools refuse or change the value: it is {kind}, not {types}"


def _type_of(value: object) -> str | None:
    if value is None:
        return "null"
    if type(value) is int and value < 0:
        return "number"
    if isinstance(value, list) and all(type(item) is str for item in value):
        return "list of texts"
    return TYPES.get(type(value))


def _is_word(value: object, words: list[str]) -> bool:
    """In place of a word in lower case, azure-ai-ml accepts every spelling of it."""
    return isinstance(value, str) and (value in words or value.lower() in words)


def _refused_in_part(value: JsonMapping, name: str, path: ValuePath) -> Iterator[Refusal]:
    """Yield what azure-ai-ml refuses of a mapping, which is a part of the table."""
    if name == "input" and value.keys() == {"value"}:
        yield from refused(value["value"], SCHEMA["scalars"]["input"], (*path, "value"))
        return

    kinds = SCHEMA[name]
    keys = dict(kinds[0])
    if isinstance(keys.get("type"), list) and "type" in value:
        words: list[str] = []
        for kind in kinds:
            words += kind["type"]
            if _is_word(value["type"], kind["type"]):
                keys = dict(kind)
        if not _is_word(value["type"], words):
            yield from refused(value["type"], words, (*path, "type"))
            return

    for key in keys.pop("required", ()):
        if key not in value:
            yield (*path, key), f"{_REFUSE}: `{key}` is missing"
    for key, item in value.items():
        if key in keys:
            yield from refused(item, keys[key], (*path, key))
        else:
            near = did_you_mean(key, keys)
            yield (*path, key), f"{_REFUSE}: it has no key `{key}` here: {near}"
