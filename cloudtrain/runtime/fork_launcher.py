r"""Starts the ranks of a job on this machine's CPU as forks of one process, which has imported
torch once.

    python -u -m cloudtrain.runtime.fork_launcher --processes-per-instance 2 [OPTIONS] \
        train.py [ARGUMENTS]

torchrun starts an interpreter for every rank. Each interpreter imports torch (about a second) and,
with the first optimizer, torch's compiler (another second). Here both imports happen once, before
the fork. Three measures make a forked rank equivalent to a newly started process:

* At the fork, the process has no thread pool and no GPU context, which a fork would break.
  Importing torch creates neither; torch's first operation would, so none runs before the fork. A
  job with GPUs is not started this way.
* The script runs as `__main__` in a module that is never destroyed, and the rank ends through
  `os._exit`, after waiting for threads and running exit handlers as an interpreter does. If the
  interpreter ended as usual, it would destroy the reducer of DistributedDataParallel, whose
  destructor waits for gloo's threads. With torch 2.13, it waited for ever in 10 of 27 runs of 4
  ranks.
* numpy's global random numbers are seeded again, because they would be equal in all ranks.

A rank has the variables that torchrun sets. As with torchrun, its output goes to files below
`--log-dir`: `instance_<i>/fork/attempt_<n>/<local rank>/stdout.log` and `stderr.log`. In the same
folder, `rank.json` identifies the rank, because the process table shows only the launcher's
environment.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import sys
import threading
import types
import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from cloudtrain.runtime.atomic import write_file
from cloudtrain.runtime.errors import tell
from cloudtrain.runtime.loopback import hold_master_store

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType
    from typing import NoReturn

PRELOADED = ("torch", "torch.distributed", "torch._dynamo")
"""Modules that are imported before the fork. The last one is the compiler, which the first
optimizer of every rank would import."""

RANK_FILE = "rank.json"


def rank_environment(
    rank: int,
    *,
    instances: int,
    processes_per_instance: int,
    master_port: str,
    max_restarts: int = 0,
    attempt: int = 0,
) -> dict[str, str]:
    """Return the variables that torchrun (torch 2.13) sets for a rank. Ranks are numbered instance
    by instance.

    Unlike torchrun's agent, this launcher keeps no store: rank 0 opens a new one on loopback in
    every attempt, so that no restarted rank can read the address of a dead rank.
    """
    instance, local_rank = divmod(rank, processes_per_instance)
    world_size = str(instances * processes_per_instance)
    return {
        "GROUP_RANK": str(instance),
        "GROUP_WORLD_SIZE": str(instances),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(processes_per_instance),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": master_port,
        "RANK": str(rank),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": world_size,
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "WORLD_SIZE": world_size,
    }


class ForkLauncher:
    """All ranks of all simulated instances, as children of this process."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._alive: dict[int, int] = {}
        """Maps process id to rank."""
        self._is_stopping = False

    def run(self) -> int:
        """Start the ranks. When a rank fails, restart all ranks, at most `max_restarts` times.
        Return the exit code, 0 or 1."""
        signal.signal(signal.SIGTERM, self._pass_on)
        signal.signal(signal.SIGALRM, lambda *_: self._send(signal.SIGKILL))
        failed: list[tuple[int, int]] = []
        for attempt in range(self._options.max_restarts + 1):
            failed = list(self._attempt(attempt))
            if not failed or self._is_stopping:
                break
            if attempt < self._options.max_restarts:
                rank, exit_code = failed[0]
                tell(
                    f"rank {rank} ended with exit code {exit_code}; starting all ranks again "
                    f"({attempt + 1} of {self._options.max_restarts})"
                )
        # the one that began it comes last, as torchrun's summary has it
        for rank, exit_code in reversed(failed):
            tell(f"rank {rank} ended with exit code {exit_code}")
        return 1 if failed else 0

    def _attempt(self, attempt: int) -> Iterator[tuple[int, int]]:
        """Run the ranks once. Yield rank and exit code of each rank that fails, in order of time.
        After the first failure the other ranks are stopped."""
        for rank in range(self._options.instances * self._options.processes_per_instance):
            self._start(rank, attempt)
        is_ending = False
        while self._alive:
            # a signal's handler runs meanwhile, and waiting continues
            pid, status = os.waitpid(-1, 0)
            rank = self._alive.pop(pid)
            if exit_code := os.waitstatus_to_exitcode(status):
                yield rank, exit_code
                if not is_ending:
                    is_ending = True
                    self._terminate()
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _start(self, rank: int, attempt: int) -> None:
        options = self._options
        environment = rank_environment(
            rank,
            instances=options.instances,
            processes_per_instance=options.processes_per_instance,
            master_port=str(options.master_port),
            max_restarts=options.max_restarts,
            attempt=attempt,
        )
        folder = self._folder(environment, attempt)
        # until it is known whose it would be
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        with warnings.catch_warnings():
            # Python 3.12 warns about forks with several threads; the only other threads of this
            # process are OpenBLAS's, which handle forks
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            _become(environment, folder, options.program)
        self._alive[pid] = rank
        if folder is not None:
            text = json.dumps({"pid": pid, "environment": environment})
            write_file(folder / RANK_FILE, text.encode())
        if self._is_stopping:
            os.kill(pid, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _folder(self, environment: Mapping[str, str], attempt: int) -> Path | None:
        if self._options.log_dir is None:
            return None
        instance = Path(self._options.log_dir, f"instance_{environment['GROUP_RANK']}")
        folder = instance / "fork" / f"attempt_{attempt}" / environment["LOCAL_RANK"]
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _terminate(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._options.grace_period)
        self._send(signal.SIGTERM)

    def _pass_on(self, _number: int, _frame: FrameType | None) -> None:
        self._is_stopping = True
        self._terminate()

    def _send(self, number: signal.Signals) -> None:
        for pid in tuple(self._alive):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _become(
    environment: Mapping[str, str], folder: Path | None, program: Sequence[str]
) -> NoReturn:
    exit_code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.environ.update(environment)
        if folder is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
            for descriptor, name in ((1, "stdout.log"), (2, "stderr.log")):
                os.dup2(os.open(folder / name, flags, 0o600), descriptor)
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()
        import_module("cloudtrain.runtime.taking_part").take_part()
        # it serves until the rank ends
        master_store = hold_master_store() if "torch" in sys.modules else None  # noqa: F841
        exit_code = _run_script(program)
    finally:
        os._exit(exit_code)


def _run_script(program: Sequence[str]) -> int:
    """Run the script as `python script arguments` would, and return its exit code. Its module and
    objects are never destroyed, because a destructor could wait for gloo's threads for ever."""
    # As Python writes `__file__`.
    path = os.path.abspath(program[0])
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = main
    sys.argv[:] = program
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    exit_code = _exit_code_of(main, path)
    _finish()
    return exit_code


def _exit_code_of(main: types.ModuleType, path: str) -> int:
    try:
        # not our `from __future__`
        code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
        exec(code, main.__dict__)
    except SystemExit as leaving:
        if isinstance(leaving.code, (int, type(None))):
            return (leaving.code or 0) & 0xFF
        sys.stderr.write(f"{leaving.code}\n")
        return 1
    except BaseException as error:  # noqa: BLE001 - the interpreter's own last resort
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_globals is not main.__dict__:
            traceback = traceback.tb_next  # our own frames are none of the script's
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        return 1
    return 0


def _finish() -> None:
    """Wait for threads, run exit handlers and flush output, as an interpreter does before it
    exits."""
    with suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]  # has no public name
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the job and exit with its exit code, through `os._exit` as the ranks do."""
    import argparse  # a plan reads this module too, and has no use for a parser

    parser = argparse.ArgumentParser(prog="fork_launcher", allow_abbrev=False)
    parser.add_argument("--instances", type=int, default=1)
    parser.add_argument("--processes-per-instance", type=int, default=1)
    parser.add_argument("--master-port", type=int, default=29500)
    parser.add_argument("--max-restarts", type=int, default=0)
    parser.add_argument("--grace-period", type=float, default=30.0)
    parser.add_argument("--log-dir")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if not options.program:
        parser.error("no script to run")

    gc.disable()  # a fifth of the time of these imports goes into collections that find nothing
    for name in PRELOADED:
        import_module(name)
    gc.freeze()  # what is here now is shared by all ranks; a collection would copy its pages
    gc.enable()
    os._exit(ForkLauncher(options).run())


if __name__ == "__main__":
    main()
