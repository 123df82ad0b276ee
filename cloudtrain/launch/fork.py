"""The launcher `fork`: its command line, and the ranks that it forks. See `cloudtrain.runtime.fork_launcher`.

One launcher forks the ranks of all simulated instances, so torch is imported once and a restart affects all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.core.processes import Alike, Process
from cloudtrain.runtime.fork_launcher import rank_environment

RENDEZVOUS_PORT = "${{ports.rendezvous}}"
"""Replaced at start by a free port. This is the only part of a local run that a plan cannot know."""


def launcher_argv(
    program: Sequence[str],
    *,
    python: str,
    instance_count: int,
    processes_per_instance: int,
    max_restarts: int,
    grace_period: int,
    log_dir: str,
) -> list[str]:
    """Return the launcher's command line. `program` is the script and its arguments; `grace_period` is in seconds."""
    return [
        python, "-u", "-m", "cloudtrain.runtime.fork_launcher",
        "--instances", str(instance_count),
        "--processes-per-instance", str(processes_per_instance),
        "--master-port", RENDEZVOUS_PORT,
        "--max-restarts", str(max_restarts),
        "--grace-period", str(grace_period),
        "--log-dir", log_dir,
        *program,
    ]  # fmt: skip


def ranks(program: Sequence[str], *, instance_count: int, processes_per_instance: int, max_restarts: int) -> Alike:
    """Return the forked processes, with all variables that the launcher sets."""

    def rank(number: int) -> Process:
        env = rank_environment(
            number,
            instances=instance_count,
            processes_per_instance=processes_per_instance,
            master_port=RENDEZVOUS_PORT,
            max_restarts=max_restarts,
        )
        instance, local_rank = divmod(number, processes_per_instance)
        return Process(instance, "rank", tuple(program), env, number, local_rank)

    return Alike("rank", tuple((instance, processes_per_instance) for instance in range(instance_count)), rank)
