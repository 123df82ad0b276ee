"""Rules about the workspace that an Azure ML job is sent to, and its compute."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, timedelta

from cloudtrain.errors import InPlace
from cloudtrain.job.model import value_text
from cloudtrain.plans.plan import Level
from cloudtrain.rules import machines as shared
from cloudtrain.rules.engine import Fault, Nature, Subject, ValuePath, plural, positive_count, rule
from cloudtrain.rules.facts import counterpart, has_rdma_somewhere
from cloudtrain.rules.machines import instead, needs_network, over_ethernet
from cloudtrain.targets.azureml.catalogue import guess, nearest_size
from cloudtrain.targets.azureml.parts import is_own_type
from cloudtrain.targets.azureml.reading import read

_MISSING = {
    "subscription_id": (
        "no subscription is known",
        'subscription_id = "00000000-0000-0000-0000-000000000000"',
    ),
    "resource_group": ("no resource group is known", 'resource_group = "NAME"'),
    "workspace": ("no workspace is known", 'workspace = "NAME"'),
}
"""Maps each setting to the message if it is missing, and to the line that sets it."""

GUID = r"(?i)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"

_SHAPES = {
    "subscription_id": (GUID, "`az account show --query id` prints it"),
    "resource_group": (
        r"[\w.()-]{0,89}[\w()-]",
        "use at most 90 letters, digits and `_ - . ( )`, without a dot at the end",
    ),
    "workspace": (
        r"[a-zA-Z0-9][a-zA-Z0-9_-]{1,32}",
        "use 2 to 33 letters, digits, `_` and `-`, a letter or digit first",
    ),
}
"""Maps each setting to its pattern in the REST API's specification, and to the hint."""

_COUNT: ValuePath = ("resources", "instance_count")
_COMPUTE = r"[a-zA-Z0-9-]{2,24}"
_LOCATION = r"[a-z]+[0-9]*"


@rule("AZ101", Level.ERROR, Nature.FACT, needs_request=False)
def account_incomplete(subject: Subject) -> Iterator[Fault]:
    """No complete Azure ML workspace is configured.

    A job runs in a workspace, and cloudtrain needs the workspace's subscription, resource group and
    name. Write these three settings into `[azureml]` in `cloudtrain.toml` once for all jobs, or put
    `config.json`, which the studio offers for download, beside the job. cloudtrain also reads the
    defaults of `az` (`az account set`, `az configure --defaults group=... workspace=...`).
    """
    missing = subject.account.missing
    for name in missing:
        message, line = _MISSING[name]
        hint = f"add `{line}` under `[azureml]` in `cloudtrain.toml`"
        if name == missing[0]:
            hint += ", or download the workspace's `config.json` from the studio"
        yield Fault(message, hint)


@rule("AZ102", Level.ERROR, Nature.FACT)
def account_misspelt(subject: Subject) -> Iterator[Fault]:
    """The subscription, resource group or workspace name is not valid.

    Write the subscription's id, not its display name. Resource groups and workspaces must match the
    patterns of the API (REST API specification, `subscriptionId`, `resourceGroupName`,
    `workspaceName`). A request with any other text goes to an address that does not exist.
    """
    for name, (pattern, hint) in _SHAPES.items():
        value = getattr(subject.account, name)
        if name not in subject.account.missing and not re.fullmatch(pattern, value):
            yield Fault(f"`{value}` cannot be a `{name}`", hint)


@rule("AZ103", Level.ERROR)
def no_name_of_a_compute(subject: Subject) -> Iterator[Fault]:
    """`compute` is not a valid cluster name.

    `compute` is the name of a cluster in the workspace: letters, digits and hyphens. To choose a VM
    size, leave out `compute` and use `resources.instance_type`; the job then runs serverless. To
    run on this machine, use the target `local`.
    """
    reading = read(subject)
    name = reading.body.compute_name
    if reading.body.compute is None or reading.body.is_on_virtual_cluster:
        return
    if re.fullmatch(_COMPUTE, name) and name.casefold() != "local":
        return

    hint = "`az ml compute list -o table` lists the names"
    if guess(name):
        hint = (
            f'leave `compute` out, and write `instance_type: {{azureml: "{name}"}}` under '
            "`resources`"
        )
    elif name.casefold() == "local":
        hint = "to run on this machine, use `--target local`"
    message = f"`{name}` cannot be the name of a compute cluster"
    yield Fault(message, hint, reading.place(("computeId",)))


