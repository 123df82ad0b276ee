"""Rules about the instance type of an Azure ML job: that it exists, that it is still offered, that it is what the job
describes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta

from cloudtrain.catalogue.azure_names import guess
from cloudtrain.catalogue.instances import InstanceType
from cloudtrain.checks.azureml_alternatives import (
    better_network,
    has_infiniband_somewhere,
    last_day,
    nearest,
    successor,
    today,
    with_infiniband,
)
from cloudtrain.checks.azureml_view import count_path, is_whole, machines, mapping, plural, works_together
from cloudtrain.checks.rule import Fault, Subject, rule
from cloudtrain.plans import Level

_SOON = timedelta(days=365)

_MOST_RDMA = 100


@rule("AZ201", Level.ERROR)
def no_size(subject: Subject) -> Iterator[Fault]:
    """The instance type cannot be the name of an Azure VM size.

    Names are built like `Standard_NC24ads_A100_v4`: `Standard_`, the family, the number of vCPUs, letters for
    features, the accelerator and the version; upper and lower case are the same. The SDK sends any text (azure-ai-ml
    1.35.2), and the job fails when machines are looked for.
    """
    found = machines(subject)
    if found.name is None or found.known is not None or guess(found.name) is not None:
        return
    near = nearest(found.name)
    hint = f"did you mean `{near}`?" if near else "`cloudtrain instances --target azureml` lists the types"
    yield Fault(f"`{found.name}` cannot be the name of an Azure VM size", hint, found.path)


@rule("AZ202", Level.WARNING)
def unknown_type(subject: Subject) -> Iterator[Fault]:
    """The catalogue does not have the instance type.

    It may be misspelt, or newer than the catalogue, which has the sizes that Azure ML's documentation names. Nothing
    can be said about its GPUs, its network and its price; `cloudtrain instances --target azureml --refresh` asks the
    workspace which sizes there are.
    """
    found = machines(subject)
    if found.name is None or found.known is not None or guess(found.name) is None:
        return
    near = nearest(found.name)
    refresh = "`cloudtrain instances --target azureml --refresh` asks the workspace"
    hint = f"did you mean `{near}`? Or {refresh}" if near else refresh
    yield Fault(f"the catalogue has no instance type `{found.name}`", hint, found.path)


@rule("AZ203", Level.ERROR)
def without_infiniband(subject: Subject) -> Iterator[Fault]:
    """Several instances with GPUs work together without InfiniBand.

    Gradients then travel over Ethernet, and the GPUs wait for them: on most models several such instances are not
    faster than one. Sizes with InfiniBand have an `r` among the letters after their number, and
    `cloudtrain instances --target azureml --interconnect infiniband` lists them; one larger instance with as many GPUs
    needs no network at all. A job that is meant to use Ethernet says so with `interconnect: ethernet` under
    `resources`.
    """
    known = _without_infiniband(subject)
    if known is not None and has_infiniband_somewhere(known):
        yield _no_infiniband(subject, known, "AZ203")


@rule("AZ204", Level.ERROR)
def infiniband_without_sriov(subject: Subject) -> Iterator[Fault]:
    """The instance type has InfiniBand without SR-IOV, which NCCL cannot use.

    NC24r, NC24rs_v2 and ND24rs give their InfiniBand to Intel MPI alone (Azure documentation: RDMA-capable instances).
    NCCL, and with it PyTorch and Horovod, falls back to Ethernet on them.
    """
    found = machines(subject)
    known = found.known
    if _talks_over_network(subject) and known and known.fabric == "infiniband" and known.interconnect != "rdma":
        yield Fault(
            f"`{known.name}` has InfiniBand without SR-IOV, which NCCL cannot use, and this job runs on "
            f"{found.counted}",
            better_network(known, found.count, "AZ204"),
            found.path,
        )


@rule("AZ205", Level.WARNING)
def infiniband_guessed(subject: Subject) -> Iterator[Fault]:
    """Whether the instance type has InfiniBand is a guess from its name.

    An `r` among the letters after a size's number means RDMA: so it is for all sizes of the catalogue. It is a habit
    of Azure's, not a promise, and no name says whether the InfiniBand has SR-IOV, without which NCCL cannot use it. For
    a size that the catalogue lacks there is nothing better.
    """
    found = machines(subject)
    if found.name is None or found.known is not None or not _talks_over_network(subject):
        return
    said = guess(found.name)
    if said is None or not (said.gpu or found.name.casefold().startswith("standard_n")):
        return
    fact = 'interconnect = "rdma"' if said.has_infiniband else 'interconnect = "ethernet"'
    where = f'`[azureml."{found.name}"]` in `instances.toml`'
    hint = f"if you know better, write it with `{fact}` under {where}"
    if not said.has_infiniband:
        hint = f"`cloudtrain instances --target azureml --interconnect infiniband` lists types with it; {hint}"
    yield Fault(f"{said.text}; this job runs on {found.counted}", hint, found.path)


@rule("AZ206", Level.ERROR)
def retired_type(subject: Subject) -> Iterator[Fault]:
    """The instance type is retired.

    Azure has taken the machines away, so a job on them fails or waits for ever. The dates are those that Azure has
    announced (the table of the catalogue names its source), or those of your own `instances.toml`.
    """
    found = machines(subject)
    last = last_day(found.known)
    if found.known and last and last <= today():
        yield Fault(
            f"`{found.known.name}` is retired: Azure has not offered it since {last}",
            successor(found.known) or "`cloudtrain instances --target azureml` lists the others",
            found.path,
        )


@rule("AZ207", Level.NOTICE)
def retires_soon(subject: Subject) -> Iterator[Fault]:
    """The instance type will be retired within a year.

    Azure has announced the day from which it is no longer offered. A job of today runs; the same file will not.
    """
    found = machines(subject)
    last = last_day(found.known)
    if found.known and last and today() < last <= str(date.today() + _SOON):
        yield Fault(
            f"Azure retires `{found.known.name}` on {last}",
            successor(found.known) or "`cloudtrain instances --target azureml` lists the others",
            found.path,
        )


@rule("AZ208", Level.ERROR)
def type_is_not_as_described(subject: Subject) -> Iterator[Fault]:
    """The instance type is not what the job says beside it.

    `gpus_per_instance` and `interconnect` describe a machine. Where an instance type is named as well, one of the two
    is a mistake: the job would run with fewer processes, or over a slower network, than it was written for.
    """
    found, resources = machines(subject), subject.job.resources
    known = found.known
    if known is None:
        return
    asked = resources.gpus_per_instance
    if asked is not None and asked != known.gpus:
        message = f"`{known.name}` has {plural(known.gpus, 'GPU') if known.gpus else 'no GPUs'}, not {asked}"
        hint = f"set `gpus_per_instance` to {known.gpus}, or name another type"
        yield Fault(message, hint, ("resources", "gpus_per_instance"))
    if resources.interconnect == "rdma" and known.interconnect != "rdma":
        what = "InfiniBand without SR-IOV" if known.fabric else "no InfiniBand"
        hint = with_infiniband(known) or "remove `interconnect`, or name another type"
        yield Fault(f"`{known.name}` has {what}, and the job asks for RDMA", hint, ("resources", "interconnect"))


@rule("AZ209", Level.ERROR)
def too_many_instances(subject: Subject) -> Iterator[Fault]:
    """The job asks for more instances than the service joins.

    Over InfiniBand a cluster has at most 100 instances, and an MPI run has at most 100 on any network (Azure ML
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
            f"the job runs on {found.counted}, and Azure ML joins at most {_MOST_RDMA} {why}",
            f"set `instance_count` to {_MOST_RDMA} or less, with more GPUs on each",
            count_path(subject),
        )


