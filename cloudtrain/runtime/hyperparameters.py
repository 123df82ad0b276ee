"""Read a script's hyperparameters. Their names, types and defaults come from one block at the top
of the script.

Every target passes hyperparameters as `--key value` (`-k value` for one letter). SageMaker writes
booleans as `True` and `False`, a list as a Python literal, a dict as `a=1,b=2` and None as an empty
string. It also writes all values as JSON into `SM_HPS`. The command line overrides `SM_HPS`, which
overrides the defaults.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from .environment import detect_environment, notice
from .errors import SetupError
from .torchrun_words import PLATFORM_ARGUMENTS
from .uncaught import tell_setup_errors

T = TypeVar("T")

Least = Mapping[str, float]
"""Maps a hyperparameter to its smallest allowed value. In a list, the bound applies to each
element. None always passes."""

NO_BOUNDS: Least = {}

Kinds = tuple[Any, ...]
"""Types, or the options of a Literal."""

_REQUIRED = object()


@overload
def arguments(
    defaults: Mapping[str, Any], argv: Sequence[str] | None = None, *, at_least: Least = ...
) -> SimpleNamespace: ...
@overload
def arguments(
    defaults: type[T], argv: Sequence[str] | None = None, *, at_least: Least = NO_BOUNDS
) -> T: ...
@overload
def arguments(
    defaults: T, argv: Sequence[str] | None = None, *, at_least: Least = NO_BOUNDS
) -> T: ...
def arguments(
    defaults: Any, argv: Sequence[str] | None = None, *, at_least: Least = NO_BOUNDS
) -> Any:
    """Return an object with the hyperparameters as attributes: `defaults`, overridden by `SM_HPS`
    and the command line.

    `defaults` is a dataclass (the class or an instance; its annotations are the types) or a mapping
    (its values are the types). An argument that `defaults` does not have, a wrong value, or one
    below its bound in `at_least` ends the process with exit code 2 and names every mistake. Only
    what platforms add (PLATFORM_ARGUMENTS) is ignored, with a notice. `--help` or `-h` at the end
    lists the hyperparameters.

    After this call, an uncaught SetupError ends the script with its message instead of a traceback.
    """
    tell_setup_errors()
    if argv is None:
        argv = sys.argv[1:]
    # `-h 3` is the hyperparameter `h`, and so is `-h` if the script declares `h`
    last = "".join(argv[-1:])
    asks = last in ("-h", "--help")
    if asks and last.lstrip("-") not in _declarations(defaults):
        _print_help(defaults)
        raise SystemExit(0)
    try:
        values, ignored = read_arguments(defaults, argv, os.environ.get("SM_HPS", ""), at_least)
    except SetupError as error:
        if detect_environment().is_main:
            error.tell()
        raise SystemExit(2) from None
    for key in ignored:
        notice(f"ignored `{key}`, which the platform adds and the script does not use")
    return values


def read_arguments(
    defaults: Any, argv: Sequence[str], sm_hps: str = "", at_least: Least = NO_BOUNDS
) -> tuple[Any, list[str]]:
    """Return the hyperparameters, and the arguments of platforms that the script does not
    declare."""
    declared = _declarations(defaults)
    names = {_fold(name): name for name in declared}
    given: dict[str, Any] = {}
    ignored: list[str] = []
    problems: list[str] = []
    for key, value in _from_sagemaker(sm_hps).items():
        if _fold(key) in names:
            given[names[_fold(key)]] = value
    for key, texts in _split(argv):
        plain = _fold(key.lstrip("-"))
        name = names.get(plain)
        if name is not None:
            try:
                given[name] = _text_of(texts, declared[name][0])
            except ValueError as error:
                problems.append(f"`{key}` {error}")
        elif plain in PLATFORM_ARGUMENTS:
            ignored.append(key)
        else:
            problems.append(f"`{key}` is not an option of the script{_nearest(plain, declared)}")

    values = {name: default for name, (_, default) in declared.items()}
    for name, value in given.items():
        try:
            values[name] = convert(value, declared[name][0])
        except ValueError as error:
            problems.append(f"`--{name}`: {error}")

    problems += [f"`--{name}` is required" for name in values if values[name] is _REQUIRED]
    for name, least in at_least.items():
        value = values[name]
        numbers = value if isinstance(value, (list, tuple)) else [value]
        for number in numbers:
            if isinstance(number, (int, float)) and not number >= least:
                problems.append(f"`--{name}`: `{number}` is not {least} or more")
    if problems:
        raise SetupError(
            "; ".join(problems), hint="`--help` lists the arguments, their types and defaults"
        )
    make = SimpleNamespace if isinstance(defaults, Mapping) else _class_of(defaults)
    return make(**values), ignored


def _declarations(defaults: Any) -> dict[str, tuple[Any, Any]]:
    if isinstance(defaults, Mapping):
        return {name: (kind_of(value), value) for name, value in defaults.items()}
    if not is_dataclass(defaults):
        raise TypeError("`arguments` takes a dataclass or a mapping of defaults")
    hints = get_type_hints(_class_of(defaults))
    declared = {}
    for field in fields(defaults):
        default: Any = _REQUIRED if field.default is MISSING else field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        if not isinstance(defaults, type):
            default = getattr(defaults, field.name)
        declared[field.name] = (hints[field.name], default)
    return declared


def _class_of(defaults: Any) -> Any:
    return defaults if isinstance(defaults, type) else type(defaults)


def _split(argv: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return each key with the tokens that follow it. In `--key=value` the value is the only token.
    Tokens that follow no key are returned as keys without values."""
    pairs: list[tuple[str, list[str]]] = []
    open_key = False
    for token in argv:
        if _is_key(token):
            key, equals, text = token.partition("=")
            open_key = not equals
            pairs.append((key, [text] if equals else []))
        elif open_key:
            pairs[-1][1].append(token)
        else:
            pairs.append((token, []))
    return pairs


