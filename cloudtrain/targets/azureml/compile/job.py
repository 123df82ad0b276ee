"""Compile a job, a target and a context into a plan."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import TYPE_CHECKING, NamedTuple

from cloudtrain.errors import JobError, Problem
from cloudtrain.job.data import references_in
from cloudtrain.job.distribution import MPI, DeepSpeed, Horovod
from cloudtrain.job.model import MAX_COUNT, format_duration, merged, overrides_of
from cloudtrain.job.training import TrainingJob
from cloudtrain.machines.choose import MachineGroup, Machines
from cloudtrain.machines.spending import Spending, Use
from cloudtrain.plans.plan import CompileContext, Plan, Upload
from cloudtrain.plans.processes import Processes
from cloudtrain.rules.engine import value_at
from cloudtrain.targets.azureml.compile.places import (
    ChosenEnvironment,
    command_of,
    environment_of,
    inputs_of,
    outputs_of,
    places_of,
)
from cloudtrain.targets.azureml.fields import (
    CODE,
    COMPUTE,
    DISPLAY_NAME,
    ENVIRONMENT,
    EVENTS,
    EXPERIMENT,
    IDENTITIES,
    NOTIFICATIONS,
    QUEUE,
    VARIABLES,
    JsonMapping,
    JsonObject,
    in_order,
    sent,
)
from cloudtrain.targets.azureml.launch import INTERFACE, processes, service_layout
from cloudtrain.targets.azureml.parts import (
    code_id,
    compute_id,
    distribution_of,
    is_cluster,
    is_own_type,
    is_virtual_cluster,
    machines_of,
    without,
)
from cloudtrain.targets.azureml.reading import OVERRIDES, Body, distribution_in, machines_in
from cloudtrain.targets.azureml.settings import AzureML, AzureMLAccount
from cloudtrain.targets.common.compiling import (
    Problems,
    hyperparameter_text,
    stall_variables,
    tracking_variables,
)

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob


# Convert options of mpirun to environment variables that Open MPI reads, because Azure ML builds
# the mpirun line itself.


def option_variables(job: TrainingJob) -> dict[str, str]:
    """`NAME` replaces the mpirun option `-x NAME=VALUE`, and `OMPI_MCA_NAME` replaces `--mca NAME
    VALUE`."""
    distribution = job.distribution
    if not isinstance(distribution, MPI | Horovod):
        return {}
    try:
        return dict(_pairs(shlex.split(distribution.options)))
    except ValueError as error:
        path = ("distribution", "options")
        message = f"Azure ML builds the mpirun line itself, and {error}"
        hint = (
            "`-x NAME=VALUE` and `--mca NAME VALUE` work here, because Open MPI reads them "
            "from variables too"
        )
        raise JobError([Problem(path, message, hint, code="CT037")]) from None


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the variables for options of mpirun. Raises `ValueError` for other options."""
    rest = iter(words)
    for word in rest:
        if word == "-x":
            name, equals, value = next(rest, "").partition("=")
            if not name:
                raise ValueError("`-x` needs the name of a variable")
            if equals:  # without a value it forwards a variable, but every process has all of them
                yield name, value
        elif word in ("-mca", "--mca"):
            setting = next(rest, "")
            text = next(rest, None)
            if text is None:
                raise ValueError(f"`{word}` needs a name and a value")
            yield f"OMPI_MCA_{setting}", text
        else:
            raise ValueError(f"`{word}` cannot be set by an environment variable")


# Environment variables that make the processes of several instances use the right network cards.

INFINIBAND = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "NCCL_IB_PCI_RELAXED_ORDERING": "1",
    "NCCL_SOCKET_IFNAME": INTERFACE,
    "UCX_NET_DEVICES": INTERFACE,
    "UCX_TLS": "tcp",
}
"""Variables for InfiniBand, whose cards NCCL finds by itself. Relaxed ordering lets virtual
machines use the cards' full rate. UCX, with which MPI starts up, stays on Ethernet (Azure's
azureml-examples, gpu_perf, and the pages of its ACPT images)."""

_OF_MPI = ("UCX_NET_DEVICES", "UCX_TLS")
"""Variables left out for jobs of the type `mpi`. The sources run NCCL's tests, in which MPI starts
the ranks and NCCL carries the data. A job of the type `mpi` may carry its data by MPI itself, and
these variables would keep that data off InfiniBand."""

TOPOLOGY = "/opt/microsoft/ndv4-topo.xml"
"""Distances between cards and GPUs on the ND A100 v4 series: a file in Azure's ACPT images."""

_TOPOLOGY_FAMILIES = ("ND A100 v4", "NDm A100 v4")


