"""Submit exactly one job for each run, although Slurm accepts any number of jobs of one name.

Each run has a folder with a lock, which sbatch itself holds while a request is in transit. Under the lock, a request is
sent only if the run has no job: the link `job` is missing, and neither `squeue` nor `sacct` has a job with the run's
name and comment. Each submission first creates a file for its own token in the run's folder. Withdrawing the run
removes these files, and a request whose file is missing is never sent, however late it arrives. If two jobs exist
nevertheless, the batch script lets only one of them run.
"""

from __future__ import annotations

import json
import secrets

from cloudtrain.core.plan import Plan
from cloudtrain.core.states import RunRef
from cloudtrain.errors import NameTaken, TargetError, TargetUnreachable
from cloudtrain.targets.slurm.layout import RunFolder
from cloudtrain.targets.slurm.service import scripts
from cloudtrain.targets.slurm.service.runner import CommandFailed, Runner


def send(runner: Runner, plan: Plan, *, again: bool) -> None:
    """Submit the run's job, unless the run already has a job.

    `again` tells whether an earlier process may have submitted the run.

    Raises:
        NameTaken: the run already has a job and `again` is false, or the run belongs to another user.
        TargetError: sbatch refused the job.
        TargetUnreachable: the cluster did not answer, or another process submits or withdrew the run.
    """
    folder, token = str(plan.request["folder"]), secrets.token_hex(16)
    found = _call(runner, scripts.OPEN, folder, plan.run_name, token)
    if not found:
        found = _send(runner, plan, folder, token)
    if found and not again:
        raise NameTaken(f"a run `{plan.run_name}` already exists: job {found}", hint="give the job another name")


def _send(runner: Runner, plan: Plan, folder: str, token: str) -> str:
    """Send the request and return an empty text. If the run already has a job, send nothing and return its number."""
    outputs = json.dumps(plan.request["outputs"])
    script = str(plan.request["script"]).encode()
    argv = plan.request["argv"]
    answer = _call(runner, scripts.SEND, folder, plan.run_name, token, outputs, *argv, stdin=script)
    word, _, job = answer.partition(" ")
    return job if word == "found" else ""


def find(runner: Runner, folder: RunFolder, ref: RunRef) -> str:
    """Return the number of the run's job; empty if the run has none.

    Raises:
        NameTaken: the run belongs to another user.
    """
    return _call(runner, scripts.FIND, folder.path, ref.name)


def withdraw(runner: Runner, folder: RunFolder, ref: RunRef) -> bool:
    """Make sure that no request of the run is sent from now on. Return False if the run already has a job."""
    return not _call(runner, scripts.WITHDRAW, folder.path, ref.name)


def _call(runner: Runner, script: str, folder: str, name: str, *arguments: str, stdin: bytes = b"") -> str:
    try:
        return runner.run(script, folder, name, *arguments, stdin=stdin).decode().strip()
    except CommandFailed as error:
        raise _explain(error, name) from None


def _explain(error: CommandFailed, name: str) -> TargetError:
    if error.exit_status == scripts.FOREIGN:
        return NameTaken(f"the run `{name}` belongs to another user", hint="give the job another name")
    if error.exit_status == scripts.BUSY:
        return TargetUnreachable(f"another command submits `{name}`", hint="run the same command again in a minute")
    if error.exit_status == scripts.NO_LOCKS:
        hint = (
            "ask for a mount with locks (Lustre: the option `flock`), or set `shared_dir` in `[slurm]` to a folder on "
            "another file system"
        )
        return TargetError(f"the file system of `shared_dir` cannot lock files: {error.message}", hint=hint)
    if error.exit_status == scripts.WITHDRAWN:
        return TargetUnreachable(f"another command withdrew `{name}`", hint="run the same command again")
    if error.exit_status == scripts.REFUSED:
        return TargetError(
            f"Slurm refused the job: {error.message}", hint="run `cloudtrain check` to see what the cluster accepts"
        )
    return error
