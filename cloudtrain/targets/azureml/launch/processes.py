"""Every process of a job, with its argv and environment."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from cloudtrain.core.processes import Alike, Process, Processes
from cloudtrain.targets.azureml.launch.body import Body, Request
from cloudtrain.targets.azureml.launch.distributions import Group, process_groups
from cloudtrain.targets.azureml.launch.layout import JobLayout, service_layout
from cloudtrain.targets.azureml.launch.places import fill_command
from cloudtrain.targets.azureml.launch.variables import common_variables


def view(request: Request, run_name: str, workspace_id: str, devices: int | None) -> Processes:
    """Return the job's processes for `Plan.processes`, without the environment variables in `variables.LONG`.

    Args:
        request: the body of the job.
        run_name: the job's name.
        workspace_id: the workspace's ARM id.
        devices: number of GPUs of each instance; None if unknown.
    """
    body = Body(request)
    return Processes(_groups(body, service_layout(body, run_name, workspace_id, devices), whole=False))


def processes(body: Body, layout: JobLayout) -> Iterator[Process]:
    """Yield every process with all its variables, in order of start; none for Ray, whose processes are unknown."""
    return iter(Processes(_groups(body, layout, whole=True)))


def _groups(body: Body, layout: JobLayout, *, whole: bool) -> Iterator[Alike]:
    argv = ("bash", "-c", fill_command(body, layout.paths))

    @lru_cache(maxsize=4)
    def variables_of(instance: int) -> dict[str, str]:
        """Return the variables that all processes of an instance share. Results are cached."""
        return common_variables(body, layout, instance, whole=whole)

    def alike(group: Group) -> Alike:
        def process(number: int) -> Process:
            made = group.make(number)
            env = {**made.defaults, **variables_of(made.instance), **made.env}
            return Process(made.instance, group.role, argv, dict(sorted(env.items())), made.rank, made.local_rank)

        return Alike(group.role, group.spread, process)

    return map(alike, process_groups(body, layout))
