"""Checks of a plan that ask the workspace. Missing permissions only cause warnings, and the checks
change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from cloudtrain.documents import JsonMapping, JsonObject
from cloudtrain.errors import (
    CloudtrainError,
    MissingExtra,
    TargetError,
    TargetUnreachable,
    did_you_mean,
)
from cloudtrain.machines.overlay import Refreshed, write_refreshed
from cloudtrain.machines.table import instance_named
from cloudtrain.plans.plan import Finding, Level, Plan
from cloudtrain.rules.engine import (
    ValuePath,
    declare_all,
    finding_of,
    mapping_at,
    rows_at,
    text_at,
    value_at,
)
from cloudtrain.rules.job import not_asked
from cloudtrain.rules.machines import write_price
from cloudtrain.targets.azureml.catalogue import overlay_of, squeeze
from cloudtrain.targets.azureml.parts import Labelled, parse_label
from cloudtrain.targets.azureml.reading import Body, DatastorePlace, place_of
from cloudtrain.targets.azureml.service.client import (
    COMPUTE,
    DATASTORE,
    ENVIRONMENT,
    Client,
    Labels,
)
from cloudtrain.targets.azureml.service.provider_errors import error_fields
from cloudtrain.targets.azureml.settings import ASKED
from cloudtrain.targets.common.services import Denied, NotThere

# Check whether a region offers a serverless job's instance type, and whether the quota is large
# enough.
#
# Azure ML limits vCPUs of each family (`standardNCADSA100v4Family`) and of all families
# (`TotalDedicatedCores`). For spot capacity, only `TotalLowPriorityCores` applies: the low-priority
# vCPUs of all families together.

_ALL = "TotalDedicatedCores"
_ALL_SPARE = "TotalLowPriorityCores"
_ASK = "ask for more in the studio, under Quota: https://ml.azure.com/quota"


_TYPE = ("resources", "instance_type")
_COUNT = ("resources", "instance_count")


def _capacity(question: _Question, location: str) -> Iterator[Finding]:
    """Yield the capacity problems of a serverless job in one region."""
    client = question.client
    size = question.body.instance_type
    is_spot = question.body.is_spot
    sizes = _list_entries(client, location, "vmSizes")
    offers = [item for item in sizes if item["name"].lower() == size.lower()]
    if not offers:
        with_gpus = [item["name"] for item in sizes if item.get("gpus")]
        hint = did_you_mean(size, with_gpus) or "name another region"
        yield finding_of("AZ909", f"Azure ML offers no {size} in {location}", hint, _TYPE)
        return
    offer = offers[0]
    if is_spot and offer.get("lowPriorityCapable") is False:
        message = f"{size} is not sold as spot capacity in {location}"
        yield finding_of("AZ909", message, "remove `spot`, or name another type", _TYPE)
        return

    vcpus = int(offer["vCPUs"]) * question.body.instances
    usages = _list_entries(client, location, "usages")
    names = [_ALL_SPARE] if is_spot else [str(offer["family"]), _ALL]
    for name in names:
        entries = [usage for usage in usages if _is_of(usage, name)]
        if not entries and name != _ALL:
            message = (
                f"{location} lists no quota `{name}`, so it is not known whether you may "
                f"use {vcpus} vCPUs"
            )
            hint = "look in the studio, under Quota: https://ml.azure.com/quota"
            yield finding_of("AZ902", message, hint, _COUNT)
        for usage in entries:
            yield from _shortage(usage, vcpus, f"`{name}` in {location}")


def _shortage(usage: JsonMapping, vcpus: int, where: str) -> Iterator[Finding]:
    """Report a quota that is too small, or used up by other jobs. A negative quota means
    unlimited."""
    limit = int(usage["limit"])
    used_vcpus = int(usage.get("currentValue") or 0)
    if 0 <= limit < vcpus:
        message = f"the quota of {where} is {limit} vCPUs, and the job needs {vcpus}"
        yield finding_of("AZ910", message, _ASK, _COUNT)
    elif 0 <= limit < used_vcpus + vcpus:
        message = (
            f"{used_vcpus} of the {limit} vCPUs of {where} are in use, and the job needs {vcpus}"
        )
        yield finding_of("AZ911", message, f"it will wait in the queue; or {_ASK}", _COUNT)


def _is_of(usage: JsonMapping, name: str) -> bool:
    """Instead of the name, some entries contain a title such as `Standard NDv2 Family ...
    vCPUs`."""
    title = text_at(usage, "name", "value")
    if title.lower() == name.lower():
        return True
    words = squeeze(title)
    return "vcpus" in words and "lowpriority" not in words and words.startswith(squeeze(name))


def _list_entries(client: Client, location: str, what: str) -> list[JsonObject]:
    """Return what the service lists for a region: its `vmSizes` or `usages`."""
    path = (
        f"/subscriptions/{client.place.subscription_id}/providers/"
        f"Microsoft.MachineLearningServices/locations/{location}/{what}"
    )
    return client.items(path, api_version=COMPUTE)


_THREADS = 8


_INSTANCE = "ComputeInstance"
_RUNS_JOBS = ("AmlCompute", _INSTANCE, "Kubernetes")
_BROKEN = ("Failed", "Canceled", "Deleting")


@dataclass(frozen=True)
class _Question:
    """The values that every check uses."""

    client: Client
    plan: Plan
    instance_type: str
    """The instance type that the job was planned for."""
    labels: Labels
    sizes: list[str] = field(default_factory=list)
    """The size of the named compute's machines, once the service has told it."""

    @cached_property
    def body(self) -> Body:
        return Body(self.plan.request)


