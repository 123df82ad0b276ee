"""Size limits of a bundle, and hints about its largest files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from cloudtrain.bundle.entries import escape_path
from cloudtrain.bundle.ignore import IGNORE_FILE, ignore_line
from cloudtrain.core.units import format_size

LIMIT = 300 << 20
"""In bytes. Azure ML's documented limit for a job's snapshot of code; far more than code needs on any target."""

NOTABLE = 50 << 20
"""In bytes. From this size on, a warning says that every changed bundle makes a submit slow."""


def largest_files(sizes: Mapping[str, int], count: int) -> list[str]:
    """Return the `count` largest files as `a/b.bin (1.5 GiB)`, the largest first. Files of equal size
    are sorted by name."""
    ranked = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    return [f"{escape_path(path)} ({format_size(size)})" for path, size in ranked[:count]]


def size_hint(sizes: Mapping[str, int]) -> str:
    """Return a hint with a line for the ignore file. The line excludes the largest file or folder at the root. If one
    file makes up more than half of that folder, the line excludes only this file. `sizes` maps paths to bytes."""
    totals: Counter[str] = Counter()
    for path, size in sizes.items():
        top, slash, _ = path.partition("/")
        totals[top + slash] += size
    heavy, weight = totals.most_common(1)[0]
    largest = max(sizes, key=lambda path: (sizes[path], path))
    name = largest if sizes[largest] > weight / 2 else heavy
    line = ignore_line(name)
    return (
        f"leave out what the script does not import, for example with the line `{line}` in `{IGNORE_FILE}` in "
        "`source_dir`; data goes into the job's `inputs`"
    )
