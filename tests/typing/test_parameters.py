"""What a type checker reads of the models, `__init__` under `TYPE_CHECKING`, is what pydantic takes."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from functools import cache

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import cloudtrain
from cloudtrain.job.model import Model
from cloudtrain.system.plugins import all_targets

TAKES = {
    "Dollars": "float",
    "Duration": "DurationInput",
    "Size": "SizeInput",
    "Named": "NamedInput",
    "Count": "int",
    "Text": "str",
    "PathText": "PathInput",
    "FilledPath": "PathInput",
    "Name": "str",
    "JobName": "str",
    "Switch": "bool",
    "JsonValue": "Json",
    "tuple[str, ...]": "Texts",
    "tuple[JsonValue, ...]": "Sequence[JsonValue]",
    "Whole": "int",
    "AssetWord": "str",
    "Channel": "str",
    "FiniteFloat": "float",
    "tuple[Preferred, ...]": "Texts | list[str | InstancePreference | Fields] | tuple[str | InstancePreference | Fields, ...]",
    "MetricPatterns": "Mapping[str, str] | Literal['none']",
    "_Bounds": "Sequence[float]",
    "_WholeBounds": "Sequence[_Whole]",
    "SearchRange": "Range | Fields | Sequence[Json]",
    "Distribution": "Distribution | Fields",
    "ProcessingInput": "Input | Fields",
    "ProcessingOutput": "Output | Fields",
}
"""What a field holds, and what it takes where that is more; any other model is taken as its fields too."""


@cache
def models() -> list[type[Model]]:
    """Every model that a user makes, without the classes that it is made of."""
    importlib.import_module("cloudtrain.job.processing")
    importlib.import_module("cloudtrain.job.sweep")
    all_targets()
    found: dict[str, type[Model]] = {}
    waiting: list[type[Model]] = [Model]
    while waiting:
        model = waiting.pop()
        waiting += [
            below for below in model.__subclasses__() if below.__module__.startswith("cloudtrain.")
        ]
        found[f"{model.__module__}.{model.__name__}"] = model
    return [
        model
        for model in found.values()
        if model is not Model
        and not model.__name__.startswith("_")
        # a table of a person's settings, which nobody makes in Python
        and not model.__module__.startswith("cloudtrain.lifecycle.")
    ]


@cache
def body_of(model: type[BaseModel]) -> ast.ClassDef:
    """The class as it is written."""
    module = ast.parse(inspect.getsource(importlib.import_module(model.__module__)))
    (found,) = [
        node
        for node in module.body
        if isinstance(node, ast.ClassDef) and node.name == model.__name__
    ]
    return found


@cache
def written_fields(model: type[BaseModel]) -> dict[str, str]:
    """The annotation of every field as it is written, those of the bases first."""
    found: dict[str, str] = {}
    for cls in reversed([cls for cls in model.__mro__ if cls.__module__.startswith("cloudtrain.")]):
        for node in body_of(cls).body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found[node.target.id] = ast.unparse(node.annotation)
    return {name: text for name, text in found.items() if name in model.model_fields}


def init_of(model: type[BaseModel]) -> ast.arguments | None:
    """The parameters that a type checker reads; None where the class leaves them to its fields."""
    found = [
        node.args
        for block in body_of(model).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    ]
    return found[0] if found else None


def is_per_target(model: type[BaseModel]) -> bool:
    """Whether the model has a field for each target, which no class writes down."""
    return bool(model.model_fields.keys() - written_fields(model).keys())


def taken(annotation: str) -> str:
    """What a field of this annotation takes."""
    text = re.sub(r"Annotated\[(\w+), Field\([^\]]*\)\]", r"\1", annotation)
    text = re.sub(r"dict\[", "Mapping[", text)
    for item in ("InstanceGroup", "Alternative"):
        text = text.replace(f"tuple[{item}, ...]", f"Sequence[{item}]")
    names = {model.__name__: f"{model.__name__} | Fields" for model in models()} | TAKES
    pattern = "|".join(rf"(?<!['\w]){re.escape(name)}(?!['\w])" for name in names)
    return re.sub(pattern, lambda found: names[found[0]], text)


WITH_PARAMETERS = [model for model in models() if init_of(model) is not None]
WITHOUT = [model for model in models() if init_of(model) is None]


def name_of(model: type[Model]) -> str:
    return model.__name__


@pytest.mark.parametrize("model", WITH_PARAMETERS, ids=name_of)
def test_every_field_is_a_parameter(model: type[Model]) -> None:
    """And the other way round; `**` stands for the fields of the targets, where a model has them."""
    arguments = init_of(model)
    assert arguments is not None
    assert not arguments.args[1:]
    assert not arguments.vararg
    fields = written_fields(model)
    parameters = {argument.arg: argument.annotation for argument in arguments.kwonlyargs}
    assert parameters.keys() == fields.keys()
    assert {name: ast.unparse(kind) for name, kind in parameters.items() if kind} == {
        name: taken(text) for name, text in fields.items()
    }
    assert (arguments.kwarg is not None) == is_per_target(model)


@pytest.mark.parametrize("model", WITH_PARAMETERS, ids=name_of)
def test_every_default_is_the_field_s(model: type[Model]) -> None:
    """A parameter without one is a field that must be given; `...` stands for a new object."""
    arguments = init_of(model)
    assert arguments is not None
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        field = model.model_fields[argument.arg]
        if default is None:
            assert field.is_required(), argument.arg
        elif isinstance(default, ast.Constant) and default.value is ...:
            assert field.default_factory is not None, argument.arg
        else:
            assert field.default is not PydanticUndefined, argument.arg
            assert field.default == ast.literal_eval(default), argument.arg


@pytest.mark.parametrize("model", WITHOUT, ids=name_of)
def test_models_without_parameters_take_what_they_hold(model: type[Model]) -> None:
    """A type checker makes their `__init__` of the fields, which is right where no field takes more than it holds."""
    fields = written_fields(model)
    numbers = r"\b(?:Count|Whole)\b", r"\bFiniteFloat\b"
    assert {name: taken(text) for name, text in fields.items()} == {
        name: re.sub(numbers[0], "int", re.sub(numbers[1], "float", text))
        for name, text in fields.items()
    }
    assert not is_per_target(model)
    assert all(
        init_of(base) is None for base in model.__mro__ if base.__module__.startswith("cloudtrain.")
    )


def test_type_checkers_see_every_public_name() -> None:
    """The imports for them bring each name of the table, and the settings of every target that comes with the package,
    from where the program has them."""
    module = ast.parse(inspect.getsource(cloudtrain))
    (block,) = [
        node
        for node in module.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    seen = [
        (alias.asname, f"{node.module}.{alias.name}")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    models = [target.settings for target in all_targets()]
    built_in = {model.__name__ for model in models if model.__module__.startswith("cloudtrain.")}
    assert {name for name, _ in seen} == built_in.union(cloudtrain.__all__, ["__version__"])
    for name, origin in seen:
        home, _, own = origin.rpartition(".")
        assert (name, getattr(importlib.import_module(home), own)) == (
            own,
            getattr(cloudtrain, own),
        )
