"""Portable rules about the address of a container image."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cloudtrain.core.plan import Level
from cloudtrain.rules.image_names import written_images
from cloudtrain.rules.rule import Fault, Subject, rule

_HOST = r"[a-zA-Z0-9]+(?:-+[a-zA-Z0-9]+)*(?:\.[a-zA-Z0-9]+(?:-+[a-zA-Z0-9]+)*)*"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = (
    rf"(?P<name>(?:(?:{_HOST}|\[[a-fA-F0-9:]+\])(?::[0-9]+)?/)?{_PART}(?:/{_PART})*)"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(?:@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?"
)
"""registry/repository:tag@digest, according to the OCI distribution specification and its reference implementation."""

_LONGEST_NAME = 255

_SCHEME = re.compile(r"^[a-z+]+://")


@rule("CT207", Level.ERROR)
def image_reference(subject: Subject) -> Iterator[Fault]:
    """The image is not a valid image address.

    An address is `REGISTRY/REPOSITORY:TAG`, or `...@sha256:DIGEST`: a host with an optional port; names in lower-case
    letters, digits, dots, hyphens and underscores between slashes; and a tag of at most 128 letters, digits and `_.-`
    (OCI distribution specification). With any other text, the instances start but cannot pull the image.
    """
    for reference, path in written_images(subject):
        if not is_reference(reference):
            better = _mend(reference)
            hint = f"write `{better}`" if better else "write it as `REGISTRY/REPOSITORY:TAG`"
            yield Fault(f"`{reference}` is not the address of an image", hint, path)


def is_reference(text: str) -> bool:
    """Return whether the text has the form of an image address that can be pulled."""
    match = re.fullmatch(_REFERENCE, text)
    return match is not None and len(match["name"]) <= _LONGEST_NAME


def _mend(text: str) -> str | None:
    """Return the text without scheme and spaces, and with the name in lower case; None if the result is still not an
    image address.
    """
    bare = _SCHEME.sub("", text.strip())
    name, at, digest = bare.partition("@")
    folder, slash, last = name.rpartition("/")
    repository, colon, tag = last.partition(":")
    better = f"{folder.lower()}{slash}{repository.lower()}{colon}{tag}{at}{digest}"
    return better if is_reference(better) else None
