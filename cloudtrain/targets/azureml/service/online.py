"""Checks of a plan that ask the workspace. Missing permissions only cause warnings, and the checks change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from cloudtrain.core.plan import Finding, Plan
from cloudtrain.errors import CloudtrainError, MissingExtra, TargetError, TargetUnreachable, did_you_mean
from cloudtrain.targets.azureml.compile.identifiers import Labelled, is_virtual_cluster, parse_label
from cloudtrain.targets.azureml.compile.machines import SERVERLESS
from cloudtrain.targets.azureml.rules.online import level_of
from cloudtrain.targets.azureml.service.client import Client
from cloudtrain.targets.azureml.service.labels import Labels
from cloudtrain.targets.azureml.service.places import DatastorePlace, place_of
from cloudtrain.targets.azureml.service.quota import serverless_faults
from cloudtrain.targets.azureml.service.versions import COMPUTE, DATASTORE, ENVIRONMENT
from cloudtrain.targets.common.provider_errors import Denied, NotThere

_THREADS = 8

_ASSET = ENVIRONMENT
"""The API version for data and models.

It is the one for environments, because azure-ai-ml 1.35.2 never asks for data or models.
"""

_CLUSTER, _INSTANCE = "AmlCompute", "ComputeInstance"
_RUNS_JOBS = (_CLUSTER, _INSTANCE, "Kubernetes")
_BROKEN = ("Failed", "Canceled", "Deleting")

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Asked:
    """The values that every check uses, such as the plan to check and the client with which to ask the workspace."""

    client: Client
    plan: Plan
    expected: str
    """The instance type that the job was planned for."""
    labels: Labels

    @property
    def body(self) -> Mapping[str, Any]:
        """Return the request's `properties`, which describe the job."""
        found: Mapping[str, Any] = self.plan.request["properties"]
        return found

    @property
    def resources(self) -> Mapping[str, Any]:
        return self.body.get("resources") or {}

    @property
    def instances(self) -> int:
        return int(self.resources.get("instanceCount") or 1)

    @property
    def compute(self) -> str | None:
        """Return the ARM id of the compute; None on serverless compute."""
        found = str(self.body.get("computeId") or "")
        return found if found.rpartition("/")[2] not in ("", SERVERLESS) else None


Check = Callable[[Asked], Iterator[Finding]]


def check(client: Client, plan: Plan, expected: str, labels: Labels) -> list[Finding]:
    """Return the findings about a plan. The first check is whether the workspace answers; all others run concurrently.

    Args:
        expected: the instance type that the job was planned for; empty if the job names none. On a cluster, the body
            does not contain the type.
        labels: stores the versions of labels for the submit.
    """
    try:
        client.workspace  # noqa: B018 - asked for once, and kept
    except (Denied, TargetUnreachable) as error:
        return [_finding("AZ902", f"cloudtrain could not query the workspace: {error.message}", error.hint)]
    except NotThere as error:
        return [_finding("AZ903", error.message, error.hint)]
    except MissingExtra:
        raise  # `--ignore` cannot help here
    except CloudtrainError as error:
        return [_finding("AZ901", error.message, error.hint)]
    asked = Asked(client, plan, expected, labels)
    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        results = list(pool.map(lambda one: _run_check(one, asked), _checks(asked)))
    return [finding for result in results for finding in result]


def _checks(asked: Asked) -> list[Check]:
    """Return one function for each check, so that all can run concurrently."""
    machines = _compute if asked.compute else _serverless
    # Azure does not document how to ask for a virtual cluster's machines.
    own = () if is_virtual_cluster(asked.compute or "") else (machines,)
    return [*own, _environment, *_places(asked)]


def _run_check(one: Check, asked: Asked) -> list[Finding]:
    try:
        return list(one(asked))
    except (Denied, TargetUnreachable) as error:
        return [_finding("AZ902", f"a check could not be done: {error.message}", error.hint)]
    except TargetError as error:
        return [_finding("AZ902", error.message, error.hint)]


