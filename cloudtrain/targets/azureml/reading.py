"""What the finished body of a job says: who starts the processes, on which machines, with which
data and limits.

Overrides may contain any value. Values of a wrong type count as missing; AZ111 and similar rules
report them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from cloudtrain.errors import TargetError
from cloudtrain.job.data import Checkpoint
from cloudtrain.job.distribution import MPI, Distribution, NoDistribution, Ray, Torch
from cloudtrain.job.model import overrides_of
from cloudtrain.job.training import Resources, Spot, TrainingJob
from cloudtrain.machines.choose import MachineGroup, Machines
from cloudtrain.machines.overlay import Overlay, type_named
from cloudtrain.machines.spending import Use
from cloudtrain.machines.table import InstanceType, instance_named
from cloudtrain.rules.engine import (
    KeysOf,
    Reading,
    Subject,
    ValuePath,
    as_written,
    changed_variables,
    checkpoint_at,
    is_written,
    mapping_at,
    positive_count,
    tensorflow_with,
    text_at,
)
from cloudtrain.rules.facts import DataPlace, data_place, split_uri
from cloudtrain.rules.named import framework_of
from cloudtrain.targets.azureml.fields import (
    CODE,
    COMPUTE,
    ENVIRONMENT,
    EXPERIMENT,
    FIELDS,
    JOB_TYPE,
    KINDS,
    LITERAL,
    QUEUE,
    VARIABLES,
    JsonMapping,
    duration_seconds,
)
from cloudtrain.targets.azureml.parts import LAUNCHER, SERVERLESS, is_virtual_cluster, machines_of
from cloudtrain.targets.azureml.settings import AzureMLAccount, workspace_id
from cloudtrain.targets.common.fields import keys_of_fields

Request = JsonMapping
"""The body of `PUT jobs/NAME`: `{"properties": {...}}`."""

OVERRIDES = "azureml_overrides"

DEFAULT_EXPERIMENT = "Default"
"""The experiment that the service chooses for a body that names none."""

_LIFETIME = 21 * 86_400
"""Seconds (Azure ML documentation, quotas: job lifetime)."""

_SPOT_LIFETIME = 7 * 86_400
"""Seconds (the same page: job lifetime on a low-priority node)."""


_COMPONENT = "componentId"

_PAID = {
    JOB_TYPE, COMPUTE, QUEUE, "resources", "limits", "instanceType", "instanceCount",
    "maxInstanceCount", "jobTier", "timeout", "trialTimeout", "maxTotalTrials", _COMPONENT,
    "scalePolicy",
}  # fmt: skip
"""The fields of the body that decide what is paid for."""

_PAID_FOLDED = {name.casefold() for name in _PAID}


@dataclass(frozen=True, eq=False)
class Body:
    """The body of a command job, as the service reads it."""

    request: Request

    @property
    def properties(self) -> JsonMapping:
        return mapping_at(self.request, "properties")

    def mapping(self, *keys: str) -> JsonMapping:
        """Return the mapping at `keys` of the properties; empty if it is missing."""
        return mapping_at(self.properties, *keys)

    def text(self, *keys: str) -> str:
        """Return the text at `keys` of the properties; empty if it is missing."""
        return text_at(self.properties, *keys)

    @property
    def command(self) -> str:
        """The shell's command line, in which references are not yet replaced."""
        return self.text("command")

    @property
    def experiment(self) -> str:
        return self.text(EXPERIMENT) or DEFAULT_EXPERIMENT

    # Who starts the processes, and how many.

    @property
    def distribution(self) -> JsonMapping:
        return self.mapping("distribution")

    @property
    def kind(self) -> str:
        """The distribution's type: `PyTorch`, `Mpi`, `TensorFlow` or `Ray`; empty if the service
        starts one process. The API takes the type in upper or lower case."""
        kind = self.text("distribution", "distributionType")
        return KINDS.get(kind.casefold(), kind)

    @property
    def processes_per_instance(self) -> int:
        """Default: one, even with several GPUs, as documented for PyTorch."""
        return positive_count(self.distribution.get("processCountPerInstance")) or 1

    @property
    def parameter_servers(self) -> int:
        """The number of TensorFlow's parameter servers. Default: none."""
        return positive_count(self.distribution.get("parameterServerCount")) or 0

    @property
    def workers(self) -> int:
        """The number of TensorFlow's workers. Default: one for each instance."""
        return positive_count(self.distribution.get("workerCount")) or self.instances

    @property
    def ranks(self) -> int:
        """The number of processes that the service starts with a distribution of PyTorch, MPI or
        TensorFlow."""
        if self.kind == "TensorFlow":
            return self.workers + self.parameter_servers
        return self.instances * self.processes_per_instance

    @property
    def has_launcher(self) -> bool:
        """Whether the service starts one launcher on each instance, which starts the ranks: Ray's
        or DeepSpeed's."""
        return self.kind == "Ray" or LAUNCHER in self.command

    # Machines and limits.

    @property
    def instances(self) -> int:
        """The number of instances. Default: one."""
        return positive_count(self.mapping("resources").get("instanceCount")) or 1

    @property
    def instance_type(self) -> str:
        """The instance type; empty on a cluster, which has its own type."""
        return self.text("resources", "instanceType")

    @property
    def machine_requests(self) -> list[JsonMapping]:
        """Everything that may ask for machines: also the trial of a sweep, and what the body says
        for one kind of compute, such as `AISuperComputer`."""
        by_compute = self.mapping("resources", "properties")
        requests = [self.mapping("resources"), self.mapping("trial", "resources")]
        return [*requests, *(mapping_at(by_compute, name) for name in by_compute)]

    @property
    def compute(self) -> str | None:
        """The id of the cluster; None on serverless compute."""
        compute = self.text(COMPUTE).rstrip("/")
        name = compute.rpartition("/")[2]
        return None if name in ("", SERVERLESS) else compute

    @property
    def compute_name(self) -> str:
        if self.compute is None:
            return SERVERLESS
        return self.compute.rpartition("/")[2]

    @property
    def is_on_virtual_cluster(self) -> bool:
        """Whether the compute is a virtual cluster, which has tiers like serverless compute."""
        return is_virtual_cluster(self.text(COMPUTE))

    @property
    def tier(self) -> str:
        return self.text(QUEUE, "jobTier")

    @property
    def is_spot(self) -> bool:
        return self.tier.casefold() == "spot"

    @property
    def max_runtime(self) -> int | None:
        """The seconds after which the service ends the job; None if the body sets no limit."""
        return duration_seconds(str(self.mapping("limits").get("timeout", "")))

    @property
    def lifetime(self) -> int:
        """The seconds after which the service ends every job, even without a time limit."""
        return _SPOT_LIFETIME if self.is_spot else _LIFETIME

    @property
    def has_other_spelling(self) -> bool:
        """Whether a field that decides what is paid for is written in other letters, such as
        `Limits`: the service may read it."""
        names = set(self.properties)
        for part in (self.mapping("trial"), self.mapping("limits"), self.mapping(QUEUE)):
            names |= part.keys()
        for part in self.machine_requests:
            names |= part.keys()
        return not _PAID_FOLDED.isdisjoint(map(str.casefold, names - _PAID))

    # The container and its data.

    @property
    def environment(self) -> str:
        return self.text(ENVIRONMENT)

    @property
    def code(self) -> str:
        """The id of the code; empty for a job without code."""
        return self.text(CODE)

    @property
    def variables(self) -> dict[str, str]:
        """The service replaces references only in the command, not in variables."""
        variables = self.mapping(VARIABLES)
        return {name: str(value) for name, value in variables.items()}

    @property
    def inputs(self) -> Mapping[str, JsonMapping]:
        return _mappings(self.mapping("inputs"))

    @property
    def outputs(self) -> Mapping[str, JsonMapping]:
        return _mappings(self.mapping("outputs"))