@rule("AZ104", Level.WARNING)
def serverless_setting_on_cluster(subject: Subject) -> Iterator[Fault]:
    """A job on a cluster has a setting for serverless jobs.

    A cluster has a fixed region and a fixed tier (`dedicated` or `low_priority`). `job_tier` and
    `locations` are documented for serverless compute only (Azure ML documentation, serverless
    compute), and have no effect on a cluster.
    """
    reading = read(subject)
    body = reading.body
    if body.compute is None or body.is_on_virtual_cluster or body.is_spot:
        return
    for setting, keys in _SERVERLESS.items():
        if getattr(subject.settings, setting) or reading.override_of(*keys):
            message = f"`{setting}` has no effect on the cluster `{body.compute_name}`"
            hint = f"remove `{setting}`, or remove `compute` to run serverless"
            yield Fault(message, hint, reading.place(keys))


_SERVERLESS = {
    "job_tier": ("queueSettings", "jobTier"),
    "locations": ("resources", "locations"),
}
"""Maps each setting for serverless jobs to its place in the body."""


@rule("AZ105", Level.ERROR)
def spot_on_cluster(subject: Subject) -> Iterator[Fault]:
    """The job asks for spot capacity on a cluster.

    A cluster's machines are spot capacity only if the cluster was created with `tier:
    low_priority`. The job tier `Spot` is for serverless jobs (Azure ML documentation, serverless
    compute); on a cluster the job would be billed at the full price.
    """
    body = read(subject).body
    if body.compute is None or body.is_on_virtual_cluster or not body.is_spot:
        return
    message = (
        "a job cannot choose spot capacity on a cluster: it is a setting of the cluster "
        f"`{body.compute_name}`"
    )
    hint = "name a cluster of the tier `low_priority` and remove the tier here, or remove `compute`"
    yield Fault(message, InPlace(hint), ("spot",))


@rule("AZ106", Level.WARNING)
def serverless_without_type(subject: Subject) -> Iterator[Fault]:
    """A serverless job names no instance type.

    Without an instance type Azure ML picks a size by quota, performance and cost (documentation,
    serverless compute). The chosen size may have no GPU, or several, but the plan's number of
    processes is fixed.
    """
    body = read(subject).body
    if body.compute is None and not body.instance_type:
        yield Fault(
            "no instance type is named, so Azure ML picks any size that the quota allows",
            "add `instance_type: {azureml: Standard_NC24ads_A100_v4}` under `resources`, or "
            "`compute` to the target",
            ("resources",),
        )


@rule("AZ107", Level.WARNING)
def location_misspelt(subject: Subject) -> Iterator[Fault]:
    """A location is not a region name in the form of Azure's API.

    The API's region names have small letters and no blanks: `westeurope` for West Europe. `az
    account list-locations` lists them.
    """
    for name in subject.settings.locations:
        if not re.fullmatch(_LOCATION, name):
            better = re.sub(r"[^a-z0-9]", "", name.casefold())
            yield Fault(
                f"`{name}` is not a region name of Azure's API", f'write `locations = ["{better}"]`'
            )


@rule("AZ108", Level.ERROR)
def most_below_count(subject: Subject) -> Iterator[Fault]:
    """The job asks for more instances than `max_instance_count`.

    `max_instance_count` limits the growth of an elastic job; the job starts with `instance_count`
    instances.
    """
    reading = read(subject)
    most = positive_count(reading.body.mapping("resources").get("maxInstanceCount"))
    count = reading.body.instances
    if most is not None and most < count:
        message = f"`max_instance_count` is {most}, and the job asks for {count:,} instances"
        hint = f"set `max_instance_count` to {count} or more, or remove it"
        yield Fault(message, hint, reading.place(("resources", "maxInstanceCount"), _COUNT))