def _compute(asked: Asked) -> Iterator[Finding]:
    assert asked.compute is not None, "the job names one"
    name = asked.compute.rpartition("/")[2]
    try:
        found = asked.client.get(asked.compute, api_version=COMPUTE)
    except NotThere:
        known = [item["name"] for page in asked.client.pages("computes", api_version=COMPUTE) for item in page]
        hint = did_you_mean(name, known) or "make one with `az ml compute create`, or leave `compute` out"
        yield _finding("AZ904", f"the workspace has no compute `{name}`", hint)
        return
    properties = found["properties"]
    yield from _kind(asked, name, properties)
    yield from _readiness(name, properties)
    yield from _size(asked, name, properties.get("properties") or {})
    yield from _identity(asked, f"the compute `{name}`", found.get("identity"))


def _kind(asked: Asked, name: str, properties: Mapping[str, Any]) -> Iterator[Finding]:
    kind = properties.get("computeType")
    hint = "name a cluster, or leave `compute` out to run serverless"
    if kind not in _RUNS_JOBS:
        yield _finding("AZ905", f"`{name}` is of the type {kind}, which runs no jobs", hint)
    elif kind == _INSTANCE and asked.instances > 1:
        message = f"`{name}` is a compute instance, which is one machine, and the job needs {asked.instances}"
        yield _finding("AZ905", message, hint, ("resources", "instance_count"))


def _readiness(name: str, properties: Mapping[str, Any]) -> Iterator[Finding]:
    state, inner = properties.get("provisioningState"), properties.get("properties") or {}
    if state in _BROKEN:
        errors = [*(properties.get("provisioningErrors") or ()), *(inner.get("errors") or ())]
        said = next((text for error in errors if (text := _message_of(error))), "")
        hint = f"`az ml compute show --name {name}` shows the reason; create it again, or name another one"
        yield _finding("AZ906", f"`{name}` is in the state {state}" + (f": {said}" if said else ""), hint)
    elif properties.get("computeType") == _INSTANCE and inner.get("state") not in (None, "Running"):
        message = f"`{name}` is a compute instance that does not run: {inner['state']}"
        yield _finding("AZ906", message, f"`az ml compute start --name {name}`")


def _message_of(error: Mapping[str, Any]) -> str:
    inner = error.get("error") or error
    return " ".join(str(inner.get("message") or inner.get("code") or "").split())


def _size(asked: Asked, name: str, machines: Mapping[str, Any]) -> Iterator[Finding]:
    size, most = machines.get("vmSize"), (machines.get("scaleSettings") or {}).get("maxNodeCount")
    if size and asked.expected and size.lower() != asked.expected.lower():
        message = f"the machines of `{name}` are {size}, and the job was planned for {asked.expected}"
        hint = f"name the cluster's type (`{_catalogue_name(size)}`), or another cluster"
        yield _finding("AZ907", message, hint, ("resources", "instance_type"))
    if most is not None and asked.instances > most:
        message = f"`{name}` may have {most} instances, and the job needs {asked.instances}"
        hint = f"`az ml compute update --name {name} --max-instances {asked.instances}`, or ask for fewer"
        yield _finding("AZ908", message, hint, ("resources", "instance_count"))


def _catalogue_name(size: str) -> str:
    """Return a size in the catalogue's spelling, because the service writes sizes in capitals."""
    from cloudtrain.catalogue.instances import instance_named

    known = instance_named("azureml", size)
    return known.name if known is not None else size


def _serverless(asked: Asked) -> Iterator[Finding]:
    size, queue = asked.resources.get("instanceType"), asked.body.get("queueSettings") or {}
    locations = asked.resources.get("locations") or [asked.client.workspace["location"]]
    yield from _identity(asked, "the workspace", asked.client.workspace.get("identity"))
    if not size:
        return  # the service will choose a size that the quota allows
    is_spot = str(queue.get("jobTier")).lower() == "spot"
    for fault in serverless_faults(asked.client, size, asked.instances, locations, is_spot=is_spot):
        yield _finding(fault.code, fault.message, fault.hint, fault.path)


