"""Secrets that the store must not keep, and functions that hide them in the kept data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cloudtrain.documents.document import ValuePath
from cloudtrain.plans.plan import HIDDEN, Shown, hide

_SIGNATURE = re.compile(
    r"[?&](?:sig|signature|token|x-amz-(?:signature|credential|"
    r"security-token))=(?P<query>[^&\s\"']{4,})|"
    r"://[^/\s:@\"']*:(?P<password>[^@/\s\"']+)@",
    re.IGNORECASE,
)
"""Keys in an address: signatures of Azure's and Amazon's storage, and passwords."""


_SEPARATOR = r"[\"']?(?:\s*[=:]\s*|\s+)[\"']?"
"""What stands between a name and its value."""


class Secrets(NamedTuple):
    """Secrets that must not be stored.

    Attributes:
        values: secret texts, which are hidden wherever they occur.
        pairs: pairs of name and value of secrets that do not look random: `("password",
            "hunter2")`. Such a secret is hidden only where it is a whole value or follows its name.
    """

    values: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()

    def hidden(self, value: Shown) -> Shown:
        """Return a copy of JSON data with the secrets hidden."""
        value = hide(value, self.values)
        return self._hide_pairs(value) if self.pairs else value

    def _hide_pairs(self, value: Any) -> Any:
        """Return a copy of JSON data with the secrets of `pairs` hidden."""
        if isinstance(value, str):
            for name, secret in self.pairs:
                if value.strip("\"'") == secret:
                    return HIDDEN
                named = rf"({re.escape(name)}{_SEPARATOR}){re.escape(secret)}(?![\w-])"
                value = re.sub(named, rf"\1{HIDDEN}", value)
                # a secret of the command line may stand anywhere in a text
                if name in ("command", "arguments"):
                    value = value.replace(secret, HIDDEN)
            return value
        if isinstance(value, Mapping):
            return {key: self._hide_pairs(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._hide_pairs(inner) for inner in value]
        return value


def texts_of(value: Any, path: ValuePath = ()) -> Iterator[tuple[ValuePath, str]]:
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
        if "://" in text:
            for match in _SIGNATURE.finditer(text):
                yield match["query"] or match["password"]
