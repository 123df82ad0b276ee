"""Rules about the workspace that an Azure ML job is sent to, and its compute."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from cloudtrain.core.plan import Level
from cloudtrain.rules.rule import Fault, Subject, rule
from cloudtrain.targets.azureml.catalogue.vm_names import guess
from cloudtrain.targets.azureml.rules.view import (
    body,
    is_on_cluster,
    is_on_virtual_cluster,
    is_spot,
    is_whole,
    mapping,
    overridden,
    place,
    text,
)

_WANTED = {
    "subscription_id": ("no subscription is known", 'subscription_id = "00000000-0000-0000-0000-000000000000"'),
    "resource_group": ("no resource group is known", 'resource_group = "NAME"'),
    "workspace": ("no workspace is known", 'workspace = "NAME"'),
}

_SHAPES = {
    "subscription_id": (
        re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE),
        "`az account show --query id` prints it",
    ),
    "resource_group": (
        re.compile(r"[\w.()-]{0,89}[\w()-]"),
        "use at most 90 letters, digits and `_ - . ( )`, without a dot at the end",
    ),
    "workspace": (
        re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{1,32}"),
        "use 2 to 33 letters, digits, `_` and `-`, a letter or digit first",
    ),
}
"""Maps each setting to its pattern in the REST API's specification, and to the hint."""

_COMPUTE = re.compile(r"[a-zA-Z0-9-]{2,24}")
_LOCATION = re.compile(r"[a-z]+[0-9]*")


@rule("AZ101", Level.ERROR)
def account_incomplete(subject: Subject) -> Iterator[Fault]:
    """No complete Azure ML workspace is configured.

    A job runs in a workspace, and cloudtrain needs the workspace's subscription, resource group and name. Write these
    three settings into `[azureml]` in `cloudtrain.toml` once for all jobs, or put `config.json`, which the studio
    offers for download, beside the job. cloudtrain also reads the defaults of `az` (`az account set`,
    `az configure --defaults group=... workspace=...`).
    """
    for name in subject.account.missing:
        message, line = _WANTED[name]
        hint = f"add `{line}` under `[azureml]` in `cloudtrain.toml`"
        first = name == subject.account.missing[0]
        yield Fault(message, f"{hint}, or download the workspace's `config.json` from the studio" if first else hint)


@rule("AZ102", Level.ERROR)
def account_misspelt(subject: Subject) -> Iterator[Fault]:
    """The subscription, resource group or workspace name is not valid.

    Write the subscription's id, not its display name. Resource groups and workspaces must match the patterns of the API
    (REST API specification, `subscriptionId`, `resourceGroupName`, `workspaceName`). A request with any other text goes
    to an address that does not exist.
    """
    for name, (pattern, hint) in _SHAPES.items():
        value = getattr(subject.account, name)
        if name not in subject.account.missing and not pattern.fullmatch(value):
            yield Fault(f"`{value}` cannot be a `{name}`", hint)


@rule("AZ103", Level.ERROR)
def no_name_of_a_compute(subject: Subject) -> Iterator[Fault]:
    """`compute` is not a valid cluster name.

    `compute` is the name of a cluster in the workspace: letters, digits and hyphens. To choose a VM size, leave out
    `compute` and use `resources.instance_type`; the job then runs serverless. To run on this machine, use the target
    `local`.
    """
    name = text(subject, "computeId").rpartition("/")[2]
    if (
        not is_on_cluster(subject)
        or is_on_virtual_cluster(subject)
        or (_COMPUTE.fullmatch(name) and name.casefold() != "local")
    ):
        return
    hint = "`az ml compute list -o table` lists the names"
    if guess(name):
        hint = f'leave `compute` out, and write `instance_type: {{azureml: "{name}"}}` under `resources`'
    elif name.casefold() == "local":
        hint = "to run on this machine, use `--target local`"
    yield Fault(f"`{name}` cannot be the name of a compute cluster", hint, place(subject, ("computeId",)))


@rule("AZ104", Level.WARNING)
def serverless_setting_on_cluster(subject: Subject) -> Iterator[Fault]:
    """A job on a cluster has a setting for serverless jobs.

    A cluster has a fixed region and a fixed tier (`dedicated` or `low_priority`). `job_tier` and `locations` are
    documented for serverless compute only (Azure ML documentation, serverless compute), and have no effect on a
    cluster.
    """
    if not is_on_cluster(subject) or is_on_virtual_cluster(subject):
        return
    name = text(subject, "computeId").rpartition("/")[2]
    for setting, keys in (("job_tier", ("queueSettings", "jobTier")), ("locations", ("resources", "locations"))):
        given = getattr(subject.target, setting) or overridden(subject, *keys)
        if given and not is_spot(subject):
            yield Fault(
                f"`{setting}` has no effect on the cluster `{name}`",
                f"remove `{setting}`, or remove `compute` to run serverless",
                place(subject, keys),
            )


@rule("AZ105", Level.ERROR)
def spot_on_cluster(subject: Subject) -> Iterator[Fault]:
    """The job asks for spot capacity on a cluster.

    A cluster's machines are spot capacity only if the cluster was created with `tier: low_priority`. The job tier
    `Spot` is for serverless jobs (Azure ML documentation, serverless compute); on a cluster the job would be billed at
    the full price.
    """
    if is_on_cluster(subject) and not is_on_virtual_cluster(subject) and is_spot(subject):
        name = text(subject, "computeId").rpartition("/")[2]
        yield Fault(
            f"a job cannot choose spot capacity on a cluster: it is a setting of the cluster `{name}`",
            "name a cluster of the tier `low_priority` and remove the tier here, or remove `compute`",
            place(subject, ("queueSettings", "jobTier"), ("spot",)),
        )


@rule("AZ106", Level.WARNING)
def serverless_without_type(subject: Subject) -> Iterator[Fault]:
    """A serverless job names no instance type.

    Without an instance type Azure ML picks a size by quota, performance and cost (documentation, serverless compute).
    The chosen size may have no GPU, or several, but the plan's number of processes is fixed.
    """
    if not is_on_cluster(subject) and not text(subject, "resources", "instanceType"):
        hint = "add `instance_type: {azureml: Standard_NC24ads_A100_v4}` under `resources`, or `compute` to the target"
        yield Fault("no instance type is named, so Azure ML picks any size that the quota allows", hint, ("resources",))


@rule("AZ107", Level.WARNING)
def location_misspelt(subject: Subject) -> Iterator[Fault]:
    """A location is not a region name in the form of Azure's API.

    The API's region names have small letters and no blanks: `westeurope` for West Europe. `az account list-locations`
    lists them.
    """
    for name in subject.target.locations:
        if not _LOCATION.fullmatch(name):
            better = re.sub(r"[^a-z0-9]", "", name.casefold())
            yield Fault(f"`{name}` is not a region name of Azure's API", f'write `locations = ["{better}"]`')


@rule("AZ108", Level.ERROR)
def most_below_count(subject: Subject) -> Iterator[Fault]:
    """The job asks for more instances than `max_instance_count`.

    `max_instance_count` limits the growth of an elastic job; the job starts with `instance_count` instances.
    """
    most: Any = mapping(subject, "resources").get("maxInstanceCount")
    count = body(subject).instances
    if is_whole(most, 1) and most < count:
        yield Fault(
            f"`max_instance_count` is {most}, and the job asks for {count:,} instances",
            f"set `max_instance_count` to {count} or more, or remove it",
            place(subject, ("resources", "maxInstanceCount"), ("resources", "instance_count")),
        )