def _is_key(token: str) -> bool:
    """Return whether a token is a key. `--key` and `-k` are keys, `-1` and `-.5` are not."""
    if token.startswith("--"):
        return len(token) > 2
    if token[:1] != "-" or not token[1:2].isalpha():
        return False
    return token[2:3] in ("", "=")


def _text_of(texts: list[str], kind: Any) -> str:
    """Join the tokens of one value. For a list, `--key a b c` means the same as `--key a,b,c`."""
    if not texts and kind is bool:
        return "True"
    if not texts:
        try:
            convert("", kind)  # a shell may have dropped an empty value
        except ValueError:
            raise ValueError("needs a value") from None
        return ""
    whole = " ".join(texts)  # older SageMaker toolkits take `[1, 2]` apart at the space
    if len(texts) == 1:
        return whole
    if not is_one_of(kind, CONTAINERS):
        raise ValueError(f"needs one value, not {len(texts)}: `{whole}`")
    if is_one_of(kind, SEQUENCES) and whole[:1] not in ("[", "(", "{"):
        return ",".join(text.strip(",") for text in texts)
    return whole


def _from_sagemaker(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text.strip() or "{}")
    except ValueError as error:
        raise SetupError(
            f"`SM_HPS` is not JSON: {error}", hint="unset `SM_HPS` outside SageMaker"
        ) from None
    return values if isinstance(values, dict) else {}


def _fold(name: str) -> str:
    return name.replace("-", "_")


def _nearest(name: str, declared: Mapping[str, Any]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, declared, n=1, cutoff=0.75)
    return f" (did you mean `--{near[0]}`?)" if near else ""


def _print_help(defaults: Any) -> None:
    if not detect_environment().is_main:
        return
    for name, (kind, default) in _declarations(defaults).items():
        kind_name = str(kind).replace("typing.", "")
        if isinstance(kind, type):
            kind_name = kind.__name__
        rest = "required" if default is _REQUIRED else f"default {default!r}"
        sys.stdout.write(f"  --{name:<24} {kind_name:<12} {rest}\n")


# Convert texts from the command line to the types that the script declares.

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})
_NONE = frozenset({"", "none", "null"})
SEQUENCES = (list, tuple)
CONTAINERS = (*SEQUENCES, dict)
"""Types whose text may contain spaces, at which a shell may have split it."""

_TEXTS = (str, Path, Literal)
# written `int | None` from Python 3.10 on
_UNIONS: tuple[object, ...] = (Union, getattr(types, "UnionType", Union))


def convert(value: Any, kind: Any) -> Any:
    """Convert `value`, a text or JSON data, to the type `kind`, such as `int`, `list[int]`, `dict`,
    `Literal[...]` or `X | None`.

    Containers may be written as Python literals (`[1, 2]`, as SageMaker passes a list), as JSON, or
    as `1,2` and `a=1,b=2`. In a list of strings, the elements of `3.10,3.11` stay strings.

    Raises:
        ValueError: the value does not fit the type; the message names the expected form.
    """
    converter = _CONVERTERS.get(get_origin(kind) or kind)
    if converter is None:
        raise ValueError(f"cannot be given on the command line: its type is `{kind}`")
    return converter(value, get_args(kind))


