"""Read the finished body for the Azure ML rules, including the user's overrides.

A body with overrides may contain values of any type. These functions skip values of a wrong type, which AZ111 and
similar rules report.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from cloudtrain.job.data import Checkpoint
from cloudtrain.job.distribution import MPI, Distribution, NoDistribution, Torch
from cloudtrain.job.model import overrides_of
from cloudtrain.job.training import Resources, Spot
from cloudtrain.machines.choose import MachineGroup, Machines, known_type
from cloudtrain.rules.engine import (
    KeysOf,
    Reading,
    Subject,
    as_written,
    changed_variables,
    checkpoint_at,
    count_in,
    is_written,
    keys_at,
    keys_named,
    mapping_at,
    tensorflow_with,
    text_at,
)
from cloudtrain.rules.facts import DataPlace, data_place, split_uri
from cloudtrain.rules.named import framework_of
from cloudtrain.targets.azureml.compile.job import OVERRIDES, max_runtime
from cloudtrain.targets.azureml.compile.parts import SERVERLESS, is_virtual_cluster, machines_of
from cloudtrain.targets.azureml.request import Body

ValuePath = tuple[str | int, ...]

_LIFETIME, _SPOT_LIFETIME = 21 * 86_400, 7 * 86_400
"""Seconds (Azure ML documentation, quotas: job lifetime, and job lifetime on a low-priority node)."""


def properties(subject: Subject | Reading) -> Mapping[str, Any]:
    """Return the body's `properties`, which describe the job."""
    found: Mapping[str, Any] = subject.plan.request["properties"]
    return found


def mapping(subject: Subject | Reading, *keys: str) -> Mapping[str, Any]:
    """Return the mapping at `keys` in the body's properties; empty if it is missing."""
    return mapping_at(properties(subject), *keys)


def text(subject: Subject | Reading, *keys: str) -> str:
    """Return the text at `keys` in the body's properties; empty if it is missing."""
    return text_at(properties(subject), *keys)


def body(subject: Subject | Reading) -> Body:
    """Return the body as a `Body`, whose properties read single fields."""
    return Body(subject.plan.request)


def overridden(subject: Subject | Reading, *keys: str) -> ValuePath | None:
    """Return the path of the override that sets or removes the field `keys` of the body; None without such an
    override.
    """
    return (OVERRIDES, *keys) if is_written(overrides_of(subject.job, "azureml"), *keys) else None


def place(subject: Subject | Reading, keys: tuple[str, ...], field: ValuePath = ()) -> ValuePath:
    """Return the path of the setting that determines the body's field `keys`: an override, or else the job's `field`.

    `field` is empty for settings of the target, which are not part of the job.
    """
    return overridden(subject, *keys) or field


def machines(subject: Subject | Reading) -> MachineGroup:
    """Return the job's machines. On a cluster, the body has no instance type, so the type comes from the job."""
    found = MachineGroup(text(subject, "resources", "instanceType"), body(subject).instances, None)
    if found.instance_type:
        found = replace(found, known=known_type("azureml", found.instance_type, subject.account.overlay))
    elif is_on_cluster(subject):
        found = replace(machines_of(subject.job, subject.account), count=found.count)
    field = "instance_type" if subject.job.resources.instance_type else "gpu"
    asked: ValuePath = ("resources", field) if found.instance_type else ()
    return replace(found, path=place(subject, ("resources", "instanceType"), asked))


def is_on_cluster(subject: Subject | Reading) -> bool:
    """Return whether the job runs on a cluster with its own machines; otherwise it is serverless."""
    return text(subject, "computeId").rpartition("/")[2] not in ("", SERVERLESS)


def is_on_virtual_cluster(subject: Subject) -> bool:
    """Return whether the compute is a virtual cluster, which has tiers like serverless compute."""
    return is_virtual_cluster(text(subject, "computeId"))


