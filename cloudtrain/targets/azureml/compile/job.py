"""Compile a job, a target and a context into a plan."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.errors import JobError, Problem
from cloudtrain.job.data import references_in
from cloudtrain.job.distribution import MPI, DeepSpeed, Horovod
from cloudtrain.job.model import MAX_COUNT, format_duration, merged, overrides_of
from cloudtrain.job.training import TrainingJob
from cloudtrain.machines.choose import MachineGroup
from cloudtrain.machines.table import hourly, over
from cloudtrain.plans.plan import CompileContext, Plan, Upload
from cloudtrain.plans.processes import Processes
from cloudtrain.targets.azureml.compile.places import (
    ChosenEnvironment,
    command_of,
    environment_of,
    inputs_of,
    outputs_of,
    places_of,
)
from cloudtrain.targets.azureml.launch import INTERFACE, processes, service_layout
from cloudtrain.targets.azureml.parts import (
    code_id,
    compute_id,
    distribution_of,
    duration_text,
    is_cluster,
    is_own_type,
    is_virtual_cluster,
    machines_of,
    present,
)
from cloudtrain.targets.azureml.reading import OVERRIDES, Body, distribution_in, machines_in
from cloudtrain.targets.azureml.settings import AzureML, AzureMLAccount, Service
from cloudtrain.targets.common.compiling import Problems, hyperparameter_text

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
        message = f"Azure ML builds the mpirun line itself, and {error}"
        hint = (
            "`-x NAME=VALUE` and `--mca NAME VALUE` work here, because Open MPI reads them "
            "from variables too"
        )
        raise JobError(
            [Problem(("distribution", "options"), message, hint, code="CT037")]
        ) from None


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    rest = iter(words)
    for word in rest:
        if word == "-x":
            name, equals, value = next(rest, "").partition("=")
            if not name:
                raise ValueError("`-x` needs the name of a variable")
            if equals:  # without a value it forwards a variable, but every process has all of them
                yield name, value
        elif word in ("-mca", "--mca"):
            setting, text = next(rest, None), next(rest, None)
            if setting is None or text is None:
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
    if machines.count == 1 or row is None or not row.gpus or row.interconnect != "rdma":
        return variables
    sends_by_mpi = isinstance(job.distribution, MPI)
    variables |= {
        name: value for name, value in INFINIBAND.items() if not (sends_by_mpi and name in _OF_MPI)
    }
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

PRIORITIES = {"low": 1, "medium": 2, "high": 3}
IDENTITIES = {"user": "UserIdentity", "managed": "Managed", "aml_token": "AMLToken"}
EVENTS = {"completed": "JobCompleted", "failed": "JobFailed", "cancelled": "JobCancelled"}
SERVICES = {
    "ssh": "SSH",
    "tensor_board": "TensorBoard",
    "jupyter_lab": "JupyterLab",
    "vs_code": "VSCode",
}
"""Words of the settings, and the body's words for them."""


class Parts(NamedTuple):
    """A job and the decisions from which the request is written."""

    job: TrainingJob
    target: AzureML
    context: CompileContext
    machines: MachineGroup
    distribution: dict[str, Any] | None
    environment: ChosenEnvironment

    @property
    def account(self) -> AzureMLAccount:
        account: AzureMLAccount = self.context.account
        return account