def network_variables(job: TrainingJob, machines: MachineGroup, environment: str) -> dict[str, str]:
    """Return the network variables that the job's processes need; empty if none are needed. The
    job's own variables override them. `environment` is the id of the job's environment."""
    variables: dict[str, str] = {}
    if isinstance(job.distribution, DeepSpeed) and job.distribution.launch == "mpi":
        # deepspeed.comm reads it without a default under Azure ML's MPI, and fails with a KeyError.
        variables["NCCL_SOCKET_IFNAME"] = INTERFACE

    row = machines.known
    if machines.count == 1 or row is None:
        return variables
    if not row.gpus or row.interconnect != "rdma":
        return variables
    variables |= INFINIBAND
    if isinstance(job.distribution, MPI):
        variables = without(variables, _OF_MPI)
    if row.family in _TOPOLOGY_FAMILIES and "/environments/acpt-" in environment:
        variables["NCCL_TOPO_FILE"] = TOPOLOGY
    return variables


# Write the body of the job's PUT, field by field.
#
# Fields that the SDK always sends are always present, even if empty, so that the body can be
# compared with the SDK's.

RUN_PROPERTY = "cloudtrain.run"
"""The property that marks a job as ours; its value is the run's name. Properties, unlike tags, can
never be changed."""


class Parts(NamedTuple):
    """A job and the decisions from which the request is written."""

    job: TrainingJob
    target: AzureML
    context: CompileContext
    machines: MachineGroup
    distribution: JsonObject | None
    environment: ChosenEnvironment

    @property
    def account(self) -> AzureMLAccount:
        account: AzureMLAccount = self.context.account
        return account


def request_of(parts: Parts, problems: Problems) -> JsonObject:
    """Parts with problems are left out, and their problems are added to `problems`."""
    job = parts.job
    target = parts.target
    account = parts.account
    run_name = parts.context.run_name
    body = sent(job, target)

    body.setdefault(DISPLAY_NAME, run_name)
    body.setdefault(EXPERIMENT, job.name)
    body["command"] = problems.collect_from(lambda: command_of(job), "")
    if job.source_dir is not None:
        body[CODE] = code_id(account.workspace_id, parts.context.bundle.sha256)
    body[ENVIRONMENT] = parts.environment.id
    if target.compute is not None:
        body[COMPUTE] = compute_id(account.workspace_id, target.compute)

    ray_fields = body.pop("distribution", {})  # only Ray's come from the table of fields
    if parts.distribution is not None:
        body["distribution"] = parts.distribution | ray_fields
    body["resources"] = _resources(parts, body.get("resources", {}))
    if "limits" in body:
        body["limits"] = {"jobLimitsType": "Command", **body["limits"]}
    if job.spot is not None:
        spot_problems = list(_spot_problems(target))
        problems += spot_problems
        if not spot_problems:
            body[QUEUE] = {"jobTier": "Spot", **body.get(QUEUE, {})}
    if "identity" in body and target.identity is None:  # only a managed identity has ids
        body["identity"] = {"identityType": IDENTITIES.encode("managed"), **body["identity"]}
    if target.notifications is not None:
        events = EVENTS.encode(target.notifications.on)
        body[NOTIFICATIONS] = {"emailOn": events, **body[NOTIFICATIONS]}

    body["inputs"] = inputs_of(job, account, problems)
    body["outputs"] = outputs_of(job, run_name, body["outputs"], problems)
    body[VARIABLES] = _variables(parts, problems)
    body["properties"] = {RUN_PROPERTY: run_name}
    return {"properties": in_order(body)}


def _resources(parts: Parts, chosen: JsonObject) -> JsonObject | None:
    """Return the body's `resources`, `chosen` included; None for a single instance of a cluster,
    which is the service's default."""
    resources = parts.job.resources
    compute = parts.target.compute
    name = parts.machines.instance_type

    # Clusters have only one type, which the body does not name, unless they are of Kubernetes or
    # virtual.
    has_own_type = is_cluster(compute) and not is_own_type(compute, name)
    if name and not has_own_type:
        chosen = {"instanceType": name, **chosen}

    has_count = resources.instance_count > 1 or "instance_count" in resources.model_fields_set
    if not chosen and not has_count:
        return None
    return {"instanceCount": resources.instance_count, "properties": {}, **chosen}


def _spot_problems(target: AzureML) -> Iterator[Problem]:
    """Yield why a job cannot have spot capacity."""
    compute = target.compute
    if is_cluster(compute) and not is_virtual_cluster(compute):
        message = (
            "a job cannot choose spot capacity on a cluster: it is a setting of the "
            f"cluster `{compute}`"
        )
        hint = "remove `spot` and name a cluster of the tier `low_priority`, or remove `compute`"
        yield Problem(("spot",), message, hint, code="CT031")
    if target.job_tier is not None:
        message = f"`spot` is a tier of its own, so `job_tier: {target.job_tier}` contradicts it"
        yield Problem(("spot",), message, "remove one of them", code="CT018")