def _mappings(entries: JsonMapping) -> Mapping[str, JsonMapping]:
    """Return the entries that are mappings. Overrides may set others."""
    return {name: item for name, item in entries.items() if isinstance(item, Mapping)}


def machines_in(body: Body, job: MachineGroup, account: AzureMLAccount) -> MachineGroup:
    """Return the machines in the body. On a cluster, whose type the body does not name, they are
    those of the job."""
    if name := body.instance_type:
        return MachineGroup(name, body.instances, type_named("azureml", name, account.overlay))
    if body.compute is None:
        return MachineGroup("", body.instances, None)
    return replace(job, count=body.instances)


def type_of_compute(name: str, overlay: Overlay | None) -> InstanceType | None:
    """Return the row with the price of a compute's machines in the user's own `instances.toml`;
    None without one. The name of a type of the catalogue is no compute's."""
    if instance_named("azureml", name) is not None:
        return None
    own = [row for row in overlay or () if not row.is_of_project]
    return type_named("azureml", name, own)


def distribution_in(job: TrainingJob, body: Body) -> Distribution:
    """Return the distribution in the body, close to the job's own wording. It is the job's, unless
    overrides change it. An MPI distribution without a count, which AZ302 reports, keeps the
    job's."""
    if not is_written(overrides_of(job, "azureml"), "distribution"):
        return job.distribution
    count = positive_count(body.distribution.get("processCountPerInstance"))
    actual: Distribution
    if body.kind == "PyTorch":
        actual = Torch.model_construct(processes_per_instance=count or 1)
    elif body.kind == "Mpi":
        actual = MPI.model_construct(processes_per_instance=count)
    elif body.kind == "TensorFlow":
        servers = body.parameter_servers
        actual = tensorflow_with(servers > 0, servers, body.workers)
    elif body.kind == "Ray":
        is_own = isinstance(job.distribution, Ray)
        return job.distribution if is_own else Ray.model_construct()
    else:
        return NoDistribution.model_construct()
    return as_written(job.distribution, actual)