def request_of(parts: Parts, problems: Problems) -> dict[str, Any]:
    """Parts with problems are left out, and their problems are added to `problems`."""
    job, target, account = parts.job, parts.target, parts.account
    compute, seconds, wish = target.compute, job.max_runtime, target.notifications
    properties = {
        "jobType": "Command",
        "displayName": target.display_name or parts.context.run_name,
        "experimentName": target.experiment or job.name,
        "description": job.description,
        "command": problems.value(lambda: command_of(job), ""),
        "codeId": None
        if job.source_dir is None
        else code_id(account.workspace_id, parts.context.bundle.sha256),
        "environmentId": parts.environment.id,
        "computeId": None if compute is None else compute_id(account.workspace_id, compute),
        "distribution": parts.distribution,
        "resources": _resources(parts),
        "limits": None
        if seconds is None
        else {"jobLimitsType": "Command", "timeout": duration_text(seconds)},
        "queueSettings": problems.value(lambda: _queue(job, target), None),
        "identity": _identity(target),
        "notificationSetting": wish
        and {"emailOn": [EVENTS[name] for name in wish.on], "emails": list(wish.emails)},
        "services": {name: _service(item) for name, item in target.services.items()} or None,
        "inputs": inputs_of(job, account, problems),
        "outputs": outputs_of(job, parts.context.run_name, problems),
        "environmentVariables": _variables(parts, problems),
        "properties": {RUN_PROPERTY: parts.context.run_name},
        "tags": dict(job.tags),
        "isArchived": False,
    }
    return {"properties": present(properties)}


def _resources(parts: Parts) -> dict[str, Any] | None:
    """Return the body's `resources`; None for a single instance of a cluster, which is the
    service's default."""
    target, resources = parts.target, parts.job.resources
    arguments = target.docker_args
    compute, name = target.compute, parts.machines.instance_type
    # Clusters have only one type, which the body does not name, unless they are of Kubernetes or
    # virtual.
    is_fixed = compute is not None and is_cluster(compute) and not is_own_type(compute, name)
    optional = {
        "instanceType": None if is_fixed else name or None,
        "locations": list(target.locations) or None,
        "maxInstanceCount": target.max_instance_count,
        "shmSize": size_text(resources.shm_size) if resources.shm_size is not None else None,
        "dockerArgs": arguments if isinstance(arguments, str) else None,
        "dockerArgsList": list(arguments) if isinstance(arguments, tuple) else None,
    }
    fields = present(optional)
    if fields or resources.instance_count > 1 or "instance_count" in resources.model_fields_set:
        return {"instanceCount": resources.instance_count, "properties": {}, **fields}
    return None


def size_text(size: int) -> str:
    """Return a size in bytes as docker writes it, in the largest exact unit: `64g`, `512m`,
    `1000b`."""
    for unit, bits in (("g", 30), ("m", 20), ("k", 10)):
        if size % (1 << bits) == 0:
            return f"{size >> bits}{unit}"
    return f"{size}b"


def _queue(job: TrainingJob, target: AzureML) -> dict[str, Any] | None:
    """On a cluster, spot capacity is the cluster's setting."""
    queue: dict[str, Any] = {}
    if job.spot is not None:
        problems = list(_spot_problems(target))
        if problems:
            raise JobError(problems)
        queue["jobTier"] = "Spot"
    if target.job_tier is not None:
        queue["jobTier"] = target.job_tier.capitalize()
    if target.priority is not None:
        queue["priority"] = PRIORITIES[target.priority]
    return queue or None


def _spot_problems(target: AzureML) -> Iterator[Problem]:
    if (
        target.compute is not None
        and is_cluster(target.compute)
        and not is_virtual_cluster(target.compute)
    ):
        message = (
            "a job cannot choose spot capacity on a cluster: it is a setting of the "
            f"cluster `{target.compute}`"
        )
        hint = "remove `spot` and name a cluster of the tier `low_priority`, or remove `compute`"
        yield Problem(("spot",), message, hint, code="CT031")
    if target.job_tier is not None:
        message = f"`spot` is a tier of its own, so `job_tier: {target.job_tier}` contradicts it"
        yield Problem(("spot",), message, "remove one of them", code="CT018")


def _identity(target: AzureML) -> dict[str, str] | None:
    fields = {
        "clientId": target.managed_identity_client_id,
        "resourceId": target.managed_identity_resource_id,
    }
    ids = {field: value for field, value in fields.items() if value}
    kind = target.identity or ("managed" if ids else None)
    return None if kind is None else {"identityType": IDENTITIES[kind], **ids}


def _service(service: Service) -> dict[str, Any]:
    properties = {"sshPublicKeys": service.ssh_public_key, "logDir": service.log_dir}
    fields = {
        "jobServiceType": SERVICES[service.type],
        "nodes": {"nodesValueType": "All"} if service.all_instances else None,
        "properties": present(properties),
    }
    return {key: value for key, value in fields.items() if value}