_Check = Callable[[_Question], Iterator[Finding]]


def check(
    client: Client, plan: Plan, instance_type: str, labels: Labels, *, is_capped: bool = False
) -> list[Finding]:
    """Return the findings of all checks. `instance_type` is the type that the job was planned for,
    which the body lacks on a cluster. `labels` stores the versions of labels for the submit. With
    `is_capped`, a cap counts the price of that type, so a compute of unknown size is refused."""
    question = _Question(client, plan, instance_type, labels)
    findings = _all_findings(question)
    body = question.body
    if is_capped and body.compute is not None and not question.sizes:
        name = body.compute_name
        message = f"the service did not tell the type of the machines of `{name}`, and a cap holds"
        findings.append(finding_of("AZ907", message, write_price("azureml", name, is_new=True)))
    return findings


def _all_findings(question: _Question) -> list[Finding]:
    """The first check is whether the workspace answers; all others run concurrently."""
    try:
        question.client.workspace  # noqa: B018 - asked for once, and kept
    except (Denied, TargetUnreachable) as error:
        message = f"the workspace could not be asked about {ASKED}: {error.message}"
        return [finding_of("AZ902", message, error.hint)]
    except NotThere as error:
        return [finding_of("AZ903", error.message, error.hint)]
    except MissingExtra:
        raise  # `--ignore` cannot help here
    except CloudtrainError as error:
        return [finding_of("AZ901", error.message, error.hint)]

    checks = list(_places(question))
    findings: list[Finding] = []
    if question.body.is_on_virtual_cluster:
        why = "Azure does not document how to ask for a virtual cluster's"
        findings.append(not_asked("Azure ML", "the machines and their quota", why, None))
    else:
        checks.insert(0, _compute if question.body.compute else _serverless)

    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        for answers in pool.map(lambda check: _answers(check, question), checks):
            findings += answers
    return findings


def _answers(check: _Check, question: _Question) -> list[Finding]:
    """Return the findings of a check. A failed query becomes a warning."""
    try:
        return list(check(question))
    except TargetError as error:
        return [finding_of("AZ902", f"a check could not be done: {error.message}", error.hint)]


def _compute(question: _Question) -> Iterator[Finding]:
    """Check the compute that the job names."""
    compute_id = question.body.compute
    assert compute_id is not None, "the job names one"
    name = question.body.compute_name
    try:
        compute = question.client.get(compute_id, api_version=COMPUTE)
    except NotThere:
        names = [item["name"] for item in question.client.items("computes", api_version=COMPUTE)]
        near = did_you_mean(name, names)
        hint = near or "make one with `az ml compute create`, or leave `compute` out"
        yield finding_of("AZ904", f"the workspace has no compute `{name}`", hint)
        return

    properties = compute["properties"]
    yield from _usability(question, name, properties)
    yield from _size(question, name, mapping_at(properties, "properties"))
    yield from _identity(question, f"the compute `{name}`", compute.get("identity"))


