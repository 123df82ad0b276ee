"""What the preflight checks can know about a bundle: secrets in it, and its size."""

from __future__ import annotations

from cloudtrain.bundle.entries import shown
from cloudtrain.bundle.ignore import IGNORE_FILE, ignore_line
from cloudtrain.bundle.secret_names import secret_path
from cloudtrain.bundle.sizes import LIMIT, NOTABLE, largest_files, size_hint
from cloudtrain.bundle.tree import Tree
from cloudtrain.plans import Finding, Level
from cloudtrain.units import format_size

_LISTED = 10


def secret_findings(tree: Tree) -> list[Finding]:
    """`CT301`: at most one warning, whose details name every file that looks like a secret. No value is shown."""
    looks = {}
    for entry in tree.entries:
        what = entry.secret or secret_path(entry.path)
        if what is not None:
            looks[entry.path] = what
    if not looks:
        return []
    first = next(iter(looks))
    others = len(looks) - 1
    more = f", and {others} more file{'s' if others > 1 else ''}" if others else ""
    return [
        Finding(
            "CT301",
            Level.WARNING,
            f"the bundle would carry what looks like {looks[first]}: `{shown(first)}`{more}",
            f"add the line `{shown(ignore_line(first))}` to `{IGNORE_FILE}` in `source_dir`; on the clouds, let the "
            "script read secrets from the service's secret store",
            ("source_dir",),
            details=tuple(f"{shown(path)}: {what}" for path, what in looks.items()),
        )
    ]


def size_findings(tree: Tree, limit: int = LIMIT) -> list[Finding]:
    """`CT302`, an error, above `limit` bytes; `CT303`, a warning, from 50 MiB. Sizes are before compression."""
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
