"""The hash of a job's requirements. Requirements with equal hashes install the same packages."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable

_INCLUDES = re.compile(r"^\s*(?:-r|--requirement|-c|--constraint)[\s=]*(\S+)", re.MULTILINE)
_NAMES_FILES = re.compile(
    r"^\s*(?:-e|--editable|-f|--find-links)[\s=]+(?![\s=/]|\w+:)|^\s*\.{1,2}(?:/|$)|^\s*[^/\s#][^:\s#]*\.(?:whl|zip|tar\.gz)\b|@\s*\.",
    re.MULTILINE,
)
"""Lines that install files of the bundle."""


def requirements_hash(file: str, read: Callable[[str], str | None], bundle: str) -> str | None:
    """Return the hash of the requirements file `file` and the files that it includes; None if `file` cannot be read.

    `read` returns the text of a file, or None. `bundle` is the hash of the whole bundle. If the requirements install
    files of the bundle, the result also depends on `bundle`.
    """
    texts = dict[str, str | None]()
    waiting = [os.path.normpath(file)]
    while waiting:
        name = waiting.pop()
        if name not in texts:
            text = texts[name] = read(name)
            folder = os.path.dirname(name)  # noqa: PTH120 - names of the bundle
            waiting += [os.path.normpath(os.path.join(folder, found)) for found in _INCLUDES.findall(text or "")]  # noqa: PTH118
    if texts[os.path.normpath(file)] is None:
        return None
    parts = [f"{name}\0{text}" for name, text in sorted(texts.items())]
    parts += [bundle] if any(_NAMES_FILES.search(text or "") for text in texts.values()) else []
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