def _variables(parts: Parts, problems: Problems) -> dict[str, str]:
    job = parts.job
    problems += [
        Problem(
            ("environment", "variables", name),
            (
                f"Azure ML replaces references only in the command, so `{name}` would contain the "
                f"text `{text}`"
            ),
            "pass it as a hyperparameter, or read `AZURE_ML_INPUT_NAME` in the script",
            code="CT031",
        )
        for name, text in job.environment.variables.items()
        if references_in(text)
    ]
    variables = network_variables(job, parts.machines, parts.environment.id)
    variables |= problems.value(lambda: option_variables(job), {})
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
    job, account = parts.job, parts.account
    pairs = [
        ("target", f"azureml (workspace {account.workspace} in {account.resource_group})"),
        ("compute", body.compute_name),
        ("instances", _instances(machines, body)),
        ("processes", _processes(started, body.instances)),
        ("distribution", distribution_in(job, body).type),
        ("environment", _environment(parts, body)),
        ("script", job.entry_point or job.command or ""),
        ("checkpoint", body.outputs.get("checkpoint", {}).get("uri", "")),
        (
            "max runtime",
            format_duration(body.max_runtime)
            if body.max_runtime
            else "none: it runs until it ends",
        ),
        ("tier", body.tier),
        ("cost", _cost(machines, body)),
    ]
    return ((label, text) for label, text in pairs if text)


def _instances(machines: MachineGroup, body: Body) -> str:
    row, count = machines.known, machines.count
    if row is None:
        left_open = "any type" if body.compute is None else "the type of the cluster"
        return f"{count} x {machines.instance_type or left_open}"
    network = ", InfiniBand" if row.interconnect == "rdma" and count > 1 else ""
    return f"{count} x {row.name} ({row.hardware}{network})"


def _processes(started: Processes, instances: int) -> str:
    if not started:
        return ""
    return (
        f"{len(started)} on {len(started.started)} of {instances} instances"
        if instances > 1
        else str(len(started))
    )


def _environment(parts: Parts, body: Body) -> str:
    upload = parts.environment.upload
    if upload is None or body.environment != parts.environment.id:
        return body.environment
    environment = parts.job.environment
    *_, asset, _, version = upload.destination.split("/")
    registered = f", registered as {asset}:{version}" if environment.asset_name else ""
    if upload.folder is not None:
        return f"built from {upload.folder}/{environment.dockerfile or 'Dockerfile'}{registered}"
    image = environment.image.of("azureml") if environment.image else None
    conda = f" with {environment.conda_file}" if environment.conda_file else ""
    return f"made of {image}{conda}{registered}"


def _cost(machines: MachineGroup, body: Body) -> str:
    rate, seconds = hourly([(machines.known, machines.count)]), body.max_runtime
    spot = ", less on spot capacity" if body.is_spot else ""
    if rate is None:
        return (
            "unknown: the catalogue has no price of this type" if machines.known is not None else ""
        )
    if seconds is None:
        return f"${rate:,.2f} an hour at list prices{spot}; no limit is set"
    return f"at most ${over(rate, seconds):,.2f} at list prices{spot}"


def compile_azureml(job: AnyJob, target: AzureML, context: CompileContext) -> Plan:
    """Return the plan, whose `request` is the body of the job's PUT. It is complete before any
    upload, because the code's id contains the code's hash. Raises `JobError` if the job asks for
    something that Azure ML does not have."""
    if not isinstance(job, TrainingJob):
        from cloudtrain.targets.azureml.compile.processing import (
            as_command_job,
            as_processing_plan,
            shard_problems,
        )

        command_job = as_command_job(job)
        return as_processing_plan(
            job, _compile(command_job, target, context, Problems(shard_problems(job)))
        )
    return _compile(job, target, context, Problems())