def is_spot(subject: Subject | Reading) -> bool:
    """Return whether the job runs on spot capacity."""
    return text(subject, "queueSettings", "jobTier").casefold() == "spot"


def lifetime(subject: Subject | Reading) -> int:
    """Return the seconds after which the service ends every job, even without a time limit."""
    return _SPOT_LIFETIME if is_spot(subject) else _LIFETIME


def count_path(subject: Subject) -> ValuePath:
    """Return the path of the field that sets the job's number of instances."""
    return place(subject, ("resources", "instanceCount"), ("resources", "instance_count"))


def image(subject: Subject | Reading) -> str:
    """Return the image that the job's environment is made of; empty for a named environment."""
    for upload in subject.plan.uploads:
        if upload.kind == "environment" and upload.content and upload.destination == text(subject, "environmentId"):
            return text_at(json.loads(upload.content), "properties", "image")
    return ""


def environment_name(subject: Subject | Reading) -> str:
    """Return the environment's name for messages: its image, or else the name in its id, such as
    `acpt-pytorch-2.8-cuda12.6`.
    """
    parts = text(subject, "environmentId").split("/")
    named = parts[parts.index("environments") + 1] if "environments" in parts[:-1] else parts[-1]
    return image(subject) or named


def environment_path(subject: Subject) -> ValuePath:
    """Return the path of the field that sets the job's environment."""
    given = subject.job.environment
    field = "azureml" if given.of("azureml") else "image" if given.image else "framework"
    return place(subject, ("environmentId",), ("environment", field))


def is_whole(value: Any, least: int) -> bool:
    """Return whether a value is a whole number of at least `least`; Python's `True` does not count as one."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


# The distribution that the body of a command job asks for.


def distribution_in(written: Distribution, body: Body) -> Distribution:
    """Return the distribution in the body.

    If the body starts processes in the same way as `written`, the job's distribution, the result is `written` with the
    body's numbers of processes.
    """
    count = count_in(body.distribution.get("processCountPerInstance"))
    if body.kind == "PyTorch":
        return as_written(written, Torch.model_construct(processes_per_instance=count or 1))
    if body.kind == "Mpi":
        return as_written(written, MPI.model_construct(processes_per_instance=count))
    if body.kind == "TensorFlow":
        return as_written(written, tensorflow_with(bool(body.parameter_servers), body.parameter_servers, body.workers))
    return NoDistribution.model_construct()


# Read the body of a command job for the rules that all targets share.

_OVERRIDDEN: dict[ValuePath, KeysOf] = {
    ("resources", "instance_count"): keys_at(("resources", "instanceCount")),
    ("environment", "variables"): keys_named("environmentVariables"),
    ("environment", "image"): keys_at(("environmentId",)),
    ("distribution", "processes_per_instance"): keys_at(("distribution", "processCountPerInstance")),
    ("distribution", "parameter_servers"): keys_at(("distribution", "parameterServerCount")),
    ("distribution", "workers"): keys_at(("distribution", "workerCount")),
    ("max_runtime",): keys_at(("limits", "timeout")),
    ("spot",): keys_at(("queueSettings", "jobTier")),
    ("inputs",): keys_named("inputs"),
    ("outputs",): keys_named("outputs"),
    ("checkpoint",): keys_at(("outputs", "checkpoint")),
}


class AzureMLReading(Reading):
    """The body of a command job."""

    paths = _OVERRIDDEN

    @property
    def _properties(self) -> Mapping[str, Any]:
        return mapping_at(self.request, "properties")

    @property
    def variables(self) -> Mapping[str, str]:
        return changed_variables(self.job, self.overrides.get("environmentVariables") if self.request else None)

    @property
    def max_runtime(self) -> int | None:
        return max_runtime(self._properties) if self.request and self.overrides else self.job.max_runtime

    @cached_property
    def resources(self) -> Resources:
        if not self.changes("resources"):
            return self.job.resources
        return self.job.resources.model_copy(update={"instance_count": Body(self.request).instances})

    @cached_property
    def distribution(self) -> Distribution:
        if not self.changes("distribution") or self.processing is not None:
            return self.job.distribution
        return distribution_in(self.job.distribution, Body(self.request))

    @property
    def spot(self) -> Spot | None:
        if not self.changes("queueSettings"):
            return self.job.spot
        is_spot = str(mapping_at(self._properties, "queueSettings").get("jobTier", "")).casefold() == "spot"
        return (self.job.spot or Spot()) if is_spot else None

    @property
    def checkpoint(self) -> Checkpoint | None:
        if not self.changes("outputs", "checkpoint"):
            return self.job.checkpoint
        return checkpoint_at(self.target, Body(self.request).outputs.get("checkpoint", {}).get("uri"))

    @cached_property
    def machines(self) -> Machines:
        """The machines in the body; on a cluster, the machines that the job names."""
        return Machines((machines(self),))

    @property
    def longest_run(self) -> int:
        """The body's time limit in seconds, or else the service's own limit."""
        return max_runtime(properties(self)) or lifetime(self)

    @property
    def framework(self) -> str | None:
        """The framework in the environment's name; None if the name contains none."""
        return framework_of(environment_name(self))

    @cached_property
    def places(self) -> Sequence[DataPlace]:
        return list(self._places())

    def _places(self) -> Iterator[DataPlace]:
        body = Body(self.request)
        for kind, named in (("input", body.inputs), ("output", body.outputs)):
            for name, item in named.items():
                uri = item.get("uri")
                if not isinstance(uri, str) or item.get("jobInputType") == "literal" or uri.startswith("/"):
                    continue
                if kind == "output" and name == "checkpoint" and self.job.checkpoint is not None:
                    yield data_place("checkpoint", name, uri, split_azure_uri(uri, self), ("checkpoint", self.target))
                else:
                    yield data_place(kind, name, uri, split_azure_uri(uri, self), (f"{kind}s", name, self.target))


