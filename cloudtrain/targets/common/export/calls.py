"""Calls of an SDK as data. They can be printed as code, or executed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudtrain.system.extras import require


@dataclass(frozen=True)
class Call:
    """One call, such as `sagemaker.inputs.TrainingInput(s3_data=...)`: its dotted name and its arguments, which may be
    calls themselves."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Ref:
    """A reference to a variable of the program, or with `index` to one item of the variable's list."""

    variable: str
    index: int | None = None


@dataclass(frozen=True)
class Program:
    """A program that sends a job through an SDK: it creates variables, then calls methods of the last variable.

    Attributes:
        variables: maps names to a call, a list or a plain value, in order; a value may refer to earlier variables.
        method: the method that sends the request; it is a method of the last variable.
        arguments: the arguments of `method`.
        extra: the extra of cloudtrain that installs the SDK.
        notes: comments that explain unusual parts of the written code.
        steps: methods of the last variable to call before `method`, with their arguments.
        in_code: more arguments of `method`, which are only written as code and never executed.
    """

    variables: dict[str, Any]
    method: str
    arguments: dict[str, Any]
    extra: str
    notes: tuple[str, ...] = ()
    steps: tuple[tuple[str, dict[str, Any]], ...] = ()
    in_code: Mapping[str, Any] = field(default_factory=dict)

    @property
    def result(self) -> str:
        """Return the name of the last variable, whose method sends the request."""
        return list(self.variables)[-1]


def build(program: Program, **given: Any) -> tuple[Any, dict[str, Any]]:
    """Execute the program except for its last call, which sends the request. Return the program's last variable and the
    arguments of the last call. Values in `given` replace the variables of the same names.

    Raises:
        MissingExtra: the SDK is not installed.
    """
    scope: dict[str, Any] = {}
    for name, value in program.variables.items():
        scope[name] = given[name] if given.get(name) is not None else _make(value, scope, program.extra)
    for method, arguments in program.steps:
        getattr(scope[program.result], method)(**_make(arguments, scope, program.extra))
    return scope[program.result], _make(program.arguments, scope, program.extra)


def build_arguments(program: Program) -> dict[str, Any]:
    """Return the arguments of the program's `method`, without executing the rest. These arguments must not refer
    to variables.

    Raises:
        MissingExtra: the SDK is not installed.
    """
    arguments: dict[str, Any] = _make(program.arguments, {}, program.extra)
    return arguments


def _make(value: Any, scope: dict[str, Any], extra: str) -> Any:
    if isinstance(value, Call):
        module, _, attribute = value.name.rpartition(".")
        made = {name: _make(argument, scope, extra) for name, argument in value.arguments.items()}
        return getattr(require(module, extra=extra), attribute)(**made)
    if isinstance(value, Ref):
        return scope[value.variable] if value.index is None else scope[value.variable][value.index]
    if isinstance(value, dict):
        return {key: _make(inner, scope, extra) for key, inner in value.items()}
    if isinstance(value, list):
        return [_make(inner, scope, extra) for inner in value]
    return value