# Rules about time and money on Azure ML: time limits, and the highest cost of a job within them.


@rule("AZ401", Level.ERROR)
def timeout_unreadable(subject: Subject) -> Iterator[Fault]:
    """The time limit is not a duration greater than zero.

    Only overrides can cause this. The SDK sends `-PT5S` for -5 seconds, and drops a limit of 0
    (azure-ai-ml 1.35.2). The body needs an ISO 8601 duration of whole days, hours, minutes and
    seconds: `PT1M` is a minute, and `P1M` a month, which is not accepted.
    """
    body = read(subject).body
    timeout = body.mapping("limits").get("timeout")
    if timeout is not None and not body.max_runtime:
        message = f"`timeout` must be an ISO 8601 duration like `PT2H`, not `{timeout}`"
        yield Fault(message, "write for example `max_runtime: 2h`", ("max_runtime",))


@rule("AZ402", Level.WARNING)
def timeout_too_short(subject: Subject) -> Iterator[Fault]:
    """The time limit is shorter than a minute.

    The service rounds durations of less than 60 seconds to 60 days, according to a comment in the
    SDK. For that reason the SDK never sends such a limit for a sweep (azure-ai-ml 1.35.2, bug
    1335978), but it sends one for a command. A job with a limit of seconds could run, and be
    billed, for 60 days.
    """
    limit = read(subject).body.max_runtime
    if limit and limit < 60:
        message = f"the limit is {limit}s, but the service turns a limit below 1m into 60 days"
        yield Fault(message, "set `max_runtime` to `1m` or more", ("max_runtime",))


@rule("AZ403", Level.ERROR)
def run_too_long(subject: Subject) -> Iterator[Fault]:
    """The job may run longer than Azure ML allows.

    Azure ML ends a job after 21 days, or 7 days on spot capacity (documentation, quotas: job
    lifetime). You lose access to the data of a job that is ended this way.
    """
    body = read(subject).body
    what = "a job on spot capacity" if body.is_spot else "a job"
    return shared.run_too_long(subject, body.lifetime, what)


@rule("AZ411", Level.WARNING)
def no_limit(subject: Subject) -> Iterator[Fault]:
    """An expensive job has no time limit.

    Without `max_runtime` a job ends only after 21 days (7 on spot capacity). A job that hangs, for
    example in a collective that one rank never joins, is billed until then.
    """
    # AZ401 reports a limit that is there but cannot be read
    if read(subject).body.mapping("limits").get("timeout") is None:
        yield from shared.no_limit(subject, "Azure ML's limit")


@rule("AZ412", Level.ERROR, Nature.CAP)
def over_budget(subject: Subject) -> Iterator[Fault]:
    """This could spend more than your cap.

    `max_cost` and `max_cost_per_day` are compared with the list price of all instances over the
    whole `max_runtime`, or over 21 days if the job has no `max_runtime`, times the trials of a
    sweep. Spot capacity costs less. Nodes that a cluster keeps running without a job are not
    counted. Prices are the catalogue's, or those of your own `instances.toml`.
    """
    return shared.over_budget(subject)


@rule("AZ413", Level.ERROR, Nature.CAP)
def budget_without_price(subject: Subject) -> Iterator[Fault]:
    """cloudtrain cannot keep your cap, because it does not know the price.

    The catalogue has no price for the instance type, or the job does not name a type. Write the
    price that you pay into `instances.toml`, or ask the workspace: `cloudtrain instances --target
    azureml --refresh`.
    """
    return shared.budget_without_price(subject)


# Rules about the instance type of an Azure ML job: whether it exists, is still offered, and fits
# the job.

_WITHOUT_GPU = r"(?i)standard_(?:[abdeflm]|b[a-z]s|d[a-z]{0,2}|e[a-z]?|f[a-z]|l[a-z]?|m)\d"
"""Series of sizes without GPUs: for general use, memory, disks and computing."""