def _compile(
    job: TrainingJob, target: AzureML, context: CompileContext, problems: Problems
) -> Plan:
    """Collect all problems before any is raised."""
    parts = parts_of(job, target, context, problems)
    body = request_of(parts, problems)
    request = problems.value(
        lambda: overridden(body, overrides_of(job, "azureml"), job.hyperparameters), None
    )
    # If the overrides break the body, the rules check the body without them.
    plan = _plan(parts, body if request is None else request)
    problems.refuse(plan)
    return plan


def _plan(parts: Parts, request: dict[str, Any]) -> Plan:
    context, body = parts.context, Body(request)
    machines = machines_in(body, parts.machines, parts.account)
    gpus = machines.known.gpus if machines.known is not None else None
    places = places_of(request, context.run_name, parts.account.workspace_id)
    layout = service_layout(body, context.run_name, parts.account.workspace_id, gpus)
    started = processes(body, layout, whole=False)
    return Plan(
        target="azureml",
        run_name=context.run_name,
        job_name=parts.job.name,
        request=request,
        uploads=tuple(_uploads(parts, request)),
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
    placeholders, distribution = MachineGroup("", job.resources.instance_count, None), None
    machines = problems.value(lambda: machines_of(job, context.account), None)
    # which only SageMaker has
    if machines is not None or job.distribution.type in ("smddp", "smp"):
        distribution = problems.value(lambda: distribution_of(job, machines or placeholders), None)
    environment = problems.value(lambda: environment_of(job, context), ChosenEnvironment(""))
    return Parts(job, target, context, machines or placeholders, distribution, environment)


def overridden(
    request: Mapping[str, Any], overrides: Mapping[str, Any], hyperparameters: Mapping[str, object]
) -> dict[str, Any]:
    """Merge the user's overrides into the body's `properties`. A command there may name the values
    of a sweep, which a trial has among its `hyperparameters`."""
    properties = merged(request["properties"], overrides)
    for name, value in hyperparameters.items() if isinstance(overrides.get("command"), str) else ():
        mark = f"${{{{search_space.{name}}}}}"
        properties["command"] = properties["command"].replace(mark, hyperparameter_text(value))
    problems = [
        Problem(
            (OVERRIDES, name),
            f"`{name}` must stay {word} in the body",
            "leave it out of the overrides",
            code="CT035",
        )
        for name, (kind, word) in _SHAPES.items()
        if (name in request["properties"] or name in properties)
        and not isinstance(properties.get(name), kind)
    ]
    merged_body = {**request, "properties": properties}
    for section, name in _COUNTS:
        count = Body(merged_body).mapping(section).get(name)
        if isinstance(count, int) and count > MAX_COUNT:  # such as `instanceCount: 100000`
            message = f"`{name}` must be at most {MAX_COUNT}, not `{count}`"
            problems.append(
                Problem(
                    (OVERRIDES, section, name), message, f"write {MAX_COUNT} or less", code="CT035"
                )
            )
    if problems:
        raise JobError(problems)
    return merged_body


_COUNTS = (
    ("resources", "instanceCount"),
    ("distribution", "processCountPerInstance"),
    ("distribution", "workerCount"),
    ("distribution", "parameterServerCount"),
)


_SHAPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "command": (str, "a text"),
    "environmentVariables": (dict, "a mapping"),
    "inputs": (dict, "a mapping"),
    "outputs": (dict, "a mapping"),
    "properties": (dict, "a mapping"),
    "tags": (dict, "a mapping"),
    "distribution": ((dict, type(None)), "a mapping"),
    "resources": ((dict, type(None)), "a mapping"),
    "limits": ((dict, type(None)), "a mapping"),
}
"""The types that every reader of a body relies on."""


def _uploads(parts: Parts, request: Mapping[str, Any]) -> list[Upload]:
    """Uploads that the overrides have replaced are left out."""
    bundle = parts.context.bundle
    code = code_id(parts.account.workspace_id, bundle.sha256)
    uploads = (
        Upload("code", bundle.sha256, code, bundle.size, bundle.file_count),
        parts.environment.upload,
    )
    ids = [request["properties"].get("codeId"), request["properties"].get("environmentId")]
    return [upload for upload in uploads if upload is not None and upload.destination in ids]