def is_one_of(kind: Any, kinds: Collection[Any]) -> bool:
    """Return whether the type `kind` is in `kinds`. A union counts if any of its members is in
    `kinds`. The types of elements are ignored, so `list[int]` counts as `list`."""
    if get_origin(kind) in _UNIONS:
        return any(is_one_of(option, kinds) for option in get_args(kind))
    return (get_origin(kind) or kind) in kinds


def kind_of(value: Any) -> Any:
    """Return the type of a default value. `[1, 2]` gives `list[int]`, because all elements have the
    same type; None gives `Any`."""
    if value is None:
        return Any
    kinds: set[type] = set()
    if isinstance(value, SEQUENCES):
        kinds.update(map(type, value))
    if len(kinds) != 1 or kinds.isdisjoint(_SCALARS):
        return type(value)
    (kind,) = kinds
    return list[kind] if isinstance(value, list) else tuple[kind, ...]  # type: ignore[valid-type]


def _convert_union(value: Any, options: Kinds) -> Any:
    if type(None) in options and str(value).lower() in _NONE:
        return None
    problem = None
    for option in options:
        if option is not type(None):
            try:
                return convert(value, option)
            except ValueError as error:
                problem = problem or error
    raise problem or ValueError("must be empty")


def _bool(value: Any, _: Kinds) -> bool:
    text = str(value).strip().lower()
    if text not in _TRUE | _FALSE:
        raise ValueError(f"`{value}` is neither `True` nor `False`")
    return text in _TRUE


def _int(value: Any, _: Kinds) -> int:
    if not isinstance(value, (bool, float)):
        with suppress(TypeError, ValueError):
            return int(value)
    with suppress(ValueError, OverflowError):
        number = _float(value, ())  # 1e4
        if number == int(number):
            return int(number)
    raise ValueError(f"`{value}` is not a whole number")


def _float(value: Any, _: Kinds) -> float:
    if not isinstance(value, bool):
        with suppress(TypeError, ValueError):
            return float(value)
    raise ValueError(f"`{value}` is not a number")


def _choice(value: Any, options: Kinds) -> Any:
    for option in options:
        if value == option or str(value) == str(option):
            return option
    names = ", ".join(f"`{option}`" for option in options)
    raise ValueError(f"`{value}` is not one of {names}")


def _list(value: Any, elements: Kinds) -> list[Any]:
    kind = elements[0] if elements else Any
    return [convert(item, kind) for item in _items(value, elements)]


def _items(value: Any, elements: Kinds) -> Sequence[Any]:
    if not isinstance(value, str):
        return value if isinstance(value, SEQUENCES) else [value]
    text = value.strip()
    literal = None
    are_texts = any(is_one_of(element, _TEXTS) for element in elements)
    if not are_texts or text[:1] in ("[", "("):
        literal = _literal(text)
    if literal is not None:
        return literal if isinstance(literal, SEQUENCES) else [literal]
    if not text:
        return []
    return [item.strip() for item in text.split(",")]


def _tuple(value: Any, elements: Kinds) -> Kinds:
    if not elements or elements[-1] is Ellipsis:
        return tuple(_list(value, elements))
    items = _items(value, elements)
    if len(items) != len(elements):
        raise ValueError(f"`{value}` has {len(items)} values instead of {len(elements)}")
    return tuple(map(convert, items, elements))


def _dict(value: Any, elements: Kinds) -> dict[Any, Any]:
    mapping = _literal(value) if isinstance(value, str) else value
    if not isinstance(mapping, dict):
        mapping = {}
        for pair in filter(str.strip, str(value).split(",")):
            key, equals, text = pair.partition("=")
            if not equals:
                raise ValueError(f"`{value}` is not written as `a=1,b=2`")
            mapping[key.strip()] = text
    key_kind, value_kind = elements or (Any, Any)
    return {convert(key, key_kind): convert(item, value_kind) for key, item in mapping.items()}


def _literal(text: str) -> Any:
    for read in (ast.literal_eval, json.loads):
        try:
            return read(text.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return None


def _guess(value: Any, _: Kinds) -> Any:
    """Guess the value of a text without a declared type: `3` becomes a number, for example."""
    if not isinstance(value, str):
        return value
    if value.lower() in _NONE:
        return None
    literal = _literal(value)
    return value if literal is None else literal


def _str(value: Any, _: Kinds) -> str:
    return "" if value is None else str(value)


_SCALARS = (bool, int, float, str, Path)
_CONVERTERS: dict[Any, Callable[[Any, Kinds], Any]] = {
    Any: _guess,
    bool: _bool,
    int: _int,
    float: _float,
    str: _str,
    Path: lambda value, _: Path(_str(value, ())),
    Literal: _choice,
    list: _list,
    tuple: _tuple,
    dict: _dict,
    **dict.fromkeys(_UNIONS, _convert_union),
}