def _identity(asked: Asked, owner: str, assigned: Any) -> Iterator[Finding]:
    """Report the job's managed identity if it is not among those `assigned` to `owner`, a cluster or workspace."""
    wanted = asked.body.get("identity") or {}
    if wanted.get("identityType") != "Managed":
        return
    identity = assigned or {}
    client, users = wanted.get("clientId"), identity.get("userAssignedIdentities") or {}
    resource = wanted.get("resourceId")
    if client is None and resource is not None:
        has_any = str(resource).lower() in map(str.lower, users)
        message = f"{owner} has no managed identity `{str(resource).rpartition('/')[2]}`"
    elif client is None:
        has_any = str(identity.get("type") or "None") != "None"
        message = f"{owner} has no managed identity"
    else:
        has_any = any(str((user or {}).get("clientId")).lower() == client.lower() for user in users.values())
        message = f"{owner} has no managed identity with the client id {client}"
    if not has_any:
        hint = "assign it, or name another; `managed_identity_client_id` must be a client id, not an object id"
        yield _finding("AZ915", message, hint)


def _environment(asked: Asked) -> Iterator[Finding]:
    wanted = str(asked.body.get("environmentId") or "")
    made = {upload.destination for upload in asked.plan.uploads}
    if wanted in made or not wanted.startswith("/subscriptions/"):
        return  # the submit makes the former; the service checks those in registries
    if label := parse_label(wanted):
        yield from _meaning(asked, label, "AZ912", ("environment", "azureml"))
        return
    try:
        asked.client.get(wanted, api_version=ENVIRONMENT)
    except NotThere:
        name, _, version = wanted.rpartition("/environments/")[2].partition("/versions/")
        hint = f"`az ml environment list --name {name}` shows its versions"
        message = f"the workspace has no environment `{name}` in the version `{version}`"
        yield _finding("AZ912", message, hint, ("environment", "azureml"))


def _meaning(asked: Asked, label: Labelled, code: str, path: Path) -> Iterator[Finding]:
    """Report the current version of a labelled asset as AZ916, or a missing asset as `code`."""
    noun = _NOUNS[label.kind]
    try:
        version = asked.labels.ask(asked.client, label)
    except NotThere:
        hint = f"`az ml {noun} list` shows what there is"
        yield _finding(code, f"the workspace has no {noun} `{label.name}`", hint, path)
    else:
        message = f"`{label.name}@latest` is the version `{version}` now"
        yield _finding("AZ916", message, f"write `azureml:{label.name}:{version}` to keep it", path)


def _places(asked: Asked) -> Iterator[Check]:
    """Yield a check for each asset and each datastore that inputs and outputs name, without duplicates."""
    workspace, seen = asked.client.place.workspace_id, set[str]()
    for kind, code in (("inputs", "AZ913"), ("outputs", "AZ914")):
        for name, item in (asked.body.get(kind) or {}).items():
            uri = str(item.get("uri") or "")
            thing = _thing(uri, workspace)
            if thing is not None and thing not in seen:
                seen.add(thing)
                yield _exists(thing, code, ("checkpoint",) if name == "checkpoint" else (kind, name, "azureml"))


def _thing(uri: str, workspace: str) -> str | None:
    """Return the ARM id of the asset or datastore in an address; None for other addresses."""
    if uri.startswith("/subscriptions/"):
        return uri
    try:
        place = place_of(uri, workspace)
    except TargetError:
        return None
    return f"{place.workspace}/datastores/{place.name}" if isinstance(place, DatastorePlace) else None


def _exists(thing: str, code: str, path: Path) -> Check:
    def look(asked: Asked) -> Iterator[Finding]:
        if label := parse_label(thing):
            yield from _meaning(asked, label, code, path)
            return
        kind, _, name = thing.partition("/workspaces/")[2].partition("/")[2].partition("/")
        try:
            asked.client.get(thing, api_version=DATASTORE if kind == "datastores" else _ASSET)
        except NotThere:
            noun, shown = _NOUNS.get(kind, kind), name.replace("/versions/", ":")
            command = f"az ml {noun} list" + (f" --name {shown.partition(':')[0]}" if ":" in shown else "")
            yield _finding(code, f"the workspace has no {noun} `{shown}`", f"`{command}` shows what there is", path)

    return look


_NOUNS = {"datastores": "datastore", "data": "data", "environments": "environment", "models": "model"}


def _finding(code: str, message: str, hint: str | None, path: Path = ()) -> Finding:
    return Finding(code, level_of(code), message, hint, path)
