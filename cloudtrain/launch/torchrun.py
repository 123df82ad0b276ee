"""The launcher `torchrun`: the command line of each agent, and the ranks that the agents start.

Verified against torch 2.13 (`torch/distributed/run.py`). Each instance is one agent. `cloudtrain.runtime.torchrun`
starts torchrun's agents. The agents meet through a file in the run's folder and the ranks through a store on loopback,
so no port is open to the network. Ranks are numbered in the order of the instances. The ranks write their output to
`<log_dir>/<random>/attempt_<n>/<local rank>/stdout.log` and `stderr.log`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cloudtrain.core.processes import Alike, Process
from cloudtrain.runtime.torchrun_words import guard_program


def agent_env(*, grace_period: int) -> dict[str, str]:
    """Return the environment variables of every agent. `grace_period` is in seconds.

    TORCH_ELASTIC_SHUTDOWN_TIMEOUT is the time in seconds that ranks have to exit after the agent passes on SIGTERM;
    default: 30. The flag `--shutdown-timeout` is not used, because older versions of torch refuse it.
    """
    return {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(grace_period)}


def agent_argv(
    program: Sequence[str],
    *,
    python: str,
    name: str,
    instance: int,
    instance_count: int,
    processes_per_instance: int,
    max_restarts: int,
    run_dir: str,
) -> list[str]:
    """Return the arguments of one instance's agent. `program` is the script and its arguments, or any other command."""
    from cloudtrain.runtime.torchrun import BACKEND

    return [
        python, "-m", "cloudtrain.runtime.torchrun",
        "--nnodes", str(instance_count),
        "--nproc-per-node", str(processes_per_instance),
        "--rdzv-backend", BACKEND,
        "--rdzv-endpoint", f"{run_dir}/rendezvous",
        "--rdzv-id", name,
        "--rdzv-conf", f"rank={instance}",
        "--max-restarts", str(max_restarts),
        "--redirects", "3",
        "--log-dir", f"{run_dir}/logs/instance_{instance}",
        *([] if _is_python(program) else ["--no-python"]),
        *guard_program(program),
    ]  # fmt: skip


def ranks(
    program: Sequence[str],
    *,
    python: str,
    instance_count: int,
    processes_per_instance: int,
    where: Sequence[int] | None = None,
    env: Mapping[str, str] | None = None,
) -> Alike:
    """Return the processes that the agents start, with the variables that a script can rely on.

    Args:
        program: the script and its arguments, or any other command.
        python: the interpreter of a Python script.
        instance_count: number of agents.
        processes_per_instance: number of ranks of each agent.
        where: the instance of each agent. Default: agent N is on instance N.
        env: additional variables for all processes.
    """
    argv = (python, "-u", *program) if _is_python(program) else tuple(program)
    places = range(instance_count) if where is None else where

    def rank(number: int) -> Process:
        agent, local_rank = divmod(number, processes_per_instance)
        variables = {
            "GROUP_RANK": str(agent),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(processes_per_instance),
            "RANK": str(number),
            "WORLD_SIZE": str(instance_count * processes_per_instance),
        }
        return Process(places[agent], "rank", argv, {**variables, **(env or {})}, number, local_rank)

    return Alike("rank", tuple((place, processes_per_instance) for place in places), rank)


def _is_python(program: Sequence[str]) -> bool:
    return program[0].endswith(".py")
