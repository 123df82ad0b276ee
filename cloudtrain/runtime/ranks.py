"""Which process is which rank of a run: a file for each rank in the run's folder.

    ranks/N.json     the process of rank N: see `RegisteredRank`
    ranks/N.stacks   the stacks of its main thread, one for each time that somebody has asked

A process registers when it first uses the runtime. A started process has its rank in
`/proc/PID/environ`, a forked one has not, and a process of another node is in no process table; so
the files are what tells of all of them. They hold the variables of launchers, and no others, which
may be secrets.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import tempfile
from contextlib import suppress
from glob import escape, glob
from typing import IO, Any, NamedTuple

from .environment import decimal_in, detect_environment, own_host
from .errors import SetupError
from .metrics_file import metrics_folder
from .pace import keep
from .proc import boot_id, read_proc, start_of, stat_fields, state_of

FOLDER = "ranks"
"""The folder inside a run's folder."""

_AFTER_FIRST = 5
"""The distance of our signals from the first real-time signal. Slurm and users send SIGUSR1 and
SIGUSR2, and the C library keeps the first real-time signals for itself."""

_VARIABLES = """
RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_NAME
ROLE_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT TF_CONFIG OMP_NUM_THREADS CUDA_VISIBLE_DEVICES
ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS
TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE
OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE SLURM_JOB_ID SLURM_STEP_ID SLURM_PROCID
SLURM_LOCALID SLURM_NODEID SLURM_NTASKS SLURM_NNODES SLURM_STEP_NUM_TASKS SLURM_STEP_NUM_NODES
SLURM_RESTART_COUNT SM_HOSTS SM_CURRENT_HOST CLOUDTRAIN_INSTANCE CLOUDTRAIN_INSTANCE_COUNT
CLOUDTRAIN_RUN_DIR CLOUDTRAIN_METRICS_DIR
""".split()
"""The variables that launchers set for a rank."""

