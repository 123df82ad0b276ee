"""Read the body of a command job for the rules that all targets share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from cloudtrain.catalogue.machines import Machines
from cloudtrain.core.job import Spot
from cloudtrain.rules.data_places import DataPlace, data_place, split_uri
from cloudtrain.rules.effective import changed_variables, checkpoint_at
from cloudtrain.rules.image_names import framework_of
from cloudtrain.rules.overridden import KeysOf, Path, is_written, keys_at, keys_named
from cloudtrain.rules.reading import mapping_at
from cloudtrain.rules.subject import RequestView, Subject
from cloudtrain.targets.azureml.compile.summary import max_runtime
from cloudtrain.targets.azureml.launch.body import Body
from cloudtrain.targets.azureml.rules.request_distribution import distribution_in
from cloudtrain.targets.azureml.rules.view import environment_name, lifetime, machines, properties

_OVERRIDDEN: dict[Path, KeysOf] = {
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


class AzureMLView(RequestView):
    """Reads the bodies of Azure ML's command jobs."""

    overridden_by = _OVERRIDDEN

    def change_script(self, subject: Subject) -> dict[str, Any]:
        """Return a change of the job for the rules about scripts: `{"environment": ...}`, the job's environment with
        the variables that the overrides set."""
        return {"environment": changed_variables(subject.job, self.overrides(subject).get("environmentVariables"))}

    def change(self, subject: Subject) -> dict[str, Any]:
        """Return the job's fields that the overrides change, with their new values."""
        body, written = Body(subject.plan.request), self.overrides(subject)
        properties = mapping_at(subject.plan.request, "properties")
        found: dict[str, Any] = self.change_script(subject) | {"max_runtime": max_runtime(properties)}
        if is_written(written, "resources"):
            found["resources"] = subject.job.resources.model_copy(update={"instance_count": body.instances})
        if is_written(written, "distribution") and subject.processing is None:
            found["distribution"] = distribution_in(subject.job.distribution, body)
        if is_written(written, "queueSettings"):
            is_spot = str(mapping_at(properties, "queueSettings").get("jobTier", "")).casefold() == "spot"
            found["spot"] = (subject.job.spot or Spot()) if is_spot else None
        if is_written(written, "outputs", "checkpoint"):
            found["checkpoint"] = checkpoint_at(self.target, body.outputs.get("checkpoint", {}).get("uri"))
        return found

    def machines(self, subject: Subject) -> Machines:
        """Return the machines in the body; on a cluster, the machines that the job names."""
        return Machines((machines(subject),))

    def longest_run(self, subject: Subject) -> int:
        """Return the body's time limit in seconds, or else the service's own limit."""
        return max_runtime(properties(subject)) or lifetime(subject)

    def framework(self, subject: Subject) -> str | None:
        """Return the framework in the environment's name; None if the name contains none."""
        return framework_of(environment_name(subject))

    def places(self, subject: Subject) -> Iterator[DataPlace]:
        """Yield the locations that the request reads and writes."""
        body = Body(subject.plan.request)
        for kind, named in (("input", body.inputs), ("output", body.outputs)):
            for name, item in named.items():
                uri = item.get("uri")
                if not isinstance(uri, str) or item.get("jobInputType") == "literal" or uri.startswith("/"):
                    continue
                if kind == "output" and name == "checkpoint" and subject.job.checkpoint is not None:
                    yield data_place(
                        "checkpoint", name, uri, split_azure_uri(uri, subject), ("checkpoint", self.target)
                    )
                else:
                    yield data_place(kind, name, uri, split_azure_uri(uri, subject), (f"{kind}s", name, self.target))


_DATASTORE = re.compile(
    r"azureml://(?:subscriptions/(?P<subscription>[^/]+)/resourcegroups/(?P<group>[^/]+)/(?:providers/[^/]+/)?"
    r"workspaces/(?P<workspace>[^/]+)/)?datastores/(?P<store>[^/]+)(?:/paths)?(?P<below>/.*)?",
    re.IGNORECASE | re.DOTALL,
)
_BLOB = re.compile(
    r"https?://(?P<account>[^./]+)\.(?:blob|dfs)\.[^/]+/(?P<container>[^/?]+)(?P<below>/[^?]*)?(?:\?.*)?"
)
_CONTAINER = re.compile(r"(?:wasbs?|abfss?)://(?P<container>[^@/]+)@(?P<account>[^./]+)\.[^/]+(?P<below>/.*)?")


def split_azure_uri(uri: str, subject: Subject) -> tuple[str, ...]:
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