_SOON = timedelta(days=365)

_MOST_RDMA = 100


@rule("AZ201", Level.ERROR)
def no_size(subject: Subject) -> Iterator[Fault]:
    """The instance type is not a valid name of an Azure VM size.

    Names look like `Standard_NC24ads_A100_v4`: `Standard_`, the family, the number of vCPUs,
    letters for features, the accelerator and the version; upper and lower case are the same. The
    SDK sends any text (azure-ai-ml 1.35.2), and the job fails only when Azure allocates machines.
    Instance types of an attached Kubernetes cluster have the names of objects in that cluster
    (small letters, digits, `-` and `.`), which cloudtrain sends unchanged.
    """
    body = read(subject).body
    name = _unknown(subject)
    if not name or guess(name) is not None:
        return
    if body.compute is not None and is_own_type(body.text("computeId"), name):
        return

    lists = "`cloudtrain instances --target azureml` lists the types"
    hint = counterpart(name, "azureml") or nearest_size(name) or lists
    message = f"`{name}` cannot be the name of an Azure VM size"
    yield Fault(message, hint, read(subject).group.path)


@rule("AZ202", Level.WARNING)
def unknown_type(subject: Subject) -> Iterator[Fault]:
    """The instance type is not in the catalogue.

    The name may be misspelt, or newer than the catalogue, which has the sizes in Azure ML's
    documentation. cloudtrain does not know the type's GPUs, network and price. Ask the workspace:
    `cloudtrain instances --target azureml --refresh`. This rule ignores sizes without GPUs (series
    A to M), because they have little to check.
    """
    name = _unknown(subject)
    if guess(name) is None or re.match(_WITHOUT_GPU, name):
        return
    hint = "`cloudtrain instances --target azureml --refresh` asks the workspace"
    near = nearest_size(name)
    if near:
        hint = f"{near} Or {hint}"
    message = f"the catalogue has no instance type `{name}`"
    yield Fault(message, hint, read(subject).group.path)


@rule("AZ203", Level.ERROR)
def without_infiniband(subject: Subject) -> Iterator[Fault]:
    """Several instances with GPUs train together without InfiniBand.

    Gradients then travel over Ethernet, and the GPUs wait for them. For most models, several such
    instances are not faster than one. Sizes with InfiniBand have an `r` among the letters after
    their number; `cloudtrain instances --target azureml --interconnect infiniband` lists them. One
    larger instance with as many GPUs needs no network at all. If you mean to use Ethernet, write
    `interconnect: ethernet` under `resources`.
    """
    row = read(subject).group.known
    if row is not None and has_rdma_somewhere(row):
        yield from over_ethernet(subject, "AZ203")


@rule("AZ204", Level.ERROR)
def infiniband_without_sriov(subject: Subject) -> Iterator[Fault]:
    """The instance type has InfiniBand without SR-IOV, which NCCL cannot use.

    On NC24r, NC24rs_v2 and ND24rs only Intel MPI can use InfiniBand (Azure documentation:
    RDMA-capable instances). NCCL, and therefore PyTorch and Horovod, fall back to Ethernet.
    """
    machines = read(subject).group
    row = machines.known
    has_fabric = row and row.fabric == "infiniband" and row.interconnect != "rdma"
    if row and has_fabric and needs_network(subject):
        count = plural(machines.count, "instance")
        message = (
            f"`{row.name}` has InfiniBand without SR-IOV, which NCCL cannot use, and this job "
            f"runs on {count}"
        )
        yield Fault(message, instead(subject, row, "AZ204"), machines.path)


