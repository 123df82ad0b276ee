"""A field of a job as a row: where it stands in a target's request, how its value is coded both
ways, what the SDK calls it, and what the target does with a field that it does not send.

A codec is a pair of functions that are inverses of each other. `encode` turns a value of a job, or
of a tool such as Azure ML's job files, into the value in the request; `decode` turns it back. Both
raise `Inexpressible` with the paths of the parts that the other side cannot express.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.documents import JsonObject
from cloudtrain.rules.engine import Fault, KeysOf, ValuePath, keys_at, keys_named

if TYPE_CHECKING:
    from cloudtrain.rules.engine import Subject


class Inexpressible(Exception):
    """The other side cannot express some parts of a value. `paths` holds their dotted paths; `""`
    is the value itself."""

    def __init__(self, *paths: str) -> None:
        super().__init__(*paths)
        self.paths = paths

    def below(self, name: str) -> list[str]:
        """Return the paths, as seen from the mapping that has the value under `name`."""
        return [f"{name}.{path}" if path else name for path in self.paths]


class Codec(NamedTuple):
    """Two functions that are inverses of each other."""

    decode: Callable[[Any], Any]
    """Turns a value of the request into the job's or the tool's."""
    encode: Callable[[Any], Any]
    """Turns a value of the job or the tool into the request's."""


def _unchanged(value: Any) -> Any:
    return value


SAME = Codec(_unchanged, _unchanged)
"""Both sides have the same value."""


def only(fits: Callable[[Any], bool], codec: Codec = SAME) -> Codec:
    """Return the codec with a check: in both directions, it refuses values of the request for which
    `fits` returns False."""

    def check(value: Any) -> Any:
        if not fits(value):
            raise Inexpressible("")
        return value

    return Codec(lambda value: codec.decode(check(value)), lambda value: check(codec.encode(value)))


TEXT = only(lambda value: type(value) is str)
COUNT = only(lambda value: type(value) is int)
FLAG = only(lambda value: type(value) is bool)
TEXTS = only(lambda value: isinstance(value, list) and all(type(one) is str for one in value))


def words(table: Mapping[Any, Any]) -> Codec:
    """Return the codec that looks up a value in a table from the request's words to the tool's."""
    inverse = {word: value for value, word in table.items()}

    def look_up(value: Any, there: Mapping[Any, Any]) -> Any:
        # True would find 1, and a list or dict has no hash
        finds_number = isinstance(value, bool) and bool not in map(type, there)
        if finds_number or isinstance(value, dict | list) or value not in there:
            raise Inexpressible("")
        return there[value]

    return Codec(lambda value: look_up(value, table), lambda word: look_up(word, inverse))


def each(codec: Codec) -> Codec:
    """Return the codec of a mapping whose values `codec` codes. It raises `Inexpressible` with the
    wrong parts of all values together."""

    def convert_all(value: Any, convert: Callable[[Any], Any]) -> JsonObject:
        if not isinstance(value, Mapping):
            raise Inexpressible("")
        converted: JsonObject = {}
        wrong: list[str] = []
        for name, inner in value.items():
            try:
                converted[name] = convert(inner)
            except Inexpressible as error:
                wrong += error.below(name)
        if wrong:
            raise Inexpressible(*wrong)
        return converted

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
    so: str = "`{name}` is not sent"
    """The end of the sentence, with the name of the field and its value."""
    when: Callable[[Subject], bool] | None = None
    """Whether the field has no effect in a job; None if it never has one."""


ADDED_PROPERTY = NoEffect(
    "no service's API has it, and Azure ML's own SDK leaves it out", "remove `added_property`"
)
"""Of a distribution's `added_property`, on every target."""


class Refused(NamedTuple):
    """An error, or a rule with a code of its own, reports a job with this field."""

    code: str
    """The code of the error, such as `CT031`, or of the rule, such as `AZ705`."""
    hint: str | None = None
    """What to type instead, if the row alone makes the error."""


class Needless(NamedTuple):
    """The field rightly does nothing on the target, so there is no notice."""

    why: str


Effect = NoEffect | Refused | Needless | None
"""None: the field changes the request, the uploads, what starts, or what the store keeps."""


class Field(NamedTuple):
    """A field of a job or of the target's settings, and what the target does with it."""

    job: str
    """The dotted path in the job, such as `resources.shm_size`; `inputs.*.mode` stands for each
    input. A path that begins with `settings.` is a setting of the target. Empty: only the request
    has this field."""
    request: str = ""
    """The dotted path in the request; empty where nothing is sent."""
    word: str = ""
    """What the target's own SDK calls it; empty if the SDK has no such field."""
    codec: Codec | None = SAME
    """Codes between the job's value and the request's. None: the compiler decides the value."""
    effect: Effect = None
    tool: Codec = SAME
    """Codes between the SDK's value and the request's."""


def keys_of_fields(fields: tuple[Field, ...]) -> dict[ValuePath, KeysOf]:
    """Return `Reading.paths`: where the overrides of a request write the same as each field of a
    job. Of several fields with the same place in the request, only the first one counts."""
    paths: dict[ValuePath, KeysOf] = {}
    places: set[str] = set()
    for field in fields:
        if not field.request or field.request in places:
            continue
        places.add(field.request)
        if field.job and not field.job.startswith("settings."):
            path, star, _ = field.job.partition(".*")
            keys = tuple(field.request.partition(".*")[0].split("."))
            # `inputs.*`: the name of the input is a part of the place in the request, too
            keys_of = keys_named(*keys) if star else keys_at(keys)
            paths.setdefault(tuple(path.split(".")), keys_of)
    return paths


def notices(subject: Subject, fields: tuple[Field, ...]) -> Iterator[Fault]:
    """Yield a fault for each field that the job sets and the target does not send."""
    for path, value, effect in unsent(subject, fields):
        end = effect.so.format(name=path[-1], value=value)
        yield Fault(f"{effect.why}, so {end}", effect.hint, path)


def unsent(
    subject: Subject, fields: tuple[Field, ...]
) -> Iterator[tuple[ValuePath, Any, NoEffect]]:
    """Yield path and value of each field that the job sets and the target does not send, with the
    reason."""
    for field in fields:
        effect = field.effect
        if not isinstance(effect, NoEffect):
            continue
        if effect.when is not None and not effect.when(subject):
            continue
        for path, value in values_set(subject.job, field.job):
            yield path, value, effect


def values_set(model: Any, dotted: str) -> Iterator[tuple[ValuePath, Any]]:
    """Yield path and value of what a job, or settings, give to a field, other than its default."""
    name, _, rest = dotted.partition(".")
    items = model if name == "*" else {name: getattr(model, name, None)}
    for key, item in items.items():
        if item is None:
            continue
        if rest:
            for path, value in values_set(item, rest):
                yield (key, *path), value
        elif name == "*" or item != default_of(type(model), name):
            yield (key,), item


def default_of(model: Any, name: str) -> Any:
    """Return the default of a field of a model."""
    return model.model_fields[name].get_default(call_default_factory=True)