@rule("AZ211", Level.WARNING)
def no_infiniband_for_this_gpu(subject: Subject) -> Iterator[Fault]:
    """Several instances work together over Ethernet, and no instance type with that GPU has InfiniBand.

    T4, A10 and their like are not offered with InfiniBand. Gradients travel over Ethernet, and the GPUs wait for them:
    for small models that is well, for others one instance with a larger GPU is often faster than several with small
    ones, and cheaper. `interconnect: ethernet` under `resources` says that it is meant so.
    """
    known = _without_infiniband(subject)
    if known is not None and not has_infiniband_somewhere(known):
        yield _no_infiniband(subject, known, "AZ211")


def _without_infiniband(subject: Subject) -> InstanceType | None:
    """The GPU machine of several that work together without it."""
    known = machines(subject).known
    wants = known is not None and known.gpus and not known.fabric and _talks_over_network(subject)
    return known if wants else None


def _no_infiniband(subject: Subject, known: InstanceType, code: str) -> Fault:
    found = machines(subject)
    message = f"`{known.name}` has no InfiniBand, and this job runs on {found.counted}"
    return Fault(message, better_network(known, found.count, code), found.path)


@rule("AZ210", Level.ERROR)
def instance_count(subject: Subject) -> Iterator[Fault]:
    """The number of instances is not a whole number of at least one.

    Only the overrides can say so. The SDK sends -3, 0 and `"2"` as they are (azure-ai-ml 1.35.2), and what the service
    makes of them is not documented.
    """
    written = mapping(subject, "resources").get("instanceCount", 1)
    if not is_whole(written, 1):
        shown = f'"{written}"' if isinstance(written, str) else written
        hint = "set `resources.instance_count` to 1 or more, and remove it from the overrides"
        yield Fault(f"`instanceCount` must be a whole number of at least 1, not `{shown}`", hint, count_path(subject))


def _talks_over_network(subject: Subject) -> bool:
    """Whether several instances work together, and the job does not say that Ethernet will do."""
    return (
        machines(subject).count > 1
        and works_together(subject)
        and subject.job.resources.interconnect != "ethernet"
        and (subject.job.distribution.type != "none")
    )
