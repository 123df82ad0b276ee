"""Finish a run whose supervisor died: kill its remaining processes, complete its output, set its state to lost."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from cloudtrain.system.lock import ProcessLock
from cloudtrain.targets.local.service.folder import FINAL, RunFolder
from cloudtrain.targets.local.service.killing import kill_run
from cloudtrain.targets.local.service.queue import Queue

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Iterable

    from cloudtrain.launch.specification import LaunchSpecification

_PATIENCE = 5.0
"""Seconds to wait for the lock. A dying supervisor, or another process that finishes the run, holds it only briefly."""


def finish(run_dir: str, known: Iterable[int] = ()) -> None:
    """Write the final status of a run whose supervisor died. Do nothing for a run that is final or has a supervisor.
    `known`: the ids of the run's processes that the supervisor knew.

    Raises:
        OSError: the run's folder cannot be written.
    """
    folder = RunFolder(run_dir)
    lock = ProcessLock.take(Path(folder.lock), patience=_PATIENCE)
    if lock is None:
        return
    try:
        status = folder.read_status()
        if status is not None and status["state"] not in FINAL:
            kill_run(run_dir, known)
            from cloudtrain.errors import TargetError  # the guard does not need it until here

            who = f"the supervisor (process {status['pid']}) was killed"
            is_queued = status["state"] == "queued"
            reason = f"{who} while the run was queued" if is_queued else f"{who}, and with it every process of the run"
            try:
                _complete_output(folder)
            except (
                OSError,
                ValueError,
                LookupError,
                TargetError,
            ) as error:  # from the disk, the journal, or launch.json
                reason += f"; its output is incomplete: {getattr(error, 'message', error)}"
            folder.write_status({**status, "state": "lost", "ended": time.time(), "reason": reason})
    finally:
        lock.release()
    Queue.of(run_dir).settle()


def _complete_output(folder: RunFolder) -> None:
    from dataclasses import replace

    from cloudtrain.targets.local.service.output import Output

    spec = replace(folder.read_launch(), metrics=None)  # patterns may be slow, and the user waits for this process
    output = Output(folder, spec, lambda _instance, _local_rank: None)
    output.hidden = _secrets_of(spec)
    try:
        output.resume()
        output.drain()
    finally:
        output.close()


def _secrets_of(spec: LaunchSpecification) -> tuple[str, ...]:
    """Return the secrets to mask in the output. Only secrets from files and environment variables are included,
    because other secrets could need a user's input or the network."""
    from cloudtrain.runtime.errors import SetupError
    from cloudtrain.runtime.secret_values import VARIABLE, forms_of, references, resolved

    found, variables = dict[str, str](), {**os.environ, **spec.processes[0].env}
    for name, place in references(variables).items():
        try:
            if place.startswith(("env:", "file:")):
                found[name] = resolved({**variables, VARIABLE: json.dumps({name: place})})[name]
        except SetupError:
            continue
    return forms_of(found)
