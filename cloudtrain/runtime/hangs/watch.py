"""Watches the ranks of a run, and says which one holds the others up.

Most of the time a watch reads when the ranks of this machine have reported last, which costs
nothing. If that is too long ago (`pace.py`), it looks at all of them twice. A look does no harm to
a healthy run, and a step between the two ends the matter. The first time, the notice is `waiting`:
somebody waits, which may be fine. It becomes `stalled` when the guilty rank has stood still for as
long as a pause may take, or when half of the process group's timeout is over.

On several machines that share the run's folder, each watches its own ranks, and leaves what it has
seen in `ranks/seen.HOST.json`; the machine of the lowest rank puts it together.
"""

from __future__ import annotations

import json
import linecache
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from cloudtrain.runtime.hangs.stacks import ENDED, Frame, read_stacks, usage_of
from cloudtrain.runtime.hangs.verdict import HangVerdict, Look, judge, own_frame
from cloudtrain.runtime.metrics_file import FOLDER as METRICS
from cloudtrain.runtime.notices import end_left
from cloudtrain.runtime.pace import FLOOR, Quiet, StepPace
from cloudtrain.runtime.ranks import FOLDER, RegisteredRank, read_ranks, replace_json

EVERY = 5.0
"""Seconds between two calls of `tick`."""

_BETWEEN = 3.0
"""Seconds between the two looks at a rank."""

_AGAIN = 15.0
"""Seconds from a look to the next one, as long as no step is made."""

_OTHERS = 12.0
"""Seconds in which the other machines of a run have looked, too."""

_FRESH = 60.0
"""Seconds for which what another machine has seen counts."""


class Hang:
    """A run that makes no step.

    Attributes:
        verdict: who holds it up, as last seen.
        quiet: the seconds without a step at the last look.
        stalled: when it became `stalled`, in seconds since 1970.
    """

    def __init__(self, verdict: HangVerdict, quiet: float) -> None:
        self.verdict = verdict
        self.quiet: float = quiet
        self.stalled: float | None = None

    @property
    def rank(self) -> int | None:
        """The guilty rank; None if there are several."""
        ranks = self.verdict.ranks
        return ranks[0] if len(ranks) == 1 else None

    @property
    def text(self) -> str:
        return f"no step for {self.quiet:.0f} s: {self.verdict.text}"


