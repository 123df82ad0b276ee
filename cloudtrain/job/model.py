"""The base of all job models, which are frozen and strict, and the types of their fields."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    WithJsonSchema,
    create_model,
    model_validator,
)

from cloudtrain.errors import JobError, ValuePath, dotted
from cloudtrain.job.nodes import describe_value
from cloudtrain.job.problems import (
    ProblemsFound,
    Rules,
    mapping_or_empty,
    problems_of,
    wrong,
)
from cloudtrain.system.plugins import target_names

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
    from typing_extensions import Self, dataclass_transform

    @dataclass_transform(
        kw_only_default=True, frozen_default=True, field_specifiers=(Field, PrivateAttr)
    )
    class _Meta(ModelMetaclass):
        """Tells type checkers that models are frozen, which type checkers cannot derive from
        `model_config`."""

else:

    class _Meta(type(BaseModel)):
        """Converts pydantic's error to a JobError when the user creates a model:
        `ct.Resources(instance_cout=2)`.

        Only the outermost call uses this metaclass. Pydantic validates nested models itself, so all
        problems of a job are reported together, each with its full path.
        """

        def __call__(cls, /, *args, **kwargs):
            try:
                return super().__call__(*args, **kwargs)
            except ValidationError as error:
                raise JobError(problems_of(error, cls)) from None

        @property
        def __signature__(cls):
            """The fields with plain types, for `help` and for editors. Pydantic's has the
            validators in it."""
            from inspect import Parameter, Signature

            parameters = []
            for name, field in cls.model_fields.items():
                kind = _plain_type(Annotated[field.annotation, field.metadata])
                default = Parameter.empty
                if not field.is_required():
                    default = field.get_default(call_default_factory=True)
                keyword = Parameter.KEYWORD_ONLY
                parameters.append(Parameter(name, keyword, default=default, annotation=kind))
            return Signature(parameters)

        @__signature__.setter
        def __signature__(cls, _):
            """Pydantic sets its own when it builds the class."""


def _plain_type(kind: Any) -> Any:
    """Return a type without annotations. A number with a unit, and a value per target, may also be
    text."""
    origin = get_origin(kind)
    if origin is None or origin is Literal:
        return kind
    parts = get_args(kind)
    if origin is Annotated:
        plain = parts[0]
        notes = parts[1] if isinstance(parts[1], list) else parts[1:]
        is_read = any(isinstance(note, BeforeValidator) for note in notes)
        # Python 3.10 takes `list[str]` for a type
        is_class = isinstance(plain, type) and get_origin(plain) is None
        if is_read and is_class and issubclass(plain, int | TargetValues):
            return plain | str
        return _plain_type(plain)

    plain_parts = tuple(map(_plain_type, parts))
    if origin in (Union, UnionType):
        return Union[plain_parts]  # noqa: UP007 - the parts are values
    return origin[plain_parts]


def all_at_once(rules: Rules) -> object:
    """Return a model validator that applies `rules` to the fields as they were written, valid or
    not. It raises ProblemsFound with all problems of the fields and the rules together."""

    # model_validator takes a classmethod, which mypy allows only in a class
    @classmethod  # type: ignore[misc]
    def check(
        cls: type[BaseModel], data: object, handler: ModelWrapValidatorHandler[object]
    ) -> Any:
        problems = list(rules(data)) if isinstance(data, Mapping) else []
        try:
            value = handler(data)
        except ValidationError as error:
            if not problems:
                raise
            raise ProblemsFound(problems, (error, cls)) from None
        if problems:
            raise ProblemsFound(problems)
        return value

    return model_validator(mode="wrap")(check)


class Model(BaseModel, metaclass=_Meta):
    """Base class of frozen models. Unknown fields are errors, and numbers and strings are never
    converted into each other."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", coerce_numbers_to_str=False, defer_build=True
    )

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Only the fields that were set, and are not empty."""
        for name, value in super().__repr_args__():
            if name in self.model_fields_set and value not in ({}, ()):
                yield name, value

    def replace(self, **changes: object) -> Self:
        """Return a validated copy in which `changes` replace the values of the named fields.

        Raises:
            JobError: a changed value is not valid.
        """
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**given | changes)


ModelT = TypeVar("ModelT", bound=Model)


def revalidate(model: ModelT) -> ModelT:
    """Return the model as its class makes it from the same values. Pydantic's own
    `model_copy(update=...)` and `model_construct` put values into a model unchecked.

    Raises:
        JobError: a value is not valid, or a field does not exist.
    """
    return model.replace(**_set_fields(model))


def _set_fields(model: Model) -> dict[str, Any]:
    """Return the fields of a model that were set, and the word that tells it from others of a
    union, with the models in them as mappings too."""
    names = {*model.model_fields_set, *{"type"} & type(model).model_fields.keys()}
    return {name: _plain(getattr(model, name)) for name in names}


def _plain(value: Any) -> Any:
    """Return a value with the models in it as mappings."""
    if isinstance(value, Model):
        return _set_fields(value)
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_plain, value)]
    return value


# The origin of a job: the folder of its file. The settings of the project in that folder apply even
# if the job is used from another folder.


class FromFile(Model):
    """A model that remembers the folder of the file that it was read from. Equality ignores the
    folder."""

    _folder: Path | None = PrivateAttr(default=None)

    @property
    def folder(self) -> Path | None:
        """The folder of the job's file; None for a job that was written in Python."""
        return self._folder

    def from_folder(self, folder: Path | None) -> Self:
        """Return a copy of the job with this `folder`, as if the job was read from a file in the
        folder."""
        copy = self.model_copy()
        copy._folder = folder  # type: ignore[misc]  # only fields are frozen
        return copy

    def _repr_html_(self) -> str:
        """A table of the fields that were set, each with its path as in `--set`."""
        from html import escape

        cell = "text-align:left;border:0;padding:.15em 1.2em .15em 0"
        data = self.model_dump(mode="json", exclude_unset=True)
        rows = ""
        for path, text in _set_values(data, ()):
            field = escape(dotted(path))
            rows += f'<tr><th style="{cell};font-weight:normal;opacity:.65">{field}</th>'
            rows += f'<td style="{cell}">{escape(text)}</td></tr>'
        caption = f'<caption style="{cell};font-weight:bold">{type(self).__name__}</caption>'
        return f'<table style="border:0">{caption}{rows}</table>'

    def replace(self, **changes: object) -> Self:
        """Return a validated copy in which `changes` replace the values of the named fields. The
        copy keeps `folder`."""
        return super().replace(**changes).from_folder(self._folder)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = type(self).model_fields
        return all(getattr(self, name) == getattr(other, name) for name in names)


