"""Read a script's hyperparameters. Their names, types and defaults come from one block at the top of the script.

Every target passes hyperparameters as `--key value` (`-k value` for one letter). SageMaker writes booleans as `True`
and `False`, a list as a Python literal, a dict as `a=1,b=2` and None as an empty string. It also writes all values as
JSON into `SM_HPS`. The command line overrides `SM_HPS`, which overrides the defaults.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from types import SimpleNamespace
from typing import Any, TypeVar, get_type_hints, overload

from .environment import detect_environment
from .errors import SetupError
from .notices import notice
from .uncaught import tell_setup_errors
from .values import CONTAINERS, SEQUENCES, convert, is_one_of, kind_of

T = TypeVar("T")

Least = Mapping[str, float]
"""Maps a hyperparameter to its smallest allowed value. In a list, the bound applies to each element. None always
passes."""

NO_BOUNDS: Least = {}

_REQUIRED = object()


@overload
def arguments(
    defaults: Mapping[str, Any], argv: Sequence[str] | None = None, *, at_least: Least = ...
) -> SimpleNamespace: ...
@overload
def arguments(defaults: type[T], argv: Sequence[str] | None = None, *, at_least: Least = NO_BOUNDS) -> T: ...
@overload
def arguments(defaults: T, argv: Sequence[str] | None = None, *, at_least: Least = NO_BOUNDS) -> T: ...
def arguments(defaults: Any, argv: Sequence[str] | None = None, *, at_least: Least = NO_BOUNDS) -> Any:
    """Return an object with the hyperparameters as attributes: `defaults`, overridden by `SM_HPS` and the command line.

    `defaults` is a dataclass (the class or an instance; its annotations are the types) or a mapping (its values are the
    types). Arguments that `defaults` does not have are ignored with a notice, because platforms add their own, such as
    `--mp_parameters`. A wrong value, or one below its bound in `at_least`, ends the process with exit code 2 and names
    every mistake; `--help` or `-h` at the end lists the hyperparameters.

    After this call, an uncaught SetupError ends the script with its message instead of a traceback.
    """
    tell_setup_errors()
    argv = sys.argv[1:] if argv is None else argv
    if _asks_for_help(defaults, argv):
        _print_help(defaults)
        raise SystemExit(0)
    try:
        values, unknown = read_arguments(defaults, argv, os.environ.get("SM_HPS", ""), at_least)
    except SetupError as error:
        if detect_environment().is_main:
            error.tell()
        raise SystemExit(2) from None
    for name, hint in unknown.items():
        notice(f"ignored `{name}`, which the script does not know" + (f"; {hint}" if hint else ""))
    return values


def read_arguments(
    defaults: Any, argv: Sequence[str], sm_hps: str = "", at_least: Least = NO_BOUNDS
) -> tuple[Any, dict[str, str | None]]:
    """Return the hyperparameters, and a map from each unknown argument to a hint, or to None if no declared name is
    similar.

    Raises:
        SetupError: some values are not valid; the message names all of them.
    """
    declared = _declarations(defaults)
    names = {_fold(name): name for name in declared}
    given: dict[str, Any] = {}
    unknown: dict[str, str | None] = {}
    problems: list[str] = []
    for key, value in _from_sagemaker(sm_hps).items():
        if _fold(key) in names:
            given[names[_fold(key)]] = value
    for key, texts in _split(argv):
        name = names.get(_fold(key.lstrip("-")))
        if name is None:
            unknown[key] = _nearest(key, declared) if key.startswith("-") else None
            continue
        try:
            given[name] = _text_of(texts, declared[name][0])
        except ValueError as error:
            problems.append(f"`{key}` {error}")
    values = {name: default for name, (_, default) in declared.items()}
    for name, value in given.items():
        try:
            values[name] = convert(value, declared[name][0])
        except ValueError as error:
            problems.append(f"`--{name}`: {error}")
    problems += [f"`--{name}` is required" for name, value in values.items() if value is _REQUIRED]
    problems += [
        f"`--{name}`: `{number}` is not {least} or more"
        for name, least in at_least.items()
        for number in (values[name] if isinstance(values[name], (list, tuple)) else [values[name]])
        if isinstance(number, (int, float)) and not number >= least
    ]
    if problems:
        raise SetupError("; ".join(problems), hint="`--help` lists the arguments, their types and defaults")
    return _fill(defaults, values), unknown


def _declarations(defaults: Any) -> dict[str, tuple[Any, Any]]:
    """Return a map from each hyperparameter's name to its type and default."""
    if isinstance(defaults, Mapping):
        return {name: (kind_of(value), value) for name, value in defaults.items()}
    if not is_dataclass(defaults):
        raise TypeError("`arguments` takes a dataclass or a mapping of defaults")
    hints = get_type_hints(defaults if isinstance(defaults, type) else type(defaults))
    declared = {}
    for field in fields(defaults):
        default: Any = _REQUIRED if field.default is MISSING else field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        if not isinstance(defaults, type):
            default = getattr(defaults, field.name)
        declared[field.name] = (hints[field.name], default)
    return declared