class HangWatch:
    """Watches the ranks on this machine."""

    def __init__(
        self,
        run: str,
        tell: Callable[..., None],
        *,
        pids: Callable[[], Mapping[int, int]] = dict,
        host: str | None = None,
    ) -> None:
        """Args:
        run: the run's folder, which holds the folder of the ranks.
        tell: writes a notice, as `write_notice` does.
        pids: the processes of ranks that the caller knows, registered or not.
        host: the name of this machine, if the run may be on several.
        """
        self.hang: Hang | None = None
        self.last: Hang | None = None
        """The hang, also when its ranks have ended; None after a step."""
        self.is_over = False
        """Whether nothing is to be said any more. Another thread may set it."""
        self.pace: StepPace = StepPace()
        """What the caller has seen of the run's steps itself."""
        self._run = run
        self._folder = f"{run}/{FOLDER}"
        self._has_seen_step = False
        self._tell = tell
        self._pids = pids
        self._host = host
        self._began = time.time()
        self._looked_at = 0.0
        self._still_since = math.inf
        self._here: list[RegisteredRank] = []
        """The ranks of this machine, as last read: a run may have thousands on a shared disk."""

    def tick(self) -> None:
        """Look at the ranks if they have been quiet for long. Takes some seconds then."""
        if not self._here or self._quiet().is_long:
            self._here = self._read_ranks(is_here=True)
        quiet = self._quiet()
        if not quiet.is_long:
            self._note_step()
            return
        if time.monotonic() - self._looked_at < _AGAIN:
            return
        looks = self.look(_BETWEEN)
        if self._host is not None:
            looks = self._with_others(looks)
        self._looked_at = time.monotonic()
        if self.is_over:
            return

        after = self._quiet()
        if after.seconds < quiet.seconds:
            self._note_step()
            return
        verdict = judge(looks) if self._speaks(looks) else None
        if verdict is None:
            self._end()
        else:
            self._note(verdict, after)

    def _quiet(self) -> Quiet:
        paces = [self.pace]
        for rank in self._here:
            pace = StepPace.read(f"{self._folder}/{rank.rank}.pace")
            if pace is not None:
                paces.append(pace)
        return Quiet(paces, time.time(), began=self._began)

    def _read_ranks(self, *, is_here: bool) -> list[RegisteredRank]:
        """Return the ranks on this machine, or those on others."""
        ranks = read_ranks(self._run)
        return [rank for rank in ranks if (self._host in (None, rank.host)) == is_here]

    # look

    def look(self, between: float) -> list[Look]:
        """Look at the ranks of this machine twice, `between` seconds apart."""
        registered = self._read_ranks(is_here=True)
        pids = dict(self._pids())
        for rank in registered:
            if rank.is_alive:
                pids[rank.rank] = rank.pid
        started = time.monotonic()
        before = {number: usage_of(pid) for number, pid in pids.items()}
        time.sleep(between)
        seconds = time.monotonic() - started
        after = {number: usage_of(pid) for number, pid in pids.items()}
        living = {number: pid for number, pid in pids.items() if after[number].state}
        stacks = read_stacks(living, registered)

        folders = {rank.rank: rank.cwd for rank in registered}
        looks = []
        for number in sorted({*pids, *folders}):
            frames = stacks.get(number)
            state, used = after.get(number, ENDED)
            worked = max(0.0, used - before.get(number, ENDED).seconds)
            look = Look(
                number,
                frames,
                share=worked / seconds,
                state=state,
                host=self._host or "",
                folder=folders.get(number, ""),
                source=_source_of(frames),
            )
            looks.append(look)
        return looks

    def _with_others(self, looks: list[Look]) -> list[Look]:
        """Leave these looks for the other machines, and add theirs."""
        others = self._read_ranks(is_here=False)
        if not others:
            return looks
        with suppress(OSError):
            own = {"time": time.time(), "looks": looks}
            replace_json(f"{self._folder}/seen.{self._host}.json", own)
        time.sleep(_OTHERS)
        hosts = {rank.host for rank in others}
        seen = {host: _find(f"{self._folder}/seen.{host}.json") for host in hosts}
        found = list(looks)
        for rank in others:
            silent = Look(rank.rank, None, state=None, host=rank.host)
            found.append(seen[rank.host].get(rank.rank, silent))
        return sorted(found, key=lambda look: look.rank)

    def _speaks(self, looks: Sequence[Look]) -> bool:
        """Return whether this machine has the lowest rank among those that answer."""
        answers = [look for look in looks if look.state is not None]
        return bool(answers) and answers[0].host == (self._host or "")

    # say

    def _note(self, verdict: HangVerdict, quiet: Quiet) -> None:
        """Say who holds the run up, unless it was said."""
        now = time.time()
        hang = self.hang
        if hang is None or hang.verdict.ranks != verdict.ranks:
            self._end()
            hang = Hang(verdict, quiet.seconds)
            self.hang = hang
            self.last = hang
            self._say("waiting", hang)
        hang.verdict = verdict
        hang.quiet = quiet.seconds

        self._still_since = min(self._still_since, now)
        if not verdict.is_sure:
            self._still_since = math.inf
        is_still = now - self._still_since >= FLOOR
        if hang.stalled is None and (is_still or quiet.seconds > quiet.timeout / 2):
            self._say("waiting", hang, ended=now)
            hang.stalled = now
            self._say("stalled", hang)

    def _note_step(self) -> None:
        """Record that nothing holds the run up."""
        self.last = None
        self._end()
        if not self._has_seen_step:
            self._has_seen_step = True
            end_left(f"{self._run}/{METRICS}", ("waiting", "stalled"))

    def _end(self) -> None:
        """Say that it is over, if something was said."""
        hang = self.hang
        if hang is not None:
            self.hang = None
            kind = "waiting" if hang.stalled is None else "stalled"
            self._say(kind, hang, ended=time.time())
        self._still_since = math.inf

    def _say(self, kind: str, hang: Hang, *, ended: float | None = None) -> None:
        self._tell(kind, hang.text, rank=hang.rank, ended=ended)


def _source_of(frames: Sequence[Frame] | None) -> str:
    """Return the line of the user's code at which a process is; empty if it cannot be read."""
    own = own_frame(frames or ())
    if own is None:
        return ""
    linecache.checkcache(own.file)
    return linecache.getline(own.file, own.line)


def _find(path: str) -> dict[int, Look]:
    """Return what another machine has seen lately."""
    try:
        with open(path, "rb") as file:
            content = json.load(file)
    except (OSError, ValueError):
        return {}
    looks = {}
    if time.time() - content["time"] < _FRESH:
        for record in content["looks"]:
            look = Look(*record)
            frames = look.frames and [Frame(*frame) for frame in look.frames]
            looks[look.rank] = look._replace(frames=frames)
    return looks
