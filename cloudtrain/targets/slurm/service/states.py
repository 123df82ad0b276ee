"""Slurm's job states, and the run states that they mean.

The job states are those of `squeue(1)`, JOB STATE CODES, in Slurm 22.05 to 25.05.
"""

from __future__ import annotations

from typing import NamedTuple

from cloudtrain.core.states import RunState


class Meaning(NamedTuple):
    """The run state for a job state of Slurm, and the reason if the cluster ended the job."""

    state: RunState
    reason: str | None = None


_PENDING, _PREPARING, _RUNNING = Meaning(RunState.PENDING), Meaning(RunState.PREPARING), Meaning(RunState.RUNNING)

MEANINGS: dict[str, Meaning] = {
    "BOOT_FAIL": Meaning(RunState.FAILED, "a node did not boot"),
    "CANCELLED": Meaning(RunState.STOPPED, "the job was cancelled"),
    "COMPLETED": Meaning(RunState.SUCCEEDED),
    "COMPLETING": _RUNNING,
    "CONFIGURING": _PREPARING,
    "DEADLINE": Meaning(RunState.FAILED, "the job's deadline has passed"),
    "EXPEDITING": _PENDING,
    "FAILED": Meaning(RunState.FAILED),
    "LAUNCH_FAILED": Meaning(RunState.FAILED, "the job could not be launched on its nodes"),
    "NODE_FAIL": Meaning(RunState.FAILED, "a node of the job was lost"),
    "OUT_OF_MEMORY": Meaning(RunState.FAILED, "a process used more memory than the job has"),
    "PENDING": _PENDING,
    "POWER_UP_NODE": _PREPARING,
    "PREEMPTED": Meaning(RunState.FAILED, "another job took the nodes"),
    "RECONFIG_FAIL": Meaning(RunState.FAILED, "the nodes could not be configured"),
    "REQUEUED": _PENDING,
    "REQUEUE_FED": _PENDING,
    "REQUEUE_HOLD": _PENDING,
    "RESIZING": _RUNNING,
    "RESV_DEL_HOLD": _PENDING,
    "REVOKED": Meaning(RunState.LOST, "another cluster of the federation has the job"),
    "RUNNING": _RUNNING,
    "SIGNALING": _RUNNING,
    "SPECIAL_EXIT": _PENDING,
    "STAGE_OUT": _RUNNING,
    "STOPPED": _RUNNING,
    "SUSPENDED": _RUNNING,
    "TIMEOUT": Meaning(RunState.FAILED, "the time limit was reached"),
    "UPDATE_DB": _RUNNING,
}
"""The meaning of each state. `STOPPED` and `SUSPENDED` jobs keep their nodes and continue later."""


def meaning_of(word: str) -> Meaning:
    """Return the meaning of a Slurm state, also for forms such as `CANCELLED by 0` and `CANCELLED+`. An unknown state
    counts as running."""
    parts = word.split()
    return MEANINGS.get(parts[0].rstrip("+") if parts else "", _RUNNING)


_ADVICE = {
    "JobHeld": "`scontrol release {job}` releases it, if you or an administrator held it",
    "job requeued in held state": "`scontrol release {job}` releases it",
    "launch failed requeued held": "its nodes could not start it; `scontrol release {job}` tries again",
    "BeginTime": "Slurm starts it again soon; `scontrol show job {job}` says when",
    "Dependency": "`scontrol show job {job}` says for which job",
    "DependencyNeverSatisfied": "the job that it depends on failed; stop the run and submit it without that",
    "Partition": "`scontrol show partition` says whether it is up and what it allows",
    "Assoc": "a limit of your account; `sacctmgr show assoc user=$USER` shows it",
    "QOS": "a limit of the QOS; `sacctmgr show qos` shows it",
    "Invalid": "stop the run and correct `account`, `qos` or `reservation` in `[slurm]`",
    "ReqNodeNotAvail": "nodes that it needs are down or reserved; `sinfo -R` says why",
    "Nodes required": "nodes that it needs are down or reserved; `sinfo -R` says why",
    "BadConstraints": "no node fits; stop the run and correct `constraint` in `[slurm]`",
}
"""What a user can do about a reason why a job waits, by the beginning of the reason. Others, such as `Resources` and
`Priority`, need only time."""


def advice_for(reason: str) -> str | None:
    """Return what a user can do about Slurm's reason why a job waits; None if the job only needs time.

    `{job}` in the text stands for the job's number."""
    words = [word for word in _ADVICE if reason.startswith(word)]
    return _ADVICE[max(words, key=len)] if words else None