def _variables(parts: Parts, problems: Problems) -> dict[str, str]:
    """Return the body's environment variables. The job's own ones override the others."""
    job = parts.job
    for name, text in job.environment.variables.items():
        if references_in(text):
            path = ("environment", "variables", name)
            message = (
                f"Azure ML replaces references only in the command, so `{name}` would contain the "
                f"text `{text}`"
            )
            hint = "pass it as a hyperparameter, or read `AZURE_ML_INPUT_NAME` in the script"
            problems.append(Problem(path, message, hint, code="CT031"))

    variables = network_variables(job, parts.machines, parts.environment.id)
    variables |= problems.collect_from(lambda: option_variables(job), {})
    # the service keeps `outputs` of the working directory
    variables |= tracking_variables(job, "azureml", "outputs", None)
    variables |= stall_variables(job)
    variables |= job.environment.variables
    if job.checkpoint is not None and "keep" in job.checkpoint.model_fields_set:
        variables["CLOUDTRAIN_CHECKPOINT_KEEP"] = str(job.checkpoint.keep)
    return variables


# The first lines of a plan, for the user: machines, processes, environment, checkpoints and highest
# cost.


def summary(
    parts: Parts, body: Body, machines: MachineGroup, started: Processes
) -> Iterator[tuple[str, str]]:
    """Yield the lines as pairs of label and text, in reading order. `machines` are those of the
    body."""
    job = parts.job
    account = parts.account
    checkpoint = body.outputs.get("checkpoint", {})
    limit = body.max_runtime
    cost = ""
    if machines.known is not None:
        use = Use(Machines((machines,)), limit or body.lifetime)
        cost = Spending.of([use]).text(is_spot=body.is_spot)
    processes_text = str(len(started) or "")
    if started and body.instances > 1:
        instances = len(started.started)
        processes_text += f" on {instances} of {body.instances} instances"
    pairs = {
        "target": f"azureml (workspace {account.workspace} in {account.resource_group})",
        "compute": body.compute_name,
        "instances": _instances(machines, body),
        "processes": processes_text,
        "distribution": distribution_in(job, body).type,
        "environment": _environment(parts, body),
        "script": job.entry_point or job.command,
        "checkpoint": checkpoint.get("uri"),
        "max runtime": format_duration(limit) if limit else "none: it runs until it ends",
        "tier": body.tier,
        "cost": cost,
    }
    for label, text in pairs.items():
        if text:
            yield label, text


def _instances(machines: MachineGroup, body: Body) -> str:
    """Say how many machines of which type the job gets."""
    row = machines.known
    count = machines.count
    if row is None:
        left_open = "any type" if body.compute is None else "the type of the cluster"
        return f"{count} x {machines.instance_type or left_open}"
    network = ", InfiniBand" if row.interconnect == "rdma" and count > 1 else ""
    return f"{count} x {row.name} ({row.hardware}{network})"


def _environment(parts: Parts, body: Body) -> str:
    """Describe the environment: what it is made of, or its id if it exists already."""
    upload = parts.environment.upload
    if upload is None or body.environment != parts.environment.id:
        return body.environment
    environment = parts.job.environment
    registered = ""
    if environment.asset_name:
        *_, asset, _, version = upload.destination.split("/")
        registered = f", registered as {asset}:{version}"

    if upload.folder is not None:
        return f"built from {upload.folder}/{environment.dockerfile or 'Dockerfile'}{registered}"
    assert environment.image is not None, "it is made of an image or a folder"
    text = f"made of {environment.image.of('azureml')}"
    if environment.conda_file is not None:
        text = f"{text} with {environment.conda_file}"
    return f"{text}{registered}"


def compile_azureml(job: AnyJob, target: AzureML, context: CompileContext) -> Plan:
    """Return the plan, whose `request` is the body of the job's PUT. It is complete before any
    upload, because the code's id contains the code's hash. Raises `JobError` if the job asks for
    something that Azure ML does not have."""
    if isinstance(job, TrainingJob):
        return _compile(job, target, context, Problems())
    from cloudtrain.targets.azureml.compile import processing

    problems = Problems(processing.shard_problems(job))
    plan = _compile(processing.as_command_job(job), target, context, problems)
    return processing.as_processing_plan(job, plan)


