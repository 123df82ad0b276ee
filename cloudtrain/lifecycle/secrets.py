"""Secrets that the store must not keep, and functions that hide them in the kept data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from cloudtrain.core.hiding import HIDDEN, hide

Shown = TypeVar("Shown")
Path = tuple[str | int, ...]

_SIGNATURE = re.compile(
    r"[?&](?:sig|signature|token|x-amz-(?:signature|credential|security-token))=(?P<query>[^&\s\"']{4,})|"
    r"://[^/\s:@\"']*:(?P<password>[^@/\s\"']+)@",
    re.IGNORECASE,
)
"""Keys in an address: signatures of Azure's and Amazon's storage, and passwords."""


class Secrets(NamedTuple):
    """Secrets that must not be stored.

    Attributes:
        values: secret texts, which are hidden wherever they occur.
        named: pairs of name and value of secrets that do not look random: `("password", "hunter2")`. Such a secret is
            hidden only where it is a whole value or follows its name.
    """

    values: tuple[str, ...] = ()
    named: tuple[tuple[str, str], ...] = ()

    def hidden(self, value: Shown) -> Shown:
        """Return a copy of JSON data with the secrets hidden."""
        value = hide(value, self.values)
        return self._without_named(value) if self.named else value

    def _without_named(self, value: Any) -> Any:
        if isinstance(value, str):
            for name, secret in self.named:
                if value.strip("\"'") == secret:
                    return HIDDEN
                between = r"[\"']?(?:\s*[=:]\s*|\s+)[\"']?"
                value = re.sub(rf"({re.escape(name)}{between}){re.escape(secret)}(?![\w-])", rf"\1{HIDDEN}", value)
                if name == "command":
                    value = value.replace(secret, HIDDEN)
            return value
        if isinstance(value, Mapping):
            return {key: self._without_named(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._without_named(inner) for inner in value]
        return value


def texts_of(value: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Yield every text in JSON data, including keys, with its path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield (*path, key), str(key)
            yield from texts_of(inner, (*path, key))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from texts_of(inner, (*path, number))


def signatures_in(value: Any) -> Iterator[str]:
    """Yield the signatures and passwords of all URLs in JSON data."""
    for _, text in texts_of(value):
        for match in _SIGNATURE.finditer(text) if "://" in text else ():
            yield match["query"] or match["password"]


def is_hidden(value: Any) -> bool:
    """Return whether any part of JSON data was hidden, that is, replaced by `***`."""
    return any(HIDDEN in text for _, text in texts_of(value))