def _set_values(value: Any, path: ValuePath) -> Iterator[tuple[ValuePath, str]]:
    """Yield the path and the text of each value below `path`."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _set_values(inner, (*path, name))
    elif path and value not in ({}, []):
        yield path, value_text(value)


# Fields of a job with one value per target, such as `inputs.train.local` and `local_overrides`.

M = TypeVar("M", bound=BaseModel)

OVERRIDES = "_overrides"
"""Suffix of the job fields that are merged into one target's request."""


def per_target(
    annotation: object, *, suffix: str = "", **field: Any
) -> Callable[[type[M]], type[M]]:
    """Return a decorator that adds one field per installed target to a model. The name of a field
    is the target's name followed by `suffix`, and its type is `annotation`. `field` are arguments
    of pydantic's `Field`."""

    def widen(model: type[M]) -> type[M]:
        fields: dict[str, Any] = {}
        for name in target_names():
            fields[f"{name}{suffix}"] = (annotation, Field(**field))
        return create_model(
            model.__name__,
            __base__=model,
            __module__=model.__module__,
            __doc__=model.__doc__,
            **fields,
        )

    return widen


def is_widened(model: type[BaseModel]) -> bool:
    """Return whether the class was created by `per_target`. Such a class has no source code."""
    base = model.__bases__[0]
    return (model.__name__, model.__module__) == (base.__name__, base.__module__)


def overrides_of(job: BaseModel, target: str) -> Mapping[str, Any]:
    """Return what a job merges into one target's request; empty if it has nothing for it."""
    overrides: Mapping[str, Any] = getattr(job, target + OVERRIDES, {})
    return overrides