# The body in the words of the job, for rules.


class AzureMLReading(Reading):
    """The body of a command job, in the words of the job."""

    paths: ClassVar[Mapping[ValuePath, KeysOf]] = keys_of_fields(FIELDS)

    @cached_property
    def body(self) -> Body:
        return Body(self.request)

    def place(self, keys: tuple[str, ...], field: ValuePath = ()) -> ValuePath:
        """Return the path of the setting that determines the body's field `keys`: an override, or
        else the job's `field`, which is empty for settings of the target."""
        return self.override_of(*keys) or field

    @cached_property
    def group(self) -> MachineGroup:
        """The only group: all machines of a job are alike."""
        job = MachineGroup("", 0, None)
        if not self.body.instance_type and self.body.compute is not None:
            job = machines_of(self.job, self.account)

        machines = machines_in(self.body, job, self.account)
        path: ValuePath = ()
        if machines.instance_type:
            field = "instance_type" if self.job.resources.instance_type else "gpu"
            path = ("resources", field)
        return replace(machines, path=self.place(("resources", "instanceType"), path))

    @cached_property
    def machines(self) -> Machines:
        return Machines((self.group,))

    @property
    def image(self) -> str:
        """The image that the job's environment is made of; empty for a named environment."""
        for upload in self.plan.uploads:
            if upload.destination == self.body.environment and upload.content:
                return text_at(json.loads(upload.content), "properties", "image")
        return ""

    @cached_property
    def environment_name(self) -> str:
        """For messages: the image, or else the name in the id, such as
        `acpt-pytorch-2.8-cuda12.6`."""
        environment = self.body.environment
        match = re.search("/environments/([^/]+)", environment)
        return self.image or (match[1] if match else environment.rpartition("/")[2])

    @property
    def environment_path(self) -> ValuePath:
        environment = self.job.environment
        field = "framework"
        if environment.of("azureml"):
            field = "azureml"
        elif environment.image:
            field = "image"
        return self.place((ENVIRONMENT,), ("environment", field))

    @property
    def variables(self) -> Mapping[str, str]:
        overrides = self.overrides.get(VARIABLES) if self.request else None
        return changed_variables(self.job, overrides)

    @property
    def max_runtime(self) -> int | None:
        if self.request and self.overrides:
            return self.body.max_runtime
        return self.job.max_runtime

    @property
    def longest_run(self) -> int:
        """The body's time limit in seconds, or else the service's own limit."""
        return self.body.max_runtime or self.body.lifetime

    def _count(self) -> tuple[int, bool]:
        """Return the most machines that the body asks for, and whether this number and their type
        are certain."""
        body = self.body
        count = 1
        is_certain = not body.has_other_spelling
        for asked in body.machine_requests:
            for key in ("instanceCount", "maxInstanceCount"):  # an elastic job grows to the latter
                value = asked.get(key)
                number = positive_count(value)
                if value is not None and number is None:  # AZ rules report it
                    is_certain = False
                count = max(count, number or 0)
            named = asked.get("instanceType")
            if named and named != body.instance_type and body.compute is None:
                is_certain = False
            if asked.get("scalePolicy"):  # it may add machines while the job runs
                is_certain = False
        return count, is_certain

    @cached_property
    def uses(self) -> Sequence[Use]:
        """The machines of a job, or of the trials of a sweep; none for a component of the workspace
        and for other kinds of jobs, whose costs are not known."""
        body = self.body
        kind = body.text(JOB_TYPE).casefold()
        if kind not in ("command", "sweep") or body.text(_COMPONENT):
            return []

        seconds = self.longest_run
        times: int | None = 1
        if kind == "sweep":
            limits = body.mapping("limits")
            seconds = duration_seconds(str(limits.get("trialTimeout", ""))) or body.lifetime
            times = positive_count(limits.get("maxTotalTrials"))

        count, is_certain = self._count()
        if not is_certain:
            times = None

        # a compute has its own machines, so the price is the user's, or the target is asked
        machines = self.group
        compute = body.compute_name if body.compute is not None else ""
        row = type_of_compute(compute, self.account.overlay) if compute else None
        if row is not None:
            machines = MachineGroup(compute, count, row)
            compute = ""
        machines = replace(machines, count=count)
        return [Use(Machines((machines,)), seconds, times, compute=compute)]

    @cached_property
    def resources(self) -> Resources:
        if not self.changes("resources"):
            return self.job.resources
        return self.job.resources.model_copy(update={"instance_count": self.body.instances})

    @cached_property
    def distribution(self) -> Distribution:
        if not self.request or self.processing is not None:
            return self.job.distribution
        return distribution_in(self.job, self.body)

    @property
    def spot(self) -> Spot | None:
        if not self.changes(QUEUE):
            return self.job.spot
        if not self.body.is_spot:
            return None
        return self.job.spot or Spot()

    @property
    def checkpoint(self) -> Checkpoint | None:
        if not self.changes("outputs", "checkpoint"):
            return self.job.checkpoint
        output = self.body.outputs.get("checkpoint", {})
        return checkpoint_at(self.target, output.get("uri"))

    @property
    def framework(self) -> str | None:
        """The framework in the environment's name; None if the name contains none."""
        return framework_of(self.environment_name)

    @cached_property
    def places(self) -> Sequence[DataPlace]:
        places: list[DataPlace] = []

        def add(kind: str, name: str, item: JsonMapping, *field: str) -> None:
            uri = text_at(item, "uri")
            if uri and not uri.startswith("/"):  # else it is the id of an asset
                parts = split_azure_uri(uri, self.account)
                places.append(data_place(kind, name, uri, parts, (*field, self.target)))

        for name, item in self.body.inputs.items():
            if item.get("jobInputType") != LITERAL:
                add("input", name, item, "inputs", name)
        for name, item in self.body.outputs.items():
            if name == "checkpoint" and self.job.checkpoint is not None:
                add("checkpoint", name, item, "checkpoint")
            else:
                add("output", name, item, "outputs", name)
        return places


