"""Which rank holds the others up: from two looks at each rank, without a look at the machine.

A rank that waits in a collective waits for another one; so the one that is not in a collective is
guilty. Its stack may be the same in both looks while it works, so only its processor time tells
whether it stands still (facts/watch.md 3.1, 3.2). If all ranks wait, they have called different
collectives.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from cloudtrain.runtime.errors import name_ranks

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .stacks import Frame

STILL = 0.05
"""The share of a processor below which a process stands still."""

_STANDARD = re.compile(r"/lib(?:64)?/python3\.\d+/(?!(?:site|dist)-packages/)|^<frozen ")
_INSTALLED = re.compile(r"/(?:site|dist)-packages/|/cloudtrain/runtime/")
_WAITS = re.compile(
    r"/torch/distributed/(?!checkpoint/|elastic/)|/torch/nn/parallel/distributed\.py"
    r"|/deepspeed/comm/|/horovod/|/mpi4py/"
)
"""Code that waits for other ranks."""

_BACKWARD = re.compile(r"/torch/autograd/graph\.py")
"""In the backward pass of DistributedDataParallel, C++ waits for the other ranks. A rank that does
so stands still; one that computes does not."""

_BETWEEN = re.compile(r"/torch/(?:_ops|_tensor)\.py|/torch/autograd/|/c10d_logger\.py")
"""Code that only passes a call on."""

_MAY_WAIT = re.compile(r"\.(?:wait|item|cpu|tolist|synchronize|backward|numpy)\(")
"""Calls without a Python frame that wait for a collective which was started before."""


class Look(NamedTuple):
    """What two looks at a rank have shown.

    Attributes:
        rank: its number.
        frames: the frames of its main thread at the second look, the innermost first; None if they
            could not be read.
        share: the share of a processor that it has used between the looks.
        state: as in `Usage`: empty for a process that has ended. None for one on a machine that
            does not answer.
        host: the name of its machine.
        folder: its working folder, to which paths are shown relative.
        source: the line of code at which it is in the user's code, if it could be read.
    """

    rank: int
    frames: Sequence[Frame] | None
    share: float = 0.0
    state: str | None = "S"
    host: str = ""
    folder: str = ""
    source: str = ""

    @property
    def collective(self) -> Frame | None:
        """The call in which it waits for other ranks; None if it is in none."""
        for frame in self.frames or ():
            if _BACKWARD.search(frame.file):
                return frame if self.is_still else None
            if _BETWEEN.search(frame.file) or _STANDARD.search(frame.file):
                continue
            return frame if _WAITS.search(frame.file) else None
        return None

    @property
    def own(self) -> Frame | None:
        """The innermost frame in the user's code, or else the innermost one."""
        return own_frame(self.frames or ())

    @property
    def is_still(self) -> bool:
        """Whether it uses no processor."""
        return self.share < STILL

    @property
    def is_dead(self) -> bool:
        """Whether it was stopped, has ended, or is on a machine that does not answer."""
        return not self.state or self.state == "T"


def own_frame(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame in the user's code, or else the innermost one."""
    for frame in frames:
        if not _STANDARD.search(frame.file) and not _INSTALLED.search(frame.file):
            return frame
    return frames[0] if frames else None


class HangVerdict(NamedTuple):
    """Who holds a run up.

    Attributes:
        guilty: those that hold the others up; all of them if none is outside of a collective.
        text: where they are, and where the others wait.
        is_sure: whether they stand still, so that the run will not go on by itself.
    """

    guilty: Sequence[Look]
    text: str
    is_sure: bool

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(look.rank for look in self.guilty)


def judge(looks: Sequence[Look]) -> HangVerdict | None:
    """Return who holds the run up; None if no rank visibly does."""
    living = [look for look in looks if not look.is_dead]
    if not living:  # somebody has suspended the run, or it is over
        return None
    waiting = [look for look in living if look.collective is not None]
    if len(waiting) == len(looks):
        return _all_wait(waiting)

    guilty = [look for look in looks if look.is_dead]
    if not waiting or not guilty:
        guilty = _odd_ones([look for look in living if look.collective is None])
    is_still = all(look.is_dead or look.is_still for look in guilty)
    if not waiting and not is_still:
        return None
    others = [look for look in living if look not in guilty]
    text = "; ".join([*_say(guilty), *_say(others)])
    return HangVerdict(guilty, text, is_still)


def _odd_ones(working: list[Look]) -> list[Look]:
    """Return those of the ranks outside of collectives for which the others may wait: not those
    that call what waits without a frame, those that stand still rather than spin, and of ranks that
    are alike, those that are where the fewest are."""
    guilty = [look for look in working if not _MAY_WAIT.search(look.source)] or working
    guilty = [look for look in guilty if look.is_still] or guilty
    if all(look.is_still for look in guilty):
        return guilty
    places = Counter(look.own for look in guilty)
    fewest = min(places.values())
    return [look for look in guilty if places[look.own] == fewest]


def _all_wait(looks: Sequence[Look]) -> HangVerdict | None:
    if len(looks) == 1:  # for ranks that are not seen from here
        return None
    places = _say(looks)
    text = "; ".join(places)
    if len(places) > 1:
        return HangVerdict(looks, f"the ranks called different collectives: {text}", True)
    # such as one that is a collective behind, or a network that is down
    return HangVerdict(looks, f"no rank is outside of a collective: {text}", False)


# Say it.


def _say(looks: Sequence[Look]) -> list[str]:
    """Return one part of a sentence for the ranks that share it."""
    groups: dict[str, list[int]] = {}
    for look in looks:
        groups.setdefault(describe_place(look), []).append(look.rank)
    return [f"{name_ranks(ranks)}: {words}" for words, ranks in groups.items()]


def describe_place(look: Look) -> str:
    """Return where a rank is, and whether it works, in words without its number."""
    if look.state is None:
        return f"no answer from its machine `{look.host}`"
    if not look.state:
        return "has ended"
    where = _line(look)
    if look.state == "T":
        return f"{where}, stopped by a signal such as SIGSTOP"
    if look.collective is not None:
        return f"waits {where}"
    if look.is_still:
        return f"{where}, standing still"
    return f"{where}, at {look.share:.0%} CPU"


def _line(look: Look) -> str:
    """Return the innermost function, and the line of the user's code that has called it."""
    own = look.own
    if own is None or not look.frames:
        return "its stack cannot be read"
    path = own.file
    if look.folder:
        path = path.removeprefix(f"{look.folder}/")
    place = f"{own.function} ({path}:{own.line})"
    inner = look.collective or look.frames[0]
    return f"in {place}" if inner is own else f"in {inner.function}, called by {place}"
