"""The part that a process takes in its run: it registers as a rank, and where no supervisor watches
the run, as on the clouds and on Slurm, a thread does it. Every rank has the thread, and one of each
machine watches: another one if the first is stopped or does not come to it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from importlib import import_module
from threading import Thread, main_thread

from cloudtrain.runtime.environment import own_host
from cloudtrain.runtime.errors import tell
from cloudtrain.runtime.metrics_file import metrics_folder
from cloudtrain.runtime.pace import OWN, publish
from cloudtrain.runtime.proc import stat_fields, state_of
from cloudtrain.runtime.ranks import is_rank, ranks_folder, read_ranks, register

_SUPERVISED = "CLOUDTRAIN_RUN_TOKEN"
"""The variable of processes that a supervisor on this machine watches."""

STOP = "CLOUDTRAIN_STOP_WHEN_STALLED"
"""The variable with the seconds after which a stalled run is stopped."""

_GRACE = 30.0
"""Seconds from SIGTERM to SIGKILL for the ranks of a stalled run."""

_ABSENT = 60.0
"""Seconds after which another rank watches."""

_watching: list[int] = []
"""The id of this process, once it has the thread. A forked process has none."""


def take_part(timeout: float | None = None) -> None:
    """Register this process as a rank of its run. `timeout` is that of the process group that it
    joins now, in seconds."""
    register()
    if not is_rank():
        return
    if timeout is not None:
        OWN.timeout = timeout
        OWN.joined = time.time()
        publish()
    if _SUPERVISED not in os.environ and _watching != [os.getpid()]:
        _watching[:] = [os.getpid()]
        thread = Thread(target=_work, args=(ranks_folder(),), name="cloudtrain-watch", daemon=True)
        thread.start()


def _work(folder: str) -> None:
    """Watch until the process ends. A watch that fails must not end a training."""
    try:
        # what these import takes some milliseconds, which no rank waits for here
        if metrics_folder() is None:
            import_module("cloudtrain.runtime.machine_watch").watch_in_cloud()
        _watch(folder)
    except Exception as error:  # noqa: BLE001 - such as a folder that is gone
        if main_thread().is_alive():  # else Python ends, and imports nothing any more
            tell(f"hangs are not watched any more: {error!r}")


def _watch(folder: str) -> None:
    watching = import_module("cloudtrain.runtime.hangs.watch")
    notices = import_module("cloudtrain.runtime.notices")
    host = own_host()
    limit = float(os.environ.get(STOP) or "inf")
    watch = watching.HangWatch(os.path.dirname(folder), notices.write_notice, host=host)
    while True:
        time.sleep(watching.EVERY)
        publish()
        if not _is_my_turn(f"{folder}/watch.{host}"):
            continue
        watch.tick()
        hang = watch.hang
        if hang is None or hang.stalled is None:
            continue
        if time.time() - hang.stalled >= limit:
            tell(f"stopped, as `stop_when_stalled` asks: {hang.text}")
            _stop(os.path.dirname(folder), host)


def _is_my_turn(path: str) -> bool:
    """Return whether this process watches, and say so in a file that holds its id."""
    own = str(os.getpid())
    holder = ""
    age = 0.0
    with suppress(OSError), open(path, encoding="ascii") as file:
        age = time.time() - os.stat(path).st_mtime
        holder = file.read()
    if holder == own:
        os.utime(path)
        return True
    is_absent = age > _ABSENT
    if holder and not is_absent:
        is_absent = state_of(stat_fields(int(holder))) in ("", "T")
    if is_absent:
        with suppress(FileNotFoundError):  # another one was quicker
            os.unlink(path)
    with suppress(FileExistsError):  # another one has the turn
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(own)
        return True
    return False


def _stop(run: str, host: str) -> None:
    """End the ranks of this machine, this one last. Their launcher ends the others."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        ranks = [rank for rank in read_ranks(run) if rank.host == host and rank.is_alive]
        for rank in sorted(ranks, key=lambda rank: rank.pid == os.getpid()):
            with suppress(OSError):
                os.kill(rank.pid, number)
        time.sleep(_GRACE)