def read(subject: Subject) -> AzureMLReading:
    assert isinstance(subject.reading, AzureMLReading)
    return subject.reading


# The addresses of files that Azure ML uses: paths in datastores and in storage accounts.

_DATASTORE = (
    r"(?is)azureml://(?:subscriptions/(?P<subscription>[^/]+)/resourcegroups/(?P<group>[^/]+)/(?:providers/[^/]+/)?"
    r"workspaces/(?P<workspace>[^/]+)/)?datastores/(?P<store>[^/]+)(?:/paths(?=/|"
    r"$))?(?:/(?P<path>.*))?"
)
"""Matches the long form, the short form, and the form without `paths` in which the service names a
job's artifacts."""

_HADOOP = r"(?s)(?:wasbs?|abfss?)://(?P<container>[^@/]+)@(?P<host>(?:(?P<account>[^./]+)\.)?[^/]+)(?:/(?P<path>.*))?"


@dataclass(frozen=True)
class DatastorePlace:
    """A folder or file in a datastore. `workspace` is an ARM id."""

    workspace: str
    name: str
    path: str = ""


@dataclass(frozen=True)
class BlobPlace:
    """A folder or file in a storage account. `signature` is the text after the `?` of its
    address."""

    account_url: str
    container: str
    path: str = ""
    signature: str = ""


