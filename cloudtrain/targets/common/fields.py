"""A field of a job as a row: where it stands in a target's request, how its value is coded both
ways, what the SDK calls it, and what the target does with a field that it does not send.

A codec is a pair of functions that are inverses of each other. `encode` turns a value in the words
of a tool, such as a job file of Azure ML, into the value in the request; `decode` turns it back.
Both raise `Inexpressible` with the paths of the parts that the other side has no words for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.rules.engine import Fault

if TYPE_CHECKING:
    from cloudtrain.rules.engine import Subject, ValuePath


class Inexpressible(Exception):
    """The other side cannot express some parts of a value. `paths` holds their dotted paths; `""`
    is the value itself."""

    def __init__(self, *paths: str) -> None:
        super().__init__(*paths)
        self.paths = paths


class Codec(NamedTuple):
    """Two functions that are inverses of each other."""

    decode: Callable[[Any], Any]
    """Turns a value of the request into the tool's."""
    encode: Callable[[Any], Any]
    """Turns a value of the tool into the request's."""


def _unchanged(value: Any) -> Any:
    return value


SAME = Codec(_unchanged, _unchanged)
"""The tool and the request have the same value."""


def only(fits: Callable[[Any], bool], codec: Codec = SAME) -> Codec:
    """Refuse the values of the request that do not fit."""

    def decode(value: Any) -> Any:
        if not fits(value):
            raise Inexpressible("")
        return codec.decode(value)

    return Codec(decode, codec.encode)


TEXT = only(lambda value: type(value) is str)
COUNT = only(lambda value: type(value) is int)
FLAG = only(lambda value: type(value) is bool)
TEXTS = only(lambda value: isinstance(value, list) and all(type(one) is str for one in value))


def words(table: Mapping[Any, Any]) -> Codec:
    """Look up a value in a table from the request's words to the tool's."""
    inverse = {word: value for value, word in table.items()}

    def look_up(value: Any, there: Mapping[Any, Any]) -> Any:
        if isinstance(value, bool | dict | list) or value not in there:
            raise Inexpressible("")
        return there[value]

    return Codec(lambda value: look_up(value, table), lambda word: look_up(word, inverse))


def _gather(items: Iterator[tuple[str, Callable[[Any], Any], Any]]) -> list[Any]:
    """Convert values, and report the parts of all that cannot be converted together. An item is the
    value's name, the function and the value."""
    converted = []
    wrong: list[str] = []
    for name, convert, value in items:
        try:
            converted.append(convert(value))
        except Inexpressible as error:
            wrong += [f"{name}.{path}" if path else name for path in error.paths]
    if wrong:
        raise Inexpressible(*wrong)
    return converted


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Inexpressible("")
    return value


def each(codec: Codec) -> Codec:
    """Code every value of a mapping."""

    def convert_all(value: Any, convert: Callable[[Any], Any]) -> dict[str, Any]:
        items = _mapping(value)
        return dict(
            zip(items, _gather((name, convert, one) for name, one in items.items()), strict=True)
        )

    return Codec(
        lambda value: convert_all(value, codec.decode),
        lambda value: convert_all(value, codec.encode),
    )


class NoEffect(NamedTuple):
    """The target does not send the field, and says so in a notice."""

    why: str
    """A sentence without its end, such as ``SageMaker decides the size of `/dev/shm` ``."""
    hint: str | None = None
    """What to type instead."""


class Refused(NamedTuple):
    """The target refuses a job with this field."""

    code: str
    """The code of the error, such as `CT031`, or of the rule, such as `AZ705`."""


class Needless(NamedTuple):
    """The field rightly does nothing on the target, so no notice speaks of it."""

    why: str


Effect = NoEffect | Refused | Needless | None
"""None: the field changes the request, the uploads, what starts, or what the store keeps."""


class Field(NamedTuple):
    """A field of a job or of the target's settings, and what the target does with it."""

    job: str
    """The dotted path in the job, such as `resources.shm_size`; `inputs.*.mode` stands for each
    input. A path that begins with `settings.` is a setting of the target."""
    request: str = ""
    """The dotted path in the request; empty where code decides, or where nothing is sent."""
    word: str = ""
    """What the target's own SDK calls it; empty if the SDK has no word for it."""
    codec: Codec = SAME
    effect: Effect = None


def notices(subject: Subject, fields: tuple[Field, ...]) -> Iterator[Fault]:
    """Yield a fault for each field that the job sets and the target does not send."""
    for path, effect in unsent(subject.job, fields):
        yield Fault(f"{effect.why}, so `{path[-1]}` is not sent", effect.hint, path)


def unsent(job: Any, fields: tuple[Field, ...]) -> Iterator[tuple[ValuePath, NoEffect]]:
    """Yield the path of each value that the job sets and the target does not send, with the
    reason."""
    for field in fields:
        if isinstance(field.effect, NoEffect):
            for path in _written(job, field.job.split(".")):
                yield path, field.effect


def _written(model: Any, names: list[str]) -> Iterator[ValuePath]:
    """Yield the paths of the values that a job gives to a field, other than its default."""
    name, rest = names[0], names[1:]
    if name == "*":
        for key, item in (model or {}).items():
            for path in _written(item, rest):
                yield (key, *path)
        return
    value = getattr(model, name, None)
    if value is None:
        return
    if rest:
        for path in _written(value, rest):
            yield (name, *path)
        return
    default = type(model).model_fields[name].get_default(call_default_factory=True)
    if value != default:
        yield (name,)
