"""Emulate jobs in entrypoint mode: cloudtrain's real launcher runs for every host, with the container's argv."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from cloudtrain.core.processes import Process
from cloudtrain.errors import JobError, Problem
from cloudtrain.launch import mpirun, torchrun
from cloudtrain.launch.loopback import OPEN_MPI
from cloudtrain.runtime.errors import SetupError
from cloudtrain.runtime.sagemaker_launcher import container_entrypoint
from cloudtrain.runtime.sagemaker_launcher.machine import Machine
from cloudtrain.runtime.sagemaker_launcher.network import EMULATION, Network
from cloudtrain.runtime.sagemaker_launcher.plan import LaunchPlan, launch_plan
from cloudtrain.targets.sagemaker.emulate.paths import local_endpoint, local_variables, with_loopback
from cloudtrain.targets.sagemaker.emulate.stage import HostLaunch, Stage
from cloudtrain.targets.sagemaker.launch.job import Host, hyperparameters_file, input_data_config, resource_config


def entrypoint_host(stage: Stage, host: Host) -> HostLaunch:
    """Return the processes of one host: the launcher and its children.

    Raises:
        JobError: the launcher would refuse the job, or the job needs mpirun, which is missing on this machine.
    """
    plan = _plan(stage, host)
    program = plan.programs[0] if plan.programs else None
    variables = local_variables(stage.variables(host))
    if program is not None and program.role == "torchrun":
        variables |= stage.torchrun_variables(host)
    if program is not None and program.role == "mpirun":
        variables = {**OPEN_MPI, **variables, **stage.mpirun_variables(host)}
    if plan.endpoints:
        variables[EMULATION] = json.dumps({endpoint: local_endpoint(endpoint) for endpoint in sorted(plan.endpoints)})
    role = "process" if program is not None and program.role == "process" else "launcher"
    argv = tuple(container_entrypoint(stage.root(host), stage.python))
    launched = tuple(
        Process(host.index, each.role, each.argv, each.env) for each in plan.programs if role == "launcher"
    )
    notes = (f"`{plan.requirements}` is not installed here",) if plan.requirements else ()
    return HostLaunch(
        (Process(host.index, role, argv, variables),),
        (*launched, *_ranks(stage, host, plan)),
        ranks=plan.processes_per_instance if _RANKS_OF & {each.role for each in plan.programs} else 0,
        endpoints=plan.endpoints,
        unpacks=True,
        notes=notes,
    )


_RANKS_OF = {"torchrun", "mpirun"}


def _plan(stage: Stage, host: Host) -> LaunchPlan:
    """Return the launcher's plan with the containers' addresses; ports on this machine are chosen at start."""
    request, known = stage.request_of(host), stage.account.machine
    machine = Machine(
        python=stage.python, cpus=known.cpus, gpus=stage.gpus(host), variables=dict(stage.variables(host))
    )
    resource = with_loopback(resource_config(request, host))
    try:
        return launch_plan(
            hyperparameters_file(request),
            resource,
            input_data_config(request),
            machine,
            root=stage.root(host),
            network=Network({}),
        )
    except SetupError as error:
        message = f"on SageMaker the job would stop at once: {error.message}"
        raise JobError(
            [Problem(("sagemaker_overrides", "HyperParameters"), message, error.hint, code="CT039")]
        ) from None


def _ranks(stage: Stage, host: Host, plan: LaunchPlan) -> Sequence[Process]:
    """Return the ranks that this host's launcher starts."""
    program = plan.programs[0] if plan.programs else None
    if program is None or program.role not in _RANKS_OF:
        return ()
    count = plan.processes_per_instance
    if program.role == "mpirun":
        start = program.argv.index(stage.python) if stage.python in program.argv else len(program.argv) - 1
        return tuple(mpirun.ranks(program.argv[start:], processes=count))
    script = program.argv[program.argv.index("--master_port") + 2 :]
    script = script[1:] if script[0] == "--no_python" else script
    own = plan.hosts.index(host.name)
    every = torchrun.ranks(script, python=plan.python, instance_count=len(plan.hosts), processes_per_instance=count)
    return [replace(every.make(own * count + number), instance=host.index) for number in range(count)]