Where = DatastorePlace | BlobPlace


def place_of(uri: str, workspace: str) -> Where:
    """A datastore belongs to `workspace`, an ARM id, if the address does not name another
    workspace. Raises `TargetError` if the text is not the address of a file, or the storage is of
    an unsupported kind."""
    match = re.fullmatch(_DATASTORE, uri)
    if match:
        if match["workspace"]:
            workspace = workspace_id(match["subscription"], match["group"], match["workspace"])
        return DatastorePlace(workspace, match["store"], match["path"] or "")

    match = re.fullmatch(_HADOOP, uri)
    if match:
        return BlobPlace(_account_url(match["host"]), match["container"], match["path"] or "")
    with suppress(ValueError):  # `[x` is no host
        parts = urlsplit(uri)
        container, _, path = parts.path.lstrip("/").partition("/")
        if parts.scheme == "https" and container and re.search(r"\.(blob|dfs)\.", parts.netloc):
            return BlobPlace(_account_url(parts.netloc), container, unquote(path), parts.query)

    message = f"cloudtrain cannot copy from `{uri}`"
    raise TargetError(
        message, hint="`az ml data show` prints the address of a data asset", code="CT936"
    )


def _account_url(host: str) -> str:
    """Return the storage account's address for the blob protocol. Data Lake addresses have another
    host (`.dfs.`)."""
    return f"https://{host.replace('.dfs.', '.blob.', 1)}"


def split_azure_uri(uri: str, account: AzureMLAccount) -> tuple[str, ...]:
    """Split an address into parts, which are the same for every address of the same data. For
    example, a datastore's address may or may not include the workspace of `account`, and a
    container has `https:`, `wasbs:` and `abfss:` addresses."""
    try:
        place = place_of(re.sub("^http:", "https:", uri), account.workspace_id)
    except TargetError:
        return split_uri(uri)

    path = place.path
    if isinstance(place, BlobPlace) and not uri.startswith("http"):
        path = unquote(path)
    below = [part for part in path.split("/") if part]
    if isinstance(place, BlobPlace):
        name = place.account_url.partition("://")[2].partition(".")[0]
        return ("storage", name, place.container, *below)
    if place.workspace.casefold() == account.workspace_id.casefold():
        return ("azureml", place.name, *below)
    return ("azureml", place.workspace, place.name, *below)