_DATASTORE = re.compile(
    r"azureml://(?:subscriptions/(?P<subscription>[^/]+)/resourcegroups/(?P<group>[^/]+)/(?:providers/[^/]+/)?"
    r"workspaces/(?P<workspace>[^/]+)/)?datastores/(?P<store>[^/]+)(?:/paths)?(?P<below>/.*)?",
    re.IGNORECASE | re.DOTALL,
)
_BLOB = re.compile(
    r"https?://(?P<account>[^./]+)\.(?:blob|dfs)\.[^/]+/(?P<container>[^/?]+)(?P<below>/[^?]*)?(?:\?.*)?"
)
_CONTAINER = re.compile(r"(?:wasbs?|abfss?)://(?P<container>[^@/]+)@(?P<account>[^./]+)\.[^/]+(?P<below>/.*)?")


def split_azure_uri(uri: str, subject: Subject | Reading) -> tuple[str, ...]:
    """Split an address into parts, which are the same for every address of the same data.

    For example, a datastore's address may or may not include the job's workspace, and a container has `https:`,
    `wasbs:` and `abfss:` addresses.
    """
    if match := _DATASTORE.fullmatch(uri):
        account = subject.account
        own = (account.subscription_id, account.resource_group, account.workspace)
        named = (match["subscription"], match["group"], match["workspace"])
        is_own = match["workspace"] is None or [str(part).casefold() for part in named] == [p.casefold() for p in own]
        return ("azureml", *(() if is_own else map(str, named)), match["store"], *_below(match["below"]))
    if match := _BLOB.fullmatch(uri) or _CONTAINER.fullmatch(uri):
        return ("storage", match["account"], match["container"], *_below(unquote(match["below"] or "")))
    return split_uri(uri)


def _below(path: str | None) -> list[str]:
    return [part for part in (path or "").split("/") if part]