_OF_A_RANK = frozenset({"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "TF_CONFIG"})
"""Variables of which a process that a launcher started as a rank has at least one."""


class RegisteredRank(NamedTuple):
    """A process that has registered as a rank. `node_stacks.sh` of Slurm reads the fields in this
    order.

    Attributes:
        pid: its id on `host`.
        start: when it started, in ticks since the boot; empty where there is no /proc.
        boot: the id of the host's boot.
        host: the name of its machine.
        rank: its rank, or the number of its instance where every instance has a rank 0 of its own.
        local_rank: its rank on its instance.
        attempt: how often its launcher or its job had been restarted before.
        signal: the signal on which its main thread writes its stack as soon as it runs Python code;
            None if it does not. On the next signal it writes it at once, wherever it is.
        stacks: the file into which it writes them.
        cwd: its working folder when it registered.
        environ: the variables that its launcher has set.
    """

    pid: int
    start: str
    boot: str
    host: str
    rank: int
    local_rank: int
    attempt: int
    signal: int | None
    stacks: str | None
    cwd: str
    environ: dict[str, str]

    @property
    def is_alive(self) -> bool:
        """Whether this very process lives, and on this machine. Another process that has got its id
        is not it."""
        return bool(self.start) and self.boot == boot_id() and self.start == start_of(self.pid)

    def can_dump(self) -> bool:
        """Return whether the two signals make the process write its stack now, and not when it is
        continued. They kill a process that has replaced its program since, which has the same id
        and start."""
        if self.signal is None or not self.is_alive:
            return False
        if state_of(stat_fields(self.pid)) == "T":
            return False
        return _caught_signals(self.pid) >> (self.signal - 1) & 0b11 == 0b11


def read_ranks(run: str | os.PathLike[str]) -> list[RegisteredRank]:
    """Return the ranks that have registered in a run's folder, in their order, whether they are
    alive or not."""
    files = glob(f"{escape(os.fspath(run))}/{FOLDER}/*.json")
    return sorted(filter(None, map(_read, files)), key=lambda rank: rank.rank)


def _read(path: str) -> RegisteredRank | None:
    """Return the rank of a file; None if it is gone, or nothing that this module wrote."""
    with suppress(OSError, ValueError, TypeError), open(path, "rb") as file:
        return RegisteredRank(**json.load(file))
    return None


def ranks_folder() -> str | None:
    """Return the folder for the ranks of the run that this process belongs to; None without a run.
    On a cloud it is a folder of this machine, in which its ranks find each other."""
    metrics = metrics_folder()
    if metrics is not None:
        return f"{os.path.dirname(metrics)}/{FOLDER}"
    if detect_environment().platform == "local":
        return None
    return f"{tempfile.gettempdir()}/cloudtrain-{os.getuid()}/{FOLDER}"


_asked: list[tuple[int, int]] = []
"""Process id and rank for which this process has tried to register last."""

_registered: list[int] = []
"""The id of this process, if it has registered."""

WRITER = "_cloudtrain_writes_stack"
"""The function that is the innermost frame where a main thread wrote its stack between two
instructions."""

END = b"\n"
"""The empty line after a stack that a main thread wrote itself. faulthandler, which writes line by
line, ends with none."""

_stacks: list[IO[bytes]] = []
"""The open file of stacks, which must stay open as long as the process lives."""


def register() -> None:
    """Register this process as a rank of its run, once for each rank that it is. Without a run's
    folder, or in a worker of a data loader, do nothing. Training goes on whatever happens here."""
    with suppress(SetupError, OSError):
        folder = ranks_folder()
        processes = sys.modules.get("multiprocessing.process")
        is_helper = processes is not None and processes.current_process().daemon
        if folder is None or is_helper:
            return
        environment = detect_environment()
        number = environment.rank
        if environment.node_count > environment.world_size:  # each is rank 0
            number = environment.node_rank
        if _asked == [(os.getpid(), number)]:
            return
        _make(folder)
        _asked[:] = [(os.getpid(), number)]
        stem = f"{folder}/{number}"
        if not _is_taken(f"{stem}.json"):
            _write(stem, number, environment.local_rank)
            _registered[:] = [os.getpid()]
            keep(f"{stem}.pace")


def is_rank() -> bool:
    """Return whether this process has registered as a rank."""
    return _registered == [os.getpid()]


def _make(folder: str) -> None:
    """Make the folder. Raises `OSError` if another user has it. The folder of a run must exist: one
    that was removed must not appear again."""
    above = os.path.dirname(folder)
    if metrics_folder() is None:
        with suppress(FileExistsError):
            os.mkdir(above, 0o700)
        for rank in read_ranks(above):
            if not rank.is_alive:  # of an earlier job
                os.unlink(f"{folder}/{rank.rank}.json")
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    if os.stat(folder).st_uid != os.getuid():
        raise PermissionError(folder)


def _is_taken(path: str) -> bool:
    """Return whether another living process is this rank, and this one a program that it has
    started. A process without a rank that starts ranks is none of them."""
    other = _read(path)
    if other is None or other.host != own_host():
        return False
    if other.pid == os.getpid() or not other.is_alive:
        return False
    is_other_ranked = not _OF_A_RANK.isdisjoint(other.environ)
    return is_other_ranked or _OF_A_RANK.isdisjoint(os.environ)


def _write(stem: str, number: int, local_rank: int) -> None:
    stacks = os.path.abspath(f"{stem}.stacks")
    signal_number = _dump_on_signals(stacks)
    variables = os.environ
    restarts = decimal_in(variables, "SLURM_RESTART_COUNT", 0)
    record = RegisteredRank(
        os.getpid(),
        start_of(os.getpid()),
        boot_id(),
        own_host(),
        number,
        local_rank,
        attempt=decimal_in(variables, "TORCHELASTIC_RESTART_COUNT", restarts),
        signal=signal_number,
        stacks=None if signal_number is None else stacks,
        cwd=os.getcwd(),
        environ={name: variables[name] for name in _VARIABLES if name in variables},
    )
    replace_json(f"{stem}.json", record._asdict())


def replace_json(path: str, content: Any) -> None:
    """Write a file for its owner alone, in one step. Raises `OSError`."""
    new = f"{path}.{os.getpid()}"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        json.dump(content, file)
    os.replace(new, path)


def _dump_on_signals(path: str) -> int | None:
    """Make the main thread write its stack into a file when the process gets a signal or the next
    one, and return the first of them; None where there is none to use. The stack holds names and
    lines, and no values.

    faulthandler does not wait for Python's lock, so it may read frames while they change, and end
    the process: with all threads it did so in 4 of 2,400 processes that were importing. Hence the
    first signal has a handler in Python, which runs between two instructions. The second is for a
    main thread that is in C code, where its frames do not change, and is for nobody else.
    """
    first = getattr(signal, "SIGRTMIN", None)
    if first is None:
        return None
    number = int(first) + _AFTER_FIRST
    are_free = signal.getsignal(number) is signal.getsignal(number + 1) is signal.SIG_DFL
    if not _stacks and not are_free:
        return None  # the script's own
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    file = os.fdopen(descriptor, "ab", buffering=0)
    try:
        signal.signal(number, _cloudtrain_writes_stack)
    except ValueError:  # only the main thread can do it
        file.close()
        return None
    signal.siginterrupt(number, False)  # C code may not expect that a system call ends early
    faulthandler.register(number + 1, file=file, all_threads=False, chain=False)
    _stacks[:] = [file]
    return number


def _cloudtrain_writes_stack(*_: object) -> None:
    """Write the stack of the main thread, which runs this. Training goes on whatever happens."""
    with suppress(Exception):
        faulthandler.dump_traceback(_stacks[0], all_threads=False)
        _stacks[0].write(END)


def _caught_signals(pid: int) -> int:
    """Return a bit for each signal, from the number 1 on, for which the process has a handler."""
    for line in (read_proc(f"{pid}/status") or b"").splitlines():
        if line.startswith(b"SigCgt:"):
            return int(line.split()[1], 16)
    return 0
