"""The JSON Schema (2020-12) of job files, with which editors complete fields, show help and mark
mistakes.

Run `cloudtrain schema > job.schema.json` and put this comment for the YAML language server at the
top of a job file:

    # yaml-language-server: $schema=job.schema.json

The schema accepts every job file that `load_job` accepts. It also accepts some mistakes: a
reference (`${{inputs.train}}`) to a missing input, `1.0` for an integer, or a duration that is too
long.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from itertools import combinations, pairwise
from typing import Any

from pydantic import BaseModel

from cloudtrain.job.distribution import smp_parameters
from cloudtrain.job.file import model_of_kind
from cloudtrain.job.model import OVERRIDES, is_widened
from cloudtrain.job.nodes import node_of_field
from cloudtrain.job.processing import ONLY_TRAINING
from cloudtrain.job.training import Environment, PerTarget
from cloudtrain.system.plugins import all_targets, target_names

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NAMES = {"training": "job", "processing": "processing-job", "sweep": "sweep"}
"""The last part of each schema's identifier. An identifier is a URN, so it cannot be downloaded."""

_KIND_HELP = "What the file holds: `training`, which need not be said, `processing`, or `sweep`."

Schema = dict[str, Any]


def job_schema(kind: str = "training") -> Schema:
    """Return the JSON Schema of a job file as JSON data. `kind` is one of
    `cloudtrain.job.file.KINDS`."""
    root: type[BaseModel] = model_of_kind(kind)
    schema = root.model_json_schema(mode="validation")
    definitions: Schema = schema.pop("$defs")
    for model in _models(root):
        own = schema if model is root else definitions[model.__name__]
        _describe(own, model)
        _take_short_forms(own, model)
        own.update(_RULES.get(model.__name__, {}))

    properties = schema["properties"]
    job = definitions["TrainingJob"] if kind == "sweep" else schema
    fields = job["properties"]
    if kind != "processing":
        fields["distribution"] = _choice(fields["distribution"], definitions)
    if kind == "training":
        kind_field = {"const": kind, "description": _KIND_HELP}
        schema["properties"] = {"kind": kind_field} | properties
    else:
        properties["kind"]["description"] = _KIND_HELP
        schema["required"] = ["kind", *schema["required"]]
    if kind == "sweep":
        _open_short_forms(schema, job)
    for field in (fields["inputs"], fields["outputs"]):
        # Other names are not valid; pydantic's `patternProperties` would allow them.
        for pattern, inner in field.pop("patternProperties", {}).items():
            field["additionalProperties"] = inner
            field["propertyNames"] = {"pattern": pattern, "maxLength": 64}

    del schema["title"]
    head = {
        "$schema": DIALECT,
        "$id": f"urn:cloudtrain:schema:{_NAMES[kind]}",
        "title": f"cloudtrain {_NAMES[kind].replace('-', ' ')}",
    }
    return head | schema | {"$defs": definitions}


def _open_short_forms(schema: Schema, job_schema: Schema) -> None:
    """Allow the short forms of a sweep: a job without a name, the path of the job's file, and a
    list instead of `choice`."""
    properties = schema["properties"]
    job_schema["required"].remove("name")
    properties["job"] = {
        "description": properties["job"].get("description", ""),
        "anyOf": [{"type": "string", "minLength": 1}, {"$ref": "#/$defs/TrainingJob"}],
    }
    values = properties["search"]
    a_list = {"type": "array", "minItems": 1}
    values["additionalProperties"] = {"anyOf": [a_list, values["additionalProperties"]]}


def _models(root: type[BaseModel]) -> list[type[BaseModel]]:
    """Return the model of a file and the models of all its fields."""
    models = [root]
    for model in models:  # which grows meanwhile
        for name in model.model_fields:
            shape = node_of_field(model, name)
            while shape.inner is not None:
                shape = shape.inner
            for inner in shape.models.values():
                if inner not in models:
                    models.append(inner)
    return models


def _describe(schema: Schema, model: type[BaseModel]) -> None:
    """Add a description to each field: its docstring in the source code and the unit of its
    type."""
    schema["description"] = inspect.cleandoc(model.__doc__ or "").partition("\n\n")[0]
    texts = _field_texts(model) | _target_texts(model)
    for name, own in schema["properties"].items():
        text = texts.get(name, "")
        for option in (own, *own.get("anyOf", ())):
            if "description" in option:  # of a type with a unit
                text = f"{text} {option['description']}".strip()
                break
        if text:
            own["description"] = text


def _target_texts(model: type[BaseModel]) -> dict[str, str]:
    """Return the description of each field that belongs to a target."""
    if model is PerTarget:
        return {}
    texts: dict[str, str] = {}
    for target in all_targets():
        facts = target.facts
        texts[target.name] = facts.place_help
        if model is Environment:
            texts[target.name] = facts.environment_help
        texts[target.name + OVERRIDES] = facts.overrides_help
    return texts


