"""torchrun: the command line of each agent, and the ranks that it starts.

Verified against torch 2.13 (`torch/distributed/run.py`). Each instance is one agent. Without restarts the agents meet
at a fixed address on loopback, as SageMaker's containers and the bare command do: ranks follow the instances, and the
ranks start at once. Restarts under gloo work only with the c10d rendezvous, which waits up to 0.3 s before it joins
and gives out ranks as it likes; one agent alone then finds its own free port with `--standalone`. The ranks' output
goes to `<log_dir>/<random>/attempt_<n>/<local rank>/stdout.log` and `stderr.log`.
"""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.plans import Process

RENDEZVOUS_PORT = "${{ports.rendezvous}}"
"""Replaced at start by a port that is free then; the only thing about a local run that a plan cannot know."""


def agent_env(*, grace_period: int, max_restarts: int) -> dict[str, str]:
    """What every agent finds in its environment. `grace_period` is in seconds.

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE: without it, ranks restarted under gloo read the dead ranks' addresses from the
    shared store and fail (pytorch issue 135712, seen on torch 2.13). It must not be set where the agents meet at a
    fixed port, which the ranks' own store would want again.
    TORCH_ELASTIC_SHUTDOWN_TIMEOUT: how long ranks have after the SIGTERM that the agent passes on to them; 30 unless
    given. As a variable and not as `--shutdown-timeout`, because older versions of torch would refuse the flag.
    """
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if max_restarts else {}
    return own_store | {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(grace_period)}


def ports(*, instance_count: int, max_restarts: int) -> tuple[str, ...]:
    """The names of the ports that the agents need from the launcher."""
    return () if instance_count == 1 and max_restarts else ("rendezvous",)


def agent_argv(
    program: Sequence[str],
    *,
    python: str,
    name: str,
    instance: int,
    instance_count: int,
    processes_per_instance: int,
    max_restarts: int,
    log_dir: str,
) -> list[str]:
    """The argv of one instance's agent. `program` is the script and its arguments, or a command of any kind."""
    meeting = _meeting(name, instance, instance_count, max_restarts)
    return [
        python, "-m", "torch.distributed.run",
        "--nnodes", str(instance_count),
        "--nproc-per-node", str(processes_per_instance),
        *meeting,
        "--max-restarts", str(max_restarts),
        "--redirects", "3",
        "--log-dir", log_dir,
        *([] if _is_python(program) else ["--no-python"]),
        *program,
    ]  # fmt: skip


def _meeting(name: str, instance: int, instance_count: int, max_restarts: int) -> list[str]:
    if not max_restarts:
        place = ["--master-addr", "127.0.0.1", "--master-port", RENDEZVOUS_PORT]
        return [*place, "--node-rank", str(instance)] if instance_count > 1 else place
    if instance_count == 1:
        return ["--standalone"]
    return [
        "--rdzv-backend", "c10d",
        "--rdzv-endpoint", f"127.0.0.1:{RENDEZVOUS_PORT}",
        "--rdzv-id", name,
        "--rdzv-conf", f"is_host={int(instance == 0)}",
        "--local-addr", "127.0.0.1",
    ]  # fmt: skip


def ranks(
    program: Sequence[str],
    *,
    python: str,
    instance_count: int,
    processes_per_instance: int,
) -> list[Process]:
    """The processes that the agents start, with the variables that a script can rely on."""
    argv = (python, "-u", *program) if _is_python(program) else tuple(program)
    return [
        Process(
            instance=instance,
            role="rank",
            rank=instance * processes_per_instance + local_rank,
            local_rank=local_rank,
            argv=argv,
            env={
                "GROUP_RANK": str(instance),
                "LOCAL_RANK": str(local_rank),
                "LOCAL_WORLD_SIZE": str(processes_per_instance),
                "RANK": str(instance * processes_per_instance + local_rank),
                "WORLD_SIZE": str(instance_count * processes_per_instance),
            },
        )
        for instance in range(instance_count)
        for local_rank in range(processes_per_instance)
    ]


def _is_python(program: Sequence[str]) -> bool:
    return program[0].endswith(".py")
