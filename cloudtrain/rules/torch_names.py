"""Names of torch's distributed training, each with the PyTorch version that introduced it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from cloudtrain.documents.python_text import parse_python

Version = tuple[int, int]

FIRST_VERSION: dict[tuple[str, str], Version] = {
    ("torch.distributed.device_mesh", ""): (2, 2),
    ("torch.distributed.pipelining", ""): (2, 4),
    ("torch.distributed.tensor", "DTensor"): (2, 5),
    ("torch.distributed.pipelining", "ScheduleInterleavedZeroBubble"): (2, 5),
    ("torch.distributed.pipelining.schedules", "ScheduleInterleavedZeroBubble"): (2, 5),
    ("torch.distributed.pipelining", "ScheduleZBVZeroBubble"): (2, 6),
    ("torch.distributed.pipelining.schedules", "ScheduleZBVZeroBubble"): (2, 6),
    ("torch.distributed.fsdp", "fully_shard"): (2, 6),
    ("torch.distributed.fsdp", "MixedPrecisionPolicy"): (2, 6),
}
"""Maps module and name ("" for the module itself) to the first version with it (release notes of PyTorch 2.2 to
2.6)."""

SCHEDULES: dict[str, Version] = {"zero-bubble": (2, 5), "zero-bubble-v": (2, 6)}
"""Maps values of the hyperparameter `schedule` to versions, for scripts that import torch.distributed.pipelining."""

NEWEST = max(FIRST_VERSION.values())
"""The first version of PyTorch that has all these names."""


def too_new(source: bytes, version: Version) -> Iterator[tuple[str, Version]]:
    """Yield each name that a Python file imports but PyTorch `version` lacks, and the first version that has it."""
    if b"torch.distributed" not in source:
        return
    try:
        tree = parse_python(source)
    except SyntaxError:
        return
    for module, name in sorted(set(_imports(tree))):
        first = FIRST_VERSION.get((module, name), (0, 0))
        if first > version:
            yield (f"{module}.{name}" if name else module), first


def uses_pipelining(source: bytes) -> bool:
    """Return whether a Python file mentions torch's pipelining."""
    return b"torch.distributed.pipelining" in source


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, ""
            yield from ((node.module, alias.name) for alias in node.names)
            yield from ((f"{node.module}.{alias.name}", "") for alias in node.names)