def _usability(question: _Question, name: str, properties: JsonMapping) -> Iterator[Finding]:
    """Report a compute that cannot run jobs, or not on several machines, or that is broken or
    switched off."""
    kind = properties.get("computeType")
    hint = "name a cluster, or leave `compute` out to run serverless"
    if kind not in _RUNS_JOBS:
        yield finding_of("AZ905", f"`{name}` is of the type {kind}, which runs no jobs", hint)
    elif kind == _INSTANCE and question.body.instances > 1:
        message = (
            f"`{name}` is a compute instance, which is one machine, and the job needs "
            f"{question.body.instances}"
        )
        yield finding_of("AZ905", message, hint, _COUNT)

    state = properties.get("provisioningState")
    if state in _BROKEN:
        message = f"`{name}` is in the state {state}"
        errors = rows_at(properties, "provisioningErrors")
        errors += rows_at(properties, "properties", "errors")
        for error in map(error_fields, errors):
            reason = str(error.get("message") or error.get("code") or "")
            if reason:
                message += f": {' '.join(reason.split())}"
                break
        hint = (
            f"`az ml compute show --name {name}` shows the reason; create it again, or name "
            "another one"
        )
        yield finding_of("AZ906", message, hint)
    elif kind == _INSTANCE:
        own_state = value_at(properties, "properties", "state")
        if own_state not in (None, "Running"):
            message = f"`{name}` is a compute instance that does not run: {own_state}"
            yield finding_of("AZ906", message, f"`az ml compute start --name {name}`")


def _size(question: _Question, name: str, machines: JsonMapping) -> Iterator[Finding]:
    """Report `machines` of another type than the plan's, or fewer of them than the job needs."""
    size = machines.get("vmSize")
    planned = question.instance_type
    if size:
        question.sizes.append(size)
    if size and planned and size.lower() != planned.lower():
        message = f"the machines of `{name}` are {size}, and the job was planned for {planned}"
        hint = f"name the cluster's type (`{size}`), or another cluster"
        yield finding_of("AZ907", message, hint, _TYPE)

    most = value_at(machines, "scaleSettings", "maxNodeCount")
    count = question.body.instances
    if most is not None and count > most:
        message = f"`{name}` may have {most} instances, and the job needs {count}"
        hint = f"`az ml compute update --name {name} --max-instances {count}`, or ask for fewer"
        yield finding_of("AZ908", message, hint, _COUNT)


def _serverless(question: _Question) -> Iterator[Finding]:
    """Check the capacity for a serverless job. Of several regions, only the best counts."""
    body = question.body
    workspace = question.client.workspace
    locations = body.mapping("resources").get("locations") or [workspace["location"]]
    yield from _identity(question, "the workspace", workspace.get("identity"))
    if not body.instance_type:
        # the service will choose a size that the quota allows
        hint = "add `resources.instance_type`"
        yield not_asked("Azure ML", "the quota", "the job names no instance type", hint)
        return
    regions = [list(_capacity(question, location)) for location in locations]

    def weight(findings: list[Finding]) -> tuple[int, int]:
        """Errors count more than warnings, because an error means that the service refuses the
        job."""
        return sum(finding.level is Level.ERROR for finding in findings), len(findings)

    yield from min(regions, key=weight, default=[])


def _identity(question: _Question, owner: str, identities: Any) -> Iterator[Finding]:
    """Report the job's managed identity if it is not among the `identities` of `owner`, a cluster
    or workspace."""
    identity = question.body.mapping("identity")
    if identity.get("identityType") != "Managed":
        return

    has_it = value_at(identities, "type") not in (None, "", "None")
    wanted = identity.get("clientId") or identity.get("resourceId")
    if wanted:
        known = set[str]()
        for resource, user in mapping_at(identities, "userAssignedIdentities").items():
            known |= {resource.lower(), str(value_at(user, "clientId")).lower()}
        has_it = str(wanted).lower() in known
    if not has_it:
        message = f"{owner} has no managed identity"
        if wanted:
            message += f" `{wanted}`"
        yield finding_of(
            "AZ915",
            message,
            "assign it, or name another; `managed_identity_client_id` must be a client id, "
            "not an object id",
        )


def _meaning(question: _Question, label: Labelled, code: str, path: ValuePath) -> Iterator[Finding]:
    """Report the current version of a labelled asset as AZ916, or a missing asset as `code`."""
    noun = _NOUNS[label.kind]
    try:
        version = question.labels.ask(question.client, label)
    except NotThere:
        message = f"the workspace has no {noun} `{label.name}`"
        hint = f"`az ml {noun} list` shows what there is"
        yield finding_of(code, message, hint, path)
    else:
        message = f"`{label.name}@latest` is the version `{version}` now"
        hint = f"write `azureml:{label.name}:{version}` to keep it"
        yield finding_of("AZ916", message, hint, path)