@rule("AZ205", Level.WARNING)
def infiniband_guessed(subject: Subject) -> Iterator[Fault]:
    """cloudtrain guesses from the name whether the instance type has InfiniBand.

    The catalogue lacks this instance type, so its name is the only source. An `r` among the letters
    after the size's number means RDMA: this is true for all sizes in the catalogue, but Azure does
    not promise it. The name does not tell whether the InfiniBand has SR-IOV, which NCCL needs.
    """
    name = _unknown(subject)
    properties = guess(name)
    if properties is None or not needs_network(subject):
        return
    if not properties.gpu and not name.casefold().startswith("standard_n"):
        return

    machines = read(subject).group
    network = "rdma" if properties.has_infiniband else "ethernet"
    hint = (
        f'if you know better, write `interconnect = "{network}"` with the `vcpus` and '
        f'`memory_gib` of the type under `[azureml."{name}"]` in `instances.toml`; `cloudtrain '
        "instances --target azureml --interconnect infiniband` lists types with it"
    )
    message = f"{properties.text}; this job runs on {plural(machines.count, 'instance')}"
    yield Fault(message, hint, machines.path)


@rule("AZ206", Level.ERROR)
def retired_type(subject: Subject) -> Iterator[Fault]:
    """The instance type is retired.

    Azure has removed the machines, so the job would fail or wait forever. The date of retirement is
    Azure's (the catalogue names the source), or comes from your own `instances.toml`.
    """
    return shared.retired_type(subject, until=str(date.today()))


@rule("AZ207", Level.NOTICE)
def retires_soon(subject: Subject) -> Iterator[Fault]:
    """The instance type will be retired within a year.

    Azure has announced the day on which it removes the type. The job still runs today, but not
    after that day.
    """
    today = date.today()
    return shared.retired_type(subject, after=str(today), until=str(today + _SOON))


rule("AZ208", Level.ERROR)(shared.type_is_not_as_described)


@rule("AZ209", Level.ERROR)
def too_many_instances(subject: Subject) -> Iterator[Fault]:
    """The job asks for more instances than the service can connect.

    A cluster with InfiniBand has at most 100 instances, and an MPI run has at most 100 on any
    network (Azure ML documentation, quotas: nodes of a communication-enabled pool on an RDMA
    family, nodes of a single MPI run).
    """
    reading = read(subject)
    machines = reading.group
    has_fabric = machines.known is not None and machines.known.fabric
    is_limited = has_fabric or reading.body.kind == "Mpi"
    if is_limited and machines.count > _MOST_RDMA:
        message = (
            f"the job runs on {machines.count:,} instances, and Azure ML allows at most "
            f"{_MOST_RDMA} over InfiniBand or in one MPI run"
        )
        yield Fault(
            message, f"set `instance_count` to {_MOST_RDMA} or less, with more GPUs on each", _COUNT
        )


@rule("AZ210", Level.ERROR)
def instance_count(subject: Subject) -> Iterator[Fault]:
    """The number of instances is not a whole number of at least one.

    Only overrides can cause this. The SDK sends -3, 0 and `"2"` unchanged (azure-ai-ml 1.35.2), and
    Azure does not document the service's reaction.
    """
    count = read(subject).body.mapping("resources").get("instanceCount", 1)
    if positive_count(count) is None:
        message = f"`instanceCount` must be a whole number of at least 1, not `{value_text(count)}`"
        yield Fault(message, "set `resources.instance_count` to 1 or more", _COUNT)


@rule("AZ211", Level.WARNING)
def no_infiniband_for_this_gpu(subject: Subject) -> Iterator[Fault]:
    """Several instances train together over Ethernet; no instance type with the same GPU has
    InfiniBand.

    Azure offers T4, A10 and similar GPUs only without InfiniBand. Gradients travel over Ethernet,
    and the GPUs wait for them. Small models train well over Ethernet; for others one instance with
    a larger GPU is often faster and cheaper than several instances with small GPUs. If you mean to
    use Ethernet, write `interconnect: ethernet` under `resources`.
    """
    row = read(subject).group.known
    if row is not None and not has_rdma_somewhere(row):
        yield from over_ethernet(subject, "AZ211")


def _unknown(subject: Subject) -> str:
    """Return the job's instance type if the catalogue lacks it; otherwise an empty text."""
    machines = read(subject).group
    return machines.instance_type if machines.known is None else ""
