"""Say what azure-ai-ml makes of a job file: the SDK itself where it is installed, and otherwise the
table `job_file.toml` of what the SDK accepts."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cloudtrain.documents.document import load_table
from cloudtrain.errors import did_you_mean, shortened
from cloudtrain.plans.comparison import ValuePath
from cloudtrain.targets.azureml.fields import JsonMapping, JsonObject

SCHEMA: dict[str, Any] = load_table(__file__, "job_file.toml")

Refusal = tuple[ValuePath, str]
"""The path of a value that azure-ai-ml refuses or changes, and the reason."""


def _is_text(value: object) -> bool:
    """A subclass of `str` stands for what YAML reads as another type, such as a date."""
    return type(value) is str


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_reference(value: object) -> bool:
    return _is_text(value) and str(value).startswith(("azureml:", "file:"))


def _is_conda(value: object) -> bool:
    is_path = _is_text(value) and not str(value).startswith("file:")
    return is_path or isinstance(value, Mapping)


CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "any": (lambda _: True, ""),
    "shown": (lambda _: True, ""),
    "text": (_is_text, "a text"),
    "text_or_null": (lambda value: value is None or _is_text(value), "a text, in quotes"),
    "text_or_number": (lambda value: _is_text(value) or _is_number(value), "a number"),
    "texts": (_are_texts, "a list of texts"),
    "text_or_texts": (lambda value: _is_text(value) or _are_texts(value), "a text"),
    "version": (lambda value: _is_text(value) or type(value) is int, "a text, in quotes"),
    "count": (_is_count, "a whole number of at least 0"),
    "number": (_is_number, "a number"),
    "flag": (lambda value: type(value) is bool, "`true` or `false`"),
    "mapping": (lambda value: isinstance(value, Mapping), "a mapping"),
    "list": (lambda value: isinstance(value, list), "a list"),
    "null": (lambda value: value is None, "a mapping"),
    "conda": (_is_conda, "the path of a file, without `file:`"),
    "type_command": (lambda value: value == "command", "`command`, in lower case"),
    "type_sweep": (lambda value: value == "sweep", "`sweep`, in lower case"),
    "literal": (
        lambda value: _is_text(value) or _is_number(value) or type(value) is bool,
        "a text, a number, `true` or `false`",
    ),
    "reference": (_is_reference, "`azureml:NAME:VERSION`, or a definition"),
}
"""Maps each check of the table to its function, and to what to write."""


def refused(value: Any, rule: Any, path: ValuePath = ()) -> Iterator[Refusal]:
    """Yield what azure-ai-ml refuses of a value, or would change, by a rule of the table."""
    if isinstance(rule, list):
        if not _is_word(value, rule):
            near = did_you_mean(str(value), rule)
            yield path, f"Azure ML's tools do not know the value `{value}`: {near}"
    elif isinstance(rule, Mapping):
        if not isinstance(value, Mapping):
            yield path, "Azure ML's tools refuse the value: write a mapping"
            return
        for name, item in value.items():
            is_variable = rule["each"] in ("input", "output")
            if not _is_text(name) or (is_variable and not _NAME.fullmatch(name)):
                yield (*path, name), f"Azure ML's tools refuse the name `{name}`"
            yield from refused(item, rule["each"], (*path, name))
    elif rule in CHECKS:
        is_right, what = CHECKS[rule]
        if not is_right(value):
            yield path, f"Azure ML's tools refuse or change the value `{value}`: write {what}"
    elif isinstance(value, Mapping):
        yield from _refused_in_part(value, rule, path)
    else:
        yield from refused(value, SCHEMA["scalars"].get(rule, "mapping"), path)


def _is_word(value: object, words: list[str]) -> bool:
    """In place of a word in lower case, azure-ai-ml accepts every spelling of it."""
    return _is_text(value) and (value in words or str(value).lower() in words)


def _refused_in_part(value: JsonMapping, name: str, path: ValuePath) -> Iterator[Refusal]:
    """Yield what azure-ai-ml refuses of a mapping, which is a part of the table."""
    if name == "input" and value.keys() == {"value"}:
        yield from refused(value["value"], "literal", (*path, "value"))
        return

    kinds = SCHEMA[name]
    keys = kinds[0]
    if "type" in value and isinstance(keys["type"], list):
        known = [word for kind in kinds for word in kind["type"]]
        if not _is_word(value["type"], known):
            yield from refused(value["type"], known, (*path, "type"))
            return
        keys = next(kind for kind in kinds if _is_word(value["type"], kind["type"]))

    for key, item in value.items():
        if key in keys and key != "required":
            yield from refused(item, keys[key], (*path, key))
        else:
            near = did_you_mean(key, keys.keys() - {"required"})
            yield (*path, key), f"Azure ML's tools refuse the file: no key `{key}` here: {near}"
    for key in keys.get("required", ()):
        if key not in value:
            yield (*path, key), f"Azure ML's tools refuse the file: `{key}` is missing"


_NAME = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")
"""The name of an input or an output."""


class RefusedBySDK(Exception):
    """azure-ai-ml, which is installed here, refuses the file."""


def body_by_sdk(data: JsonMapping, folder: str | None) -> JsonObject | None:
    """Return the `properties` of the body that azure-ai-ml makes of a job file, with places and the
    environment unresolved; None if the SDK, or the part of it that makes bodies, is not installed.
    Nothing is sent, and no credentials are read.

    Raises:
        RefusedBySDK: the SDK refuses the file, or makes no body of it.
    """
    with _silence():
        try:
            from azure.ai.ml import load_job
            from azure.ai.ml.entities._job.to_rest_functions import to_rest_job_object
        except ImportError:
            return None

        import yaml

        origin = os.path.join(folder or ".", "job.yml")
        try:
            text = yaml.safe_dump(dict(data))
            job = load_job(io.StringIO(text), relative_origin=origin)
            body = to_rest_job_object(job).as_dict()
        # the SDK raises errors of all kinds for a file that it refuses
        except Exception as error:
            text = re.sub(r"\x1b\[\d+m|\\+n?|[{}\[\]]", " ", str(error))
            words = text.rpartition("failed:")[2].split()
            raise RefusedBySDK(shortened(" ".join(words), 200)) from error
    properties: JsonObject = json.loads(json.dumps(body, default=str))["properties"]
    return properties


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep the SDK's remarks about itself from stderr and from the log."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