class TargetValues(Model):
    """A model with one text per target, in fields with the targets' names."""

    def of(self, target: str) -> str | None:
        """Return the text for one target, or None if there is none."""
        value: str | None = getattr(self, target, None)
        return value


# Durations and sizes with units, and counts: `2h`, `1h30m`, `90` seconds; `64g`, `512m`, plain
# bytes.

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_BYTES = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}

_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,9})?"
DURATION_PATTERN = rf"^ *(?:[0-9]{{1,12}}|{_NUMBER} *[smhdwSMHDW](?: *{_NUMBER} *[smhdwSMHDW])*) *$"
SIZE_PATTERN = rf"^ *{_NUMBER} *(?:[bB]|[kmgtKMGT](?:[iI]?[bB])?)? *$"

MAX_DURATION = 2**31 - 1
"""In seconds. Both services store durations in 32 bits."""
MAX_SIZE = 2**63 - 1
"""In bytes."""

MAX_COUNT = 1024
"""Upper bound on counts. A larger number is probably a typing mistake, and a plan lists every
process."""


class _Unit(NamedTuple):
    """A kind of number that may have a unit, and how messages name it."""

    kind: str
    unit: str
    pattern: str
    factors: Mapping[str, int]
    most: int
    limit: str
    """`most` in words."""
    hint: str

    def parse(self, value: object) -> int:
        """Return the whole number of units in a text or a number. Raises ProblemsFound."""
        shown = describe_value(value)
        number: Decimal | None = None
        if isinstance(value, str) and re.fullmatch(self.pattern, value):
            number = Decimal(0)
            for count, unit in re.findall(rf"({_NUMBER}) *([a-zA-Z]?)", value):
                number += Decimal(count) * self.factors[unit.lower()]
        elif isinstance(value, int) and not isinstance(value, bool):
            number = Decimal(value)

        if number is None:
            message = f"{shown} is not {self.kind}"
        elif number < 1:
            message = f"{self.kind} must be at least 1 {self.unit}, not {shown}"
        elif number > self.most:
            message = f"{shown} is more than {self.limit}"
        elif number != int(number):
            message = f"{shown} is not a whole number of {self.unit}s"
        else:
            return int(number)
        raise wrong(message, self.hint, code="CT015")


_DURATION = _Unit(
    "a duration",
    "second",
    DURATION_PATTERN,
    _SECONDS,
    MAX_DURATION,
    "68 years",
    "write for example `90s`, `30m`, `2h` or `1d`",
)
_SIZE = _Unit(
    "a size",
    "byte",
    SIZE_PATTERN,
    _BYTES,
    MAX_SIZE,
    "8 EiB",
    "write for example `512m`, `64g` or `1t`",
)


def parse_duration(value: object) -> int:
    """Return the number of seconds in a duration such as `2h`, `1h30m`, `1.5d`, `"90"` or 90.

    Raises:
        ValueError: the value is not a duration, not a whole number of seconds, less than one second
            or more than 68 years.
    """
    return _DURATION.parse(value)


def parse_size(value: object) -> int:
    """Return the number of bytes in a size such as `64g`, `512m`, `1.5t`, `"1024"` or 1024. As in
    docker, units are powers of 1024.

    Raises:
        ValueError: the value is not a size, not a whole number of bytes, less than one byte or more
            than 8 EiB.
    """
    return _SIZE.parse(value)


def parse_time(text: str) -> int | None:
    """Convert a time limit of Slurm to seconds: `DAYS-HOURS:MINUTES:SECONDS`,
    `HOURS:MINUTES:SECONDS`, `MINUTES:SECONDS` or `MINUTES`. Return None for any other text, such as
    `infinite`."""
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    given = [*parts, days] if dash else parts
    if len(parts) > 3 or not all(map(str.isdecimal, given)):
        return None

    units: tuple[int, ...] = (3600, 60, 1)
    if not dash and len(parts) < 3:
        units = (60, 1)  # minutes, or minutes and seconds
    seconds = 86400 * int(days or 0)
    for number, unit in zip(parts, units, strict=False):
        seconds += int(number) * unit
    return seconds