def _take_short_forms(schema: Schema, model: type[BaseModel]) -> None:
    """Let the schema allow a text in place of a mapping, for fields of `model` that accept both.
    Example: one instance type for all targets."""
    for name in model.model_fields:
        shape = node_of_field(model, name)
        inner = shape.inner
        own = schema["properties"][name]
        if shape.kind == "model" and shape.has_parser:
            own["anyOf"].insert(0, {"type": "string"})
        elif inner is not None and inner.kind == "model" and inner.has_parser:
            key = "items" if shape.kind == "list" else "additionalProperties"
            own[key] = {"anyOf": [{"type": "string"}, own[key]]}


@cache
def _field_texts(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstring of each field, from the source code of its class."""
    texts: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if owner is BaseModel or not issubclass(owner, BaseModel) or is_widened(owner):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in pairwise(body.body):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    texts[name] = " ".join(inspect.cleandoc(text).split())
    return texts


def _choice(schema: Schema, definitions: Schema) -> Schema:
    """Return a schema for `distribution` that selects the model by `type`. An editor then offers
    the types first and the fields of the chosen type next."""
    tags = []
    helps = []
    cases = []
    for option in schema["oneOf"]:
        definition = definitions[option["$ref"].rpartition("/")[2]]
        tag = definition["properties"]["type"]["const"]
        tags.append(tag)
        helps.append(definition.get("description", ""))
        condition = {"properties": {"type": {"const": tag}}, "required": ["type"]}
        cases.append({"if": condition, "then": {"$ref": option["$ref"]}})
    default_help = "How the processes of a job are launched and find each other."
    return {
        "title": "Distribution",
        "description": schema.get("description", default_help),
        "type": "object",
        "required": ["type"],
        "properties": {
            "type": {
                "enum": tags,
                "enumDescriptions": helps,
                "description": "How the processes are launched.",
            }
        },
        "allOf": cases,
    }


def _require(*names: str) -> Schema:
    """Return a schema that requires each of the fields `names` with a value other than null."""
    return {
        "required": list(names),
        "properties": {name: {"not": {"type": "null"}} for name in names},
    }


def _not_empty(name: str) -> Schema:
    """Return a schema that requires the field with a mapping or list that is not empty."""
    mapping = {"type": "object", "minProperties": 1}
    array = {"type": "array", "minItems": 1}
    return {"required": [name], "properties": {name: {"anyOf": [mapping, array]}}}


def _smp_version(version: int) -> Schema:
    """Return a schema that allows only the parameters of a version of `smp`."""
    names = sorted(smp_parameters(version))
    then: Schema = {"properties": {"parameters": {"propertyNames": {"enum": names}}}}
    if version == 2:
        then["properties"]["mpi_options"] = {"const": ""}
    condition = {"required": ["version"], "properties": {"version": {"const": version}}}
    return {"if": condition, "then": then}


_ONE_THING_TO_RUN: Schema = {
    "anyOf": [
        _require("entry_point"),
        _require("command"),
        {"required": ["environment"], "properties": {"environment": _require("image")}},
    ],
    "not": {
        "anyOf": [
            _require("entry_point", "command"),
            {"allOf": [_require("command"), _not_empty("hyperparameters")]},
            {"allOf": [{"not": _require("entry_point")}, _not_empty("arguments")]},
        ]
    },
}

_MACHINE: list[Schema] = [
    {"required": [name], "properties": {name: {"not": {"enum": [None, "", [], {}]}}}}
    for name in ("instance_type", "gpu", "instance_preferences")
]
"""A machine that is named, neither by null nor by an empty value."""

_PLACE = {"anyOf": [_require(name) for name in target_names()]}

_ABSOLUTE: Schema = {
    "path": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^/opt/ml/processing/"}]}
}

_RULES: dict[str, Schema] = {
    "TrainingJob": _ONE_THING_TO_RUN,
    "ProcessingJob": _ONE_THING_TO_RUN
    | {
        "allOf": [
            {
                "properties": {
                    "resources": {
                        "not": {
                            "anyOf": [
                                _not_empty("instance_groups"),
                                _not_empty("distribution_groups"),
                            ]
                        }
                    }
                }
            }
        ]
    },
    "Input": _PLACE,
    "ProcessingInput": _PLACE
    | {
        "allOf": [
            {
                "properties": {
                    **{
                        name: {"const": default} if default else {"enum": [None, []]}
                        for name, default in ONLY_TRAINING.items()
                    },
                    "data_type": {"not": {"const": "augmented_manifest"}},
                    **_ABSOLUTE,
                }
            }
        ]
    },
    "ProcessingOutput": {"allOf": [{"properties": _ABSOLUTE}]},
    "Resources": {
        "not": {"anyOf": [{"allOf": list(pair)} for pair in combinations(_MACHINE, 2)]},
        "if": _not_empty("instance_groups"),
        "then": {"not": {"anyOf": [{"required": ["instance_count"]}, *_MACHINE]}},
        "else": {"not": _not_empty("distribution_groups")},
    },
    "SMP": {"allOf": [_smp_version(1), _smp_version(2)]},
    "TensorFlow": {
        "if": _require("parameter_servers"),
        "then": {
            "required": ["strategy"],
            "properties": {"strategy": {"const": "parameter_server"}},
        },
    },
}
"""The models' own rules, expressed in JSON Schema."""
