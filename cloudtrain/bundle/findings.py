"""Preflight checks of a bundle: secrets, size, and file names that the target does not support."""

from __future__ import annotations

import os
from collections.abc import Callable

from cloudtrain.bundle.entries import escape_path
from cloudtrain.bundle.ignore import IGNORE_FILE, ignore_line
from cloudtrain.bundle.secrets.names import secret_path
from cloudtrain.bundle.sizes import LIMIT, NOTABLE, largest_files, size_hint
from cloudtrain.bundle.tree import Tree
from cloudtrain.core.plan import Finding, Level
from cloudtrain.core.units import format_size

_LISTED = 10
_MOST_PLACES = 40


_BY_NAME = ", by its name"

_Place = tuple[str, str, str]
"""The path, the position and the finding: `a.py`, `a.py:3`, `github-pat`."""


def secret_findings(tree: Tree) -> list[Finding]:
    """Return the findings about secrets, judged by content and file name: the error `CT301` for certain secrets, and
    the warning `CT304` for possible ones.

    There is at most one finding per code; its details list every position. The secrets themselves are never shown.
    """
    certain: list[_Place] = []
    uncertain: list[_Place] = []
    for entry in tree.entries:
        name = escape_path(entry.path)
        is_certain = any(secret.certain for secret in entry.secrets)
        what = None if is_certain else secret_path(entry.path)
        if what is not None:
            uncertain.append((entry.path, name, f"{what}{_BY_NAME}"))
        for secret in entry.secrets:
            places = certain if secret.certain else uncertain
            places.append((entry.path, f"{name}:{secret.line}", secret.rule))
    found = []
    if certain:
        found.append(_secret("CT301", Level.ERROR, "the bundle contains a secret", certain))
    if uncertain:
        found.append(_secret("CT304", Level.WARNING, "the bundle may contain a secret", uncertain))
    return found


def _secret(code: str, level: Level, message: str, places: list[_Place]) -> Finding:
    path, place, what = places[0]
    others = len({path for path, _, _ in places}) - 1
    more = f", and {others} more file{'s' if others > 1 else ''}" if others else ""
    details = [f"{place}: {what}" for _, place, what in places[:_MOST_PLACES]]
    if len(places) > _MOST_PLACES:
        details.append(f"and {len(places) - _MOST_PLACES} more")
    named = any(what.endswith(_BY_NAME) for _, _, what in places)
    accept = f"accept it with `--ignore {code}`" if named else "write `gitleaks:allow` into a comment in that line"
    return Finding(
        code,
        level,
        f"{message} ({what}): `{place}`{more}",
        f"add the line `{ignore_line(path)}` to `{IGNORE_FILE}` in `source_dir`, and let the script read "
        f"secrets from the service's secret store; if it is not a secret, {accept}",
        ("source_dir",),
        details=tuple(details),
    )


def size_findings(tree: Tree, limit: int = LIMIT) -> list[Finding]:
    """Return the error `CT302` if the bundle has more than `limit` bytes, or the warning `CT303` if it has at least 50
    MiB. Sizes are before compression."""
    size = tree.identity.size
    if size <= limit and size < NOTABLE:
        return []
    sizes = {entry.path: entry.size for entry in tree.entries}
    own = {path: size for path, size in sizes.items() if path not in tree.added} or sizes
    too_large = size > limit
    count = f"{tree.identity.file_count} files"
    return [
        Finding(
            "CT302" if too_large else "CT303",
            Level.ERROR if too_large else Level.WARNING,
            f"the bundle holds {format_size(size)} in {count}"
            + (f"; the limit is {format_size(limit)}" if too_large else ", all sent again after every change"),
            size_hint(own),
            ("source_dir",),
            details=tuple(largest_files(own, _LISTED)),
        )
    ]


_LONGEST_PATH = 3800
"""In bytes. Linux allows 4,096, and the path of the folder into which a bundle is unpacked needs some of them."""


def name_findings(tree: Tree, target: str, refuse: Callable[[str], str | None]) -> list[Finding]:
    """Return the error `CT306` if the target does not support the names of some files. `refuse` takes a path and
    returns why the target does not support it, such as `whose path is too long`; None if the target supports it."""
    faults = {entry.path: what for entry in tree.entries if (what := refuse(entry.path)) is not None}
    if not faults:
        return []
    first, others = next(iter(faults)), len(faults) - 1
    more = f", and {others} more file{'s' if others > 1 else ''}" if others else ""
    details = [f"{_cut(escape_path(path))}: {what}" for path, what in faults.items()]
    return [
        Finding(
            "CT306",
            Level.ERROR,
            f"`{target}` does not support `{_cut(escape_path(first))}`, {faults[first]}{more}",
            f"rename it, or add the line `{_cut(ignore_line(first))}` to `{IGNORE_FILE}` in `source_dir`",
            ("source_dir",),
            details=tuple(details[:_MOST_PLACES]),
        )
    ]


def refuse_archive_path(path: str) -> str | None:
    """Return why an archive that contains this path could not be unpacked; None if it could."""
    return "whose path is too long" if len(os.fsencode(path)) > _LONGEST_PATH else None


def _cut(name: str) -> str:
    return name if len(name) <= 200 else f"{name[:120]}...{name[-60:]}"
