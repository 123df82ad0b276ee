"""Portable rules about secrets in the values of a job: variables, hyperparameters, tags, command and overrides."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.bundle.secrets.suspects import suspects
from cloudtrain.core.per_target import OVERRIDES
from cloudtrain.core.plan import Level
from cloudtrain.core.targets import target_names
from cloudtrain.rules.rule import Fault, Subject, rule
from cloudtrain.runtime.secret_values import VARIABLE

if TYPE_CHECKING:
    from cloudtrain.core.job import TrainingJob

Path = tuple[str | int, ...]

_AS_FILE = "job.env"
"""The values are searched like a settings file: `NAME="value"`, line by line."""

_SECRET_NAME = re.compile(
    r"(?:^|[a-z0-9_.-])(?P<word>passw(?:or)?d|passphrase|pwd|secret|secret[_-]?(?:access[_-]?)?key|token|api[_-]?key|"
    r"access[_-]?key|private[_-]?key|credentials?)$",
    re.IGNORECASE,
)
"""Names of values that are secrets. The last word decides, so `MAX_TOKENS` and `HF_TOKEN_FILE` are not matched."""

_SPECIAL_TOKEN = (
    r"(?i)(?:^|[_.-])(?:pad|eos|bos|unk|cls|sep|mask|image|special|stop|start|end|sos|blank|null|extra|next|prompt|system)"
    r"[_.-]?token$"
)
"""Tokens of a tokenizer."""

_NO_SECRET = (
    r"(?i)(?:arn:|[a-z][a-z0-9+]*://|[./~])|(?:[-+0-9.e]*|none|null|true|false|auto|yes|no)$|"
    r".*(?:\$\{|\{\{|x{3,}|\*{3,}|<[^>]*>|\[[^\]]*\]|example|placeholder|changeme|your[-_])"
)
"""Values that are not secrets: the location of a secret, a number, a switch, or a placeholder of an example."""

_OPTION = (
    r"(?i)--?[\w-]*(?P<name>passw(?:or)?d|passphrase|secret|token|key)[ =]+[\"']?(?P<value>[^\s\"'$<{-][^\s\"']{5,})"
)
"""`--db-password VALUE` in a command."""


class SecretValue(NamedTuple):
    """A secret in a value of the job. `value` is stored only to hide the secret; no message may contain it."""

    path: Path
    rule: str
    certain: bool
    value: str


@rule("CT305", Level.ERROR)
def secret_in_value(subject: Subject) -> Iterator[Fault]:
    """A value of the job holds a secret.

    Variables, hyperparameters, tags, the command, the description and overrides are part of the request. The services
    store them and show them to everyone who may read the job. Instead, write the location of the secret into
    `environment.secrets`: AWS Secrets Manager, Azure Key Vault, a file, or a variable of your shell. In text,
    HTML and JSON, the plan shows `***` in place of the value.
    """
    for found in secret_values(subject.job):
        if found.certain:
            yield Fault(f"{_name_of(found)} holds a secret ({found.rule}), {_SHOWN}", _hint(subject, found), found.path)


@rule("CT205", Level.WARNING)
def possible_secret(subject: Subject) -> Iterator[Fault]:
    """A value of the job may be a secret.

    The value has a name typical of secrets, such as `HF_TOKEN`, or looks random and follows a word such as `key`.
    Values of a job are part of its request. The services store them and show them to everyone who may read the job.
    Instead, write the location of the secret into `environment.secrets`.
    """
    for found in secret_values(subject.job):
        if not found.certain:
            yield Fault(
                f"{_name_of(found)} looks like a secret ({found.rule}), {_SHOWN}", _hint(subject, found), found.path
            )


_SHOWN = "and the request shows it to everyone who may read the job"


def _name_of(found: SecretValue) -> str:
    return f"`{found.path[-1]}`"


def _hint(subject: Subject, found: SecretValue) -> str:
    """Return the hint to let the job look up the secret through `environment.secrets`."""
    if not subject.where.secret_places:
        return "remove it, and let the script read it itself; `cloudtrain explain CT305` explains why"
    name = str(found.path[-1]) if found.path[:2] == ("environment", "variables") else "NAME"
    example = next(iter(subject.where.secret_places.values())).replace("NAME", name)
    place = f'`environment.secrets: {{{name}: {{{subject.where.name}: "{example}"}}}}`'
    return f"let the job look it up with {place}; `cloudtrain explain CT305` explains why"


def secret_values(job: TrainingJob) -> list[SecretValue]:
    """Return the secrets in a job's values, at most one per value. Those that are certainly secrets precede possible
    ones.
    """
    found: dict[Path, SecretValue] = {}
    for item in sorted(_all_secrets(job), key=lambda item: not item.certain):
        found.setdefault(item.path, item)
    return list(found.values())


def values_to_hide(job: TrainingJob) -> tuple[str, ...]:
    """Return the secrets to hide in every rendering of the job's plan: values that are certainly secrets, and values
    that look random.

    A value that does not look random is not hidden, even if its name is typical of secrets: `password: hunter2`.
    """
    found = (item.value for item in _all_secrets(job) if item.certain or _is_random(item.value))
    return tuple(dict.fromkeys(found))


def named_secrets(job: TrainingJob) -> list[tuple[str, str]]:
    """Return name and value of each value that has a name typical of secrets but does not look random:
    `("password", "hunter2")`.
    """
    found = [item for item in _by_name(list(_values(job))) if not (item.certain or _is_random(item.value))]
    return [(_last_name(item.path), item.value) for item in found]


def secret_texts(values: Sequence[tuple[Path, str]]) -> list[str]:
    """Return the secrets to hide in `values`, which are pairs of path and text, by the same conditions as
    `values_to_hide`.
    """
    found = (*_by_rules(values), *_by_name(values))
    return [item.value for item in found if item.certain or _is_random(item.value)]


def _all_secrets(job: TrainingJob) -> list[SecretValue]:
    values = list(_values(job))
    return [*_by_rules(values), *_by_name(values)]


def _values(job: TrainingJob) -> Iterator[tuple[Path, str]]:
    """Yield path and text of every value that becomes part of the request, except the locations of data."""
    for field in ("command", "description"):
        if getattr(job, field) is not None:
            yield (field,), getattr(job, field)
    for field in ("hyperparameters", "tags", *(name + OVERRIDES for name in target_names())):
        yield from _texts((field,), getattr(job, field))
    variables = job.environment.variables
    yield from _texts(("environment", "variables"), {name: variables[name] for name in variables if name != VARIABLE})
    for name, item in job.inputs.items():
        yield from _texts(("inputs", name, "value"), item.value)


def _texts(path: Path, value: Any) -> Iterator[tuple[Path, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts((*path, key), inner)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _texts((*path, index), inner)


def _by_rules(values: Sequence[tuple[Path, str]]) -> Iterator[SecretValue]:
    """Yield the secrets in `values` that match the rules for secrets in files."""
    lines = [f'{_last_name(path)}="{value}"\n'.encode("utf-8", "replace") for path, value in values]
    content = b"".join(lines)
    spans = suspects(content, _AS_FILE)
    if not spans:
        return
    from cloudtrain.bundle.secrets.search import matches

    starts = list(accumulate(map(len, lines), initial=0))
    for match in matches(content, spans, _AS_FILE):
        number = bisect_right(starts, match.start) - 1
        path, value = values[number]
        raw = value.encode("utf-8", "replace")
        begin = match.start - starts[number] - len(f'{_last_name(path)}="'.encode())
        text = raw[max(begin, 0) : begin + match.end - match.start].decode("utf-8", "replace")
        if begin >= 0 and text:
            whole = value if "\n" in value else _whole_word(value, text)
            yield SecretValue(path, match.rule.id, match.rule.certain, whole)


def _last_name(path: Path) -> str:
    return next(str(part) for part in reversed(path) if isinstance(part, str))


def _whole_word(value: str, secret: str) -> str:
    """Return the whole word that contains the secret, so that no part of the secret is shown."""
    start = value.find(secret)
    if start < 0:
        return value
    before = re.search(r"[\w+/.~-]*\Z", value[:start])
    behind = re.match(r"[\w+/.~=-]*", value[start + len(secret) :])
    return (before[0] if before else "") + secret + (behind[0] if behind else "")


def _by_name(values: Sequence[tuple[Path, str]]) -> Iterator[SecretValue]:
    """Yield values whose name is typical of secrets, including options of a command: `--password hunter2`."""
    for path, value in values:
        if path == ("command",):
            yield from _options(value)
            continue
        name = _last_name(path)
        if (
            _SECRET_NAME.search(name)
            and not re.search(_SPECIAL_TOKEN, name)
            and value
            and not re.match(_NO_SECRET, value)
        ):
            yield SecretValue(path, "by its name", _is_random(value), value)


def _options(command: str) -> Iterator[SecretValue]:
    for option in re.finditer(_OPTION, command):
        name, value = option["name"].lower(), option["value"]
        is_random = _is_random(value)
        if not re.match(_NO_SECRET, value) and (is_random or name != "key"):
            yield SecretValue(("command",), f"the option for a {name}", is_random, value)


def _is_random(value: str) -> bool:
    """Return whether a value with a name typical of secrets looks random, unlike a word or a switch such as `true`."""
    from cloudtrain.bundle.secrets.search import bits_per_letter, looks_random

    text = value.encode("utf-8", "replace")
    return len(text) >= 8 and looks_random(text) and bits_per_letter(text) > 2.75