def _places(question: _Question) -> Iterator[_Check]:
    """Yield a check for a registered environment, and for each asset or datastore that the inputs
    and outputs name."""
    environment = question.body.environment
    uploads = {upload.destination for upload in question.plan.uploads}
    # the submit makes the uploaded ones; the service checks those in registries
    if environment not in uploads and environment.startswith("/subscriptions/"):
        yield partial(_exists, environment, "AZ912", ("environment", "azureml"))

    workspace = question.client.place.workspace_id
    things = set[str]()
    for kind, code in (("inputs", "AZ913"), ("outputs", "AZ914")):
        for name, item in question.body.mapping(kind).items():
            thing = _thing(str(item.get("uri") or ""), workspace)
            if thing is not None and thing not in things:
                things.add(thing)
                path: ValuePath = (kind, name, "azureml")
                if name == "checkpoint":
                    path = ("checkpoint",)
                yield partial(_exists, thing, code, path)


def _thing(uri: str, workspace: str) -> str | None:
    """Return the id of the asset or datastore in an address; None if it names neither."""
    if uri.startswith("/subscriptions/"):
        return uri
    with suppress(TargetError):
        place = place_of(uri, workspace)
        if isinstance(place, DatastorePlace):
            return f"{place.workspace}/datastores/{place.name}"
    return None


def _exists(thing: str, code: str, path: ValuePath, question: _Question) -> Iterator[Finding]:
    """Report a missing `thing` (an id) as `code`, or the current version of its label."""
    label = parse_label(thing)
    if label:
        yield from _meaning(question, label, code, path)
        return

    inside = thing.partition("/workspaces/")[2].partition("/")[2]
    kind, _, name = inside.partition("/")
    # The version for environments fits data and models: azure-ai-ml 1.35.2 never asks for these.
    try:
        question.client.get(thing, api_version=DATASTORE if kind == "datastores" else ENVIRONMENT)
    except NotThere:
        noun = _NOUNS.get(kind, kind)
        asset, slash, _ = name.partition("/versions/")
        option = f" --name {asset}" if slash else ""
        message = f"the workspace has no {noun} `{name.replace('/versions/', ':')}`"
        yield finding_of(code, message, f"`az ml {noun} list{option}` shows what there is", path)


_NOUNS = {
    "datastores": "datastore",
    "data": "data",
    "environments": "environment",
    "models": "model",
}


# Refresh the catalogue for a workspace's region: sizes with prices, quota, and facts from
# Microsoft.Compute.

SKUS = "2021-07-01"
"""The version of Microsoft.Compute's list of sizes that Azure's SDKs send; not tested against the
service."""


def refresh(client: Client, *, folder: Path, date: str) -> Refreshed:
    """Ask Azure about the workspace's region, and write corrections of the catalogue into the
    user's `folder`. Data that the credentials may not read (often Microsoft.Compute, sometimes the
    quota) is left out, with a note. If the workspace or its sizes cannot be read, nothing is
    written. `date` is the ISO date of the prices."""
    location = str(client.workspace["location"])
    notes: list[str] = []

    def if_allowed(ask: Callable[[], list[Any]], without: str) -> list[Any] | None:
        try:
            return ask()
        except Denied as error:
            notes.append(f"{without}: {error.message}")
            return None

    # only the sizes are indispensable
    sizes = _list_entries(client, location, "vmSizes")
    usages = if_allowed(lambda: _list_entries(client, location, "usages"), "without the quota")
    skus_path = f"/subscriptions/{client.place.subscription_id}/providers/Microsoft.Compute/skus"
    here = {"$filter": f"location eq '{location}'"}
    skus = if_allowed(
        lambda: client.items(skus_path, api_version=SKUS, query=here),
        "the InfiniBand of sizes that are new is guessed from their names",
    )

    table = overlay_of(sizes, usages or (), skus, date=date, location=location)
    about = f"Azure ML's VM sizes in {location}, asked on {date}"
    file = write_refreshed(folder, "azureml", table, about=about)
    new_types = tuple(name for name in table if instance_named("azureml", name) is None)
    return Refreshed(file, location, len(table), new_types, tuple(notes))


declare_all(Path(__file__).with_suffix(".toml"))
