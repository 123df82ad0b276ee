"""Every process of a job, with its argv and environment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cloudtrain.launch.azureml.body import Body, Request
from cloudtrain.launch.azureml.distributions import started
from cloudtrain.launch.azureml.places import filled_command
from cloudtrain.launch.azureml.site import Site, service_site
from cloudtrain.launch.azureml.variables import LONG, common_variables
from cloudtrain.plans import Process


def view(request: Request, run_name: str, workspace_id: str, devices: int | None) -> tuple[Process, ...]:
    """What will run, for `Plan.processes`: all of `processes`, without variables that are long and say little.

    Args:
        request: the body of the job.
        run_name: the job's name.
        workspace_id: the workspace's ARM id.
        devices: GPUs of each instance; None where nobody knows.
    """
    body = Body(request)
    return tuple(map(_shortened, processes(body, service_site(body, run_name, workspace_id, devices))))


def processes(body: Body, site: Site) -> Iterator[Process]:
    """Every process with its whole environment, in the order of their start; none for Ray, which is not covered."""
    argv = ("bash", "-c", filled_command(body, site.paths))
    for each in started(body, site):
        env = {**each.defaults, **common_variables(body, site, each.instance), **each.env}
        yield Process(each.instance, each.role, argv, dict(sorted(env.items())), each.rank, each.local_rank)


def _shortened(process: Process) -> Process:
    return replace(process, env={name: value for name, value in process.env.items() if name not in LONG})