def _fill(defaults: Any, values: dict[str, Any]) -> Any:
    if isinstance(defaults, Mapping):
        return SimpleNamespace(**values)
    return (defaults if isinstance(defaults, type) else type(defaults))(**values)


def _split(argv: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return each key with the tokens that follow it. In `--key=value` the value is the only token. Tokens that follow
    no key are returned as keys without values.
    """
    found: list[tuple[str, list[str]]] = []
    open_key = False
    for token in argv:
        if _is_key(token):
            key, equals, text = token.partition("=")
            found.append((key, [text] if equals else []))
            open_key = not equals
        elif open_key:
            found[-1][1].append(token)
        else:
            found.append((token, []))
    return found


def _is_key(token: str) -> bool:
    """Return whether a token is a key. `--key` and `-k` are keys, `-1` and `-.5` are not."""
    if token.startswith("--"):
        return len(token) > 2
    return len(token) >= 2 and token[0] == "-" and token[1].isalpha() and (len(token) == 2 or token[2] == "=")


def _text_of(texts: list[str], kind: Any) -> str:
    """Join the tokens of one value. For a list, `--key a b c` means the same as `--key a,b,c`."""
    if not texts:
        return "True" if kind is bool else _empty(kind)
    if len(texts) > 1 and not is_one_of(kind, CONTAINERS):
        raise ValueError(f"needs one value, not {len(texts)}: `{' '.join(texts)}`")
    if len(texts) > 1 and is_one_of(kind, SEQUENCES) and texts[0][:1] not in ("[", "(", "{"):
        return ",".join(text.strip(",") for text in texts)
    return " ".join(texts)  # older SageMaker toolkits take `[1, 2]` apart at the space


def _empty(kind: Any) -> str:
    """Return the empty text as the value of a key without a value, because a shell may have dropped an empty value.

    Raises:
        ValueError: the type `kind` has no empty value.
    """
    try:
        convert("", kind)
    except ValueError:
        raise ValueError("needs a value") from None
    return ""


def _from_sagemaker(text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        values = json.loads(text)
    except ValueError as error:
        raise SetupError(f"`SM_HPS` is not JSON: {error}", hint="unset `SM_HPS` outside SageMaker") from None
    return values if isinstance(values, dict) else {}


def _fold(name: str) -> str:
    return name.replace("-", "_")


def _nearest(key: str, declared: Mapping[str, Any]) -> str | None:
    from difflib import get_close_matches

    near = get_close_matches(_fold(key.lstrip("-")), list(declared), n=1, cutoff=0.75)
    return f"did you mean `--{near[0]}`?" if near else None


def _asks_for_help(defaults: Any, argv: Sequence[str]) -> bool:
    """Return whether the last argument is `-h` or `--help`. `-h 3` is the hyperparameter `h`, and so is `-h` if the
    script declares `h`.
    """
    last = argv[-1] if argv else ""
    return last in ("-h", "--help") and last.lstrip("-") not in _declarations(defaults)


def _print_help(defaults: Any) -> None:
    if not detect_environment().is_main:
        return
    for name, (kind, default) in _declarations(defaults).items():
        shown = getattr(kind, "__name__", None) if isinstance(kind, type) else None
        required = default is _REQUIRED
        sys.stdout.write(f"  --{name:<24} {shown or str(kind).replace('typing.', ''):<12} ")
        sys.stdout.write("required\n" if required else f"default {default!r}\n")
