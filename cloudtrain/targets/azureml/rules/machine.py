"""Rules about the instance type of an Azure ML job: whether it exists, is still offered, and fits the job."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, timedelta

from cloudtrain.core.plan import Level
from cloudtrain.rules.alternatives import has_rdma_somewhere
from cloudtrain.rules.counterparts import counterpart
from cloudtrain.rules.rule import Fault, Subject, rule
from cloudtrain.rules.shared import machines as shared
from cloudtrain.rules.shared.network import instead, needs_network, over_ethernet
from cloudtrain.rules.words import plural
from cloudtrain.targets.azureml.catalogue.vm_names import guess, nearest_size
from cloudtrain.targets.azureml.compile.machines import is_own_type
from cloudtrain.targets.azureml.rules.view import (
    count_path,
    is_on_cluster,
    is_whole,
    machines,
    mapping,
    text,
)

_WITHOUT_GPU = r"(?i)standard_(?:[abdeflm]|b[a-z]s|d[a-z]{0,2}|e[a-z]?|f[a-z]|l[a-z]?|m)\d"
"""Series of sizes without GPUs: for general use, memory, disks and computing."""

_SOON = timedelta(days=365)

_MOST_RDMA = 100


@rule("AZ201", Level.ERROR)
def no_size(subject: Subject) -> Iterator[Fault]:
    """The instance type is not a valid name of an Azure VM size.

    Names look like `Standard_NC24ads_A100_v4`: `Standard_`, the family, the number of vCPUs, letters for features, the
    accelerator and the version; upper and lower case are the same. The SDK sends any text (azure-ai-ml 1.35.2), and the
    job fails only when Azure allocates machines. Instance types of an attached Kubernetes cluster have the names of
    objects in that cluster (small letters, digits, `-` and `.`), which cloudtrain sends unchanged.
    """
    found = machines(subject)
    name = _unknown(subject)
    if (
        not name
        or guess(name) is not None
        or (is_on_cluster(subject) and is_own_type(text(subject, "computeId"), name))
    ):
        return
    near = nearest_size(name)
    hint = f"did you mean `{near}`?" if near else "`cloudtrain instances --target azureml` lists the types"
    hint = counterpart(found.instance_type, "azureml") or hint
    yield Fault(f"`{found.instance_type}` cannot be the name of an Azure VM size", hint, found.path)


@rule("AZ202", Level.WARNING)
def unknown_type(subject: Subject) -> Iterator[Fault]:
    """The instance type is not in the catalogue.

    The name may be misspelt, or newer than the catalogue, which has the sizes in Azure ML's documentation. cloudtrain
    does not know the type's GPUs, network and price. Ask the workspace:
    `cloudtrain instances --target azureml --refresh`. This rule ignores sizes without GPUs (series A to M), because
    they have little to check.
    """
    found = machines(subject)
    name = _unknown(subject)
    if guess(name) is None or re.match(_WITHOUT_GPU, name):
        return
    near = nearest_size(name)
    refresh = "`cloudtrain instances --target azureml --refresh` asks the workspace"
    hint = f"did you mean `{near}`? Or {refresh}" if near else refresh
    yield Fault(f"the catalogue has no instance type `{found.instance_type}`", hint, found.path)


@rule("AZ203", Level.ERROR)
def without_infiniband(subject: Subject) -> Iterator[Fault]:
    """Several instances with GPUs train together without InfiniBand.

    Gradients then travel over Ethernet, and the GPUs wait for them. For most models, several such instances are not
    faster than one. Sizes with InfiniBand have an `r` among the letters after their number;
    `cloudtrain instances --target azureml --interconnect infiniband` lists them. One larger instance with as many GPUs
    needs no network at all. If you mean to use Ethernet, write `interconnect: ethernet` under `resources`.
    """
    known = machines(subject).known
    if known is not None and has_rdma_somewhere(known):
        yield from over_ethernet(subject, "AZ203")


@rule("AZ204", Level.ERROR)
def infiniband_without_sriov(subject: Subject) -> Iterator[Fault]:
    """The instance type has InfiniBand without SR-IOV, which NCCL cannot use.

    On NC24r, NC24rs_v2 and ND24rs only Intel MPI can use InfiniBand (Azure documentation: RDMA-capable instances).
    NCCL, and therefore PyTorch and Horovod, fall back to Ethernet.
    """
    found = machines(subject)
    known = found.known
    if needs_network(subject) and known and known.fabric == "infiniband" and known.interconnect != "rdma":
        yield Fault(
            f"`{known.name}` has InfiniBand without SR-IOV, which NCCL cannot use, and this job runs on "
            f"{plural(found.count, 'instance')}",
            instead(subject, known, "AZ204"),
            found.path,
        )


@rule("AZ205", Level.WARNING)
def infiniband_guessed(subject: Subject) -> Iterator[Fault]:
    """cloudtrain guesses from the name whether the instance type has InfiniBand.

    The catalogue lacks this instance type, so its name is the only source. An `r` among the letters after the size's
    number means RDMA: this is true for all sizes in the catalogue, but Azure does not promise it. The name does not
    tell whether the InfiniBand has SR-IOV, which NCCL needs.
    """
    found = machines(subject)
    if not found.instance_type or found.known is not None or not needs_network(subject):
        return
    said = guess(found.instance_type)
    if said is None or not (said.gpu or found.instance_type.casefold().startswith("standard_n")):
        return
    fact = 'interconnect = "rdma"' if said.has_infiniband else 'interconnect = "ethernet"'
    where = f'`[azureml."{found.instance_type}"]` in `instances.toml`'
    hint = f"if you know better, write `{fact}` with the `vcpus` and `memory_gib` of the type under {where}"
    if not said.has_infiniband:
        hint = f"`cloudtrain instances --target azureml --interconnect infiniband` lists types with it; {hint}"
    yield Fault(f"{said.text}; this job runs on {plural(found.count, 'instance')}", hint, found.path)


@rule("AZ206", Level.ERROR)
def retired_type(subject: Subject) -> Iterator[Fault]:
    """The instance type is retired.

    Azure has removed the machines, so the job would fail or wait forever. The date of retirement is Azure's (the
    catalogue names the source), or comes from your own `instances.toml`.
    """
    return shared.retired_type(subject, until=str(date.today()))


@rule("AZ207", Level.NOTICE)
def retires_soon(subject: Subject) -> Iterator[Fault]:
    """The instance type will be retired within a year.

    Azure has announced the day on which it removes the type. The job still runs today, but not after that day.
    """
    today = date.today()
    return shared.retired_type(subject, after=str(today), until=str(today + _SOON))


rule("AZ208", Level.ERROR)(shared.type_is_not_as_described)


@rule("AZ209", Level.ERROR)
def too_many_instances(subject: Subject) -> Iterator[Fault]:
    """The job asks for more instances than the service can connect.

    A cluster with InfiniBand has at most 100 instances, and an MPI run has at most 100 on any network (Azure ML
    documentation, quotas: nodes of a communication-enabled pool on an RDMA family, nodes of a single MPI run).
    """
    found, kind = machines(subject), mapping(subject, "distribution").get("distributionType")
    if found.count <= _MOST_RDMA:
        return
    why = ""
    if found.known and found.known.fabric:
        why = f"over InfiniBand (`{found.known.name}`)"
    elif kind == "Mpi":
        why = "in one MPI run"
    if why:
        yield Fault(
            f"the job runs on {plural(found.count, 'instance')}, and Azure ML allows at most {_MOST_RDMA} {why}",
            f"set `instance_count` to {_MOST_RDMA} or less, with more GPUs on each",
            count_path(subject),
        )


@rule("AZ210", Level.ERROR)
def instance_count(subject: Subject) -> Iterator[Fault]:
    """The number of instances is not a whole number of at least one.

    Only overrides can cause this. The SDK sends -3, 0 and `"2"` unchanged (azure-ai-ml 1.35.2), and Azure does not
    document the service's reaction.
    """
    written = mapping(subject, "resources").get("instanceCount", 1)
    if not is_whole(written, 1):
        shown = f'"{written}"' if isinstance(written, str) else written
        hint = "set `resources.instance_count` to 1 or more, and remove it from the overrides"
        yield Fault(f"`instanceCount` must be a whole number of at least 1, not `{shown}`", hint, count_path(subject))


@rule("AZ211", Level.WARNING)
def no_infiniband_for_this_gpu(subject: Subject) -> Iterator[Fault]:
    """Several instances train together over Ethernet; no instance type with the same GPU has InfiniBand.

    Azure offers T4, A10 and similar GPUs only without InfiniBand. Gradients travel over Ethernet, and the GPUs wait for
    them. Small models train well over Ethernet; for others one instance with a larger GPU is often faster and cheaper
    than several instances with small GPUs. If you mean to use Ethernet, write `interconnect: ethernet` under
    `resources`.
    """
    known = machines(subject).known
    if known is not None and not has_rdma_somewhere(known):
        yield from over_ethernet(subject, "AZ211")


def _unknown(subject: Subject) -> str:
    """Return the job's instance type if the catalogue lacks it; otherwise an empty text."""
    found = machines(subject)
    return found.instance_type if found.known is None else ""
