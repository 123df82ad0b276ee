"""The stacks of a run's ranks, as `cloudtrain status --stacks` shows them: names and lines of code,
and no values."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.documents import JsonObject
from cloudtrain.plans.document import Block, Document, Heading, Lines, Text
from cloudtrain.runtime.hangs.verdict import Look, describe_place, judge


def stacks_document(looks: Sequence[Look]) -> Document:
    """Return who holds the run up, if somebody does, and the stack of each rank."""
    blocks: list[Block] = []
    verdict = judge(looks)
    if verdict is not None:
        blocks.append(Text(verdict.text))
    for look in looks:
        blocks.append(Heading(f"rank {look.rank}: {describe_place(look)}"))
        lines = [f"{frame.function}  {frame.file}:{frame.line}" for frame in look.frames or ()]
        blocks.append(Lines(lines or ["its stack cannot be read"]))
    return Document(blocks)


def stacks_json(looks: Sequence[Look]) -> JsonObject:
    """Return what `stacks_document` shows as JSON data. `held_up_by` holds the ranks that hold the
    others up."""
    verdict = judge(looks)
    ranks = []
    for look in looks:
        frames = None
        if look.frames is not None:
            frames = [frame._asdict() for frame in look.frames]
        ranks.append(
            {
                "rank": look.rank,
                "host": look.host or None,
                "place": describe_place(look),
                "cpu": round(look.share, 3),
                "frames": frames,
            }
        )
    return {
        "verdict": None if verdict is None else verdict.text,
        "held_up_by": [] if verdict is None else list(verdict.ranks),
        "ranks": ranks,
    }