def _compile(
    job: TrainingJob, target: AzureML, context: CompileContext, problems: Problems
) -> Plan:
    """Collect all problems before any is raised."""
    parts = parts_of(job, target, context, problems)
    body = request_of(parts, problems)
    overrides = overrides_of(job, "azureml")
    # If the overrides break the body, the rules check the body without them.
    request = problems.collect_from(lambda: overridden(body, overrides, job.hyperparameters), body)
    plan = _plan(parts, request)
    problems.raise_if_any(plan)
    return plan


def _plan(parts: Parts, request: JsonObject) -> Plan:
    context = parts.context
    workspace_id = parts.account.workspace_id
    body = Body(request)
    machines = machines_in(body, parts.machines, parts.account)

    gpus = machines.known.gpus if machines.known is not None else None
    layout = service_layout(body, context.run_name, workspace_id, gpus)
    started = processes(body, layout, with_long=False)
    places = places_of(request, context.run_name, workspace_id)
    return Plan(
        target="azureml",
        run_name=context.run_name,
        job_name=parts.job.name,
        request=request,
        uploads=tuple(_uploads(parts, body)),
        processes=started,
        summary=tuple(summary(parts, body, machines, started)),
        place=parts.account.place,
        outputs={name: uri.partition("?")[0] for name, uri in places.items()},  # without keys (SAS)
    )


def parts_of(
    job: TrainingJob, target: AzureML, context: CompileContext, problems: Problems
) -> Parts:
    """If a part cannot be decided, the reasons are added to `problems` and a placeholder is
    used."""
    # With placeholders, cloudtrain can report a job's other mistakes even if its machines are not
    # valid.
    known = problems.collect_from(lambda: machines_of(job, context.account), None)
    machines = known or MachineGroup("", job.resources.instance_count, None)
    distribution = None
    # Without machines the number of processes would be another problem. The libraries of SageMaker
    # are one on any machines.
    if known is not None or job.distribution.type in ("smddp", "smp"):
        distribution = problems.collect_from(lambda: distribution_of(job, machines), None)
    environment = problems.collect_from(lambda: environment_of(job, context), ChosenEnvironment(""))
    return Parts(job, target, context, machines, distribution, environment)


def overridden(
    request: JsonMapping, overrides: JsonMapping, hyperparameters: Mapping[str, object]
) -> JsonObject:
    """Merge the user's overrides into the body's `properties`. A command there may name the values
    of a sweep, which a trial has among its `hyperparameters`."""
    properties = merged(request["properties"], overrides)
    if isinstance(overrides.get("command"), str):
        for name, value in hyperparameters.items():
            mark = f"${{{{search_space.{name}}}}}"
            properties["command"] = properties["command"].replace(mark, hyperparameter_text(value))

    problems = list(_body_problems(request["properties"], properties))
    if problems:
        raise JobError(problems)
    return {**request, "properties": properties}


def _body_problems(written: JsonMapping, properties: JsonMapping) -> Iterator[Problem]:
    """Yield a problem for each part of the `properties` that has another type than readers of a
    body rely on, or is too large. `written` are the properties without the overrides."""
    for name, (kind, word) in _SHAPES.items():
        is_there = name in written or name in properties
        if is_there and not isinstance(properties.get(name), kind):
            message = f"`{name}` must stay {word} in the body"
            yield Problem((OVERRIDES, name), message, "leave it out of the overrides", code="CT035")
    for section, name in _COUNTS:
        count = value_at(properties, section, name)
        if isinstance(count, int) and count > MAX_COUNT:  # such as `instanceCount: 100000`
            path = (OVERRIDES, section, name)
            message = f"`{name}` must be at most {MAX_COUNT}, not `{count}`"
            yield Problem(path, message, f"write {MAX_COUNT} or less", code="CT035")


_COUNTS = (
    ("resources", "instanceCount"),
    ("distribution", "processCountPerInstance"),
    ("distribution", "workerCount"),
    ("distribution", "parameterServerCount"),
)


_SHAPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "command": (str, "a text"),
    **dict.fromkeys((VARIABLES, "inputs", "outputs", "properties", "tags"), (dict, "a mapping")),
    **dict.fromkeys(("distribution", "resources", "limits"), ((dict, NoneType), "a mapping")),
}
"""The types that every reader of a body relies on."""


def _uploads(parts: Parts, body: Body) -> list[Upload]:
    """Uploads that the overrides have replaced are left out."""
    bundle = parts.context.bundle
    code = code_id(parts.account.workspace_id, bundle.sha256)
    environment = parts.environment.upload
    uploads = []
    if body.code == code:
        uploads.append(Upload("code", bundle.sha256, code, bundle.size, bundle.file_count))
    if environment is not None and body.environment == environment.destination:
        uploads.append(environment)
    return uploads