def format_duration(seconds: float) -> str:
    """Format seconds as `2h`, `1h30m` or `45s`, with the two largest units. Durations below ten
    seconds have one decimal: `2.4s`."""
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f}s"
    return "".join(_units(round(seconds))[:2])


def exact_duration(seconds: int) -> str:
    """Format seconds exactly with all units, in the syntax of job files: `1h1m30s`."""
    return "".join(_units(seconds))


def _units(seconds: int) -> list[str]:
    """Return the whole number of each unit in a duration, the largest first, as in `1h` and
    `30m`."""
    parts = []
    for unit in ("d", "h", "m", "s"):
        count, seconds = divmod(seconds, _SECONDS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return parts or ["0s"]


def format_size(size: float) -> str:
    """Format a size as `512 B`, `1.5 KiB` or `64 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            number = f"{size:.0f}" if size == int(size) else f"{size:.1f}"
            return f"{number} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _schema(most: int, pattern: str, description: str) -> WithJsonSchema:
    """Return the JSON schema of a number that can also be a text with a unit."""
    number = {"type": "integer", "minimum": 1, "maximum": most}
    text = {"type": "string", "pattern": pattern}
    return WithJsonSchema({"anyOf": [number, text], "description": description})


Duration = Annotated[
    int,
    BeforeValidator(parse_duration),
    Field(strict=True),
    _schema(
        MAX_DURATION,
        DURATION_PATTERN,
        "Seconds, or a number with a unit: `90s`, `30m`, `2h`, `1d`.",
    ),
]
"""A duration in whole seconds, at least 1."""

Size = Annotated[
    int,
    BeforeValidator(parse_size),
    Field(strict=True),
    _schema(
        MAX_SIZE,
        SIZE_PATTERN,
        "Bytes, or a number with a unit (powers of 1024): `512m`, `64g`, `1t`.",
    ),
]
"""A size in whole bytes, at least 1."""

Count = Annotated[int, Field(ge=1, le=MAX_COUNT, strict=True)]
"""A count of instances of a job, or of processes on an instance."""


# Types of arguments that job models convert to the type of the field: `max_runtime="2h"` is stored
# as 7200. The models declare an `__init__` with these types, because a type checker without
# pydantic's plugin would accept only the types of the fields.

DurationInput = int | str
"""Seconds, or text with units: `2h`, `1h30m`."""

SizeInput = int | str
"""Bytes, or text with a unit: `64g`."""

PathInput = str | os.PathLike[str]
"""A path as text or as a `pathlib.Path`, stored as text."""

Texts = list[str] | tuple[str, ...]
"""Several texts. `Sequence[str]` would also accept a single string and treat it as a sequence of
letters."""

Json = str | int | float | list[Any] | dict[str, Any] | None
"""The types that JSON can hold, so no tuples."""

Fields = Mapping[str, Any]
"""The fields of a model, given as a mapping instead of the model."""


# The text of a hyperparameter's value for a reader, in which `1`, `1.0` and `"1"` differ.

_LONGEST_FLOAT = 8
"""Characters up to which a float is shown exactly. A longer one gets four significant digits."""


def value_text(value: object) -> str:
    """Return a value as a YAML or JSON file could have it. Text is quoted only if it would be read
    as another value."""
    if isinstance(value, str):
        from cloudtrain.documents.yaml_text import read_scalar  # most commands show no value

        is_plain = value == value.strip() and value[:1] not in ("[", "{", '"', "'")
        if is_plain and isinstance(read_scalar(value), str):
            return value
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        text = repr(value)
        if len(text) > _LONGEST_FLOAT:
            text = f"{value:.4g}"
        # no float looks like a whole number
        return f"{text}.0" if text.lstrip("-").isdecimal() else text
    return json.dumps(value)


# Merging of the user's overrides into a request.


def merged(request: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return `request` with `overrides` applied: mappings are merged key by key, null removes a
    key, and any other value replaces the old value. Neither argument is changed."""
    result = dict(request)
    for key, value in overrides.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            result[key] = merged(mapping_or_empty(result.get(key)), value)
        else:
            result[key] = value
    return result
