"""Rules about the environment variables of an Azure ML job."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cloudtrain.core.plan import Level
from cloudtrain.rules.portable.job import LAUNCHER_VARIABLES
from cloudtrain.rules.rule import Fault, Subject, rule
from cloudtrain.rules.shared.network import works_together
from cloudtrain.rules.words import plural
from cloudtrain.targets.azureml.rules.view import Path, body, machines, mapping, place

_OF_SERVICE = re.compile(
    r"AZ_BATCH_.*|AZ_BATCHAI_.*|OMPI_COMM_WORLD_.*|OMPI_UNIVERSE_SIZE|AZUREML_CR_.*|AZUREML_ARM_.*|AZUREML_WORKSPACE_.*"
    r"|AZUREML_(ROOT_)?RUN_(ID|TOKEN.*)|AZUREML_EXPERIMENT_(ID|SCOPE)|AZUREML_\w*SERVICE_ENDPOINT|AZUREML_NODE_COUNT"
    r"|AZUREML_PROCESS_NAME|AZUREML_TARGET_TYPE|AZUREML_(PARAMETER|DATAREFERENCE)_.*|AZURE_ML_(INPUT|OUTPUT)_.*"
    r"|MLFLOW_RUN_ID"
)
"""Variables that the service sets in each process, as published environments of jobs show."""

_NOT_A_NETWORK = ("docker", "lo", "veth")
_TRUE = ("1", "true", "yes", "y", "on")


@rule("AZ621", Level.ERROR)
def variable_is_no_text(subject: Subject) -> Iterator[Fault]:
    """The value of an environment variable is a number or `true` instead of a text.

    Only overrides can cause this. The SDK sends such values unchanged (azure-ai-ml 1.35.2), and the API accepts only
    texts.
    """
    for name, value in mapping(subject, "environmentVariables").items():
        path = place(subject, ("environmentVariables", name), ("environment", "variables", name))
        if not isinstance(value, str):
            word = str(value).lower() if isinstance(value, bool) else value
            yield Fault(f"the variable `{name}` is `{word}`, and not a text", f'write `{name}: "{word}"`', path)


@rule("AZ622", Level.ERROR)
def variable_of_service(subject: Subject) -> Iterator[Fault]:
    """The job sets an environment variable that Azure ML sets.

    These variables tell each process its rank, the location of its data, and its token for the workspace. If the job
    sets them, all processes may get the same rank, or the job may lose the connection to its run. This rule ignores
    `AZUREML_COMMON_RUNTIME_...` and other variables that users may set.
    """
    for name in mapping(subject, "environmentVariables"):
        seen = name in LAUNCHER_VARIABLES or name.startswith("AZUREML_CR_")  # CT204 reports these
        if _OF_SERVICE.fullmatch(name) and not seen:
            message = f"Azure ML sets `{name}` itself, for each process"
            path = _path(subject, name)
            yield Fault(message, f"remove `{'' if path[-1] == name else '-x '}{name}`", path)


@rule("AZ623", Level.WARNING)
def interface_without_network(subject: Subject) -> Iterator[Fault]:
    """NCCL would use a network card that does not connect the instances.

    `docker0` and `lo` exist on every instance but do not connect instances, so NCCL hangs at the start until it times
    out. The Ethernet card of Azure's GPU machines is `eth0`; without `NCCL_SOCKET_IFNAME`, NCCL finds it by itself.
    """
    if not _over_instances(subject):
        return
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = _value(subject, name)
        cards = [card.lstrip("=") for card in value.split(",")]
        if value and not value.startswith("^") and all(card.startswith(_NOT_A_NETWORK) for card in cards):
            message = f"`{name}={value}` does not connect the job's {body(subject).instances:,} instances"
            yield Fault(message, f"write `{name}: eth0`, or remove it", _path(subject, name))


@rule("AZ624", Level.WARNING)
def infiniband_switched_off(subject: Subject) -> Iterator[Fault]:
    """The job pays for InfiniBand but switches it off.

    With `NCCL_IB_DISABLE=1`, all gradients travel over Ethernet at a fraction of the speed. On a machine with
    InfiniBand this is useful only to find network errors.
    """
    known, value = machines(subject).known, _value(subject, "NCCL_IB_DISABLE")
    if _over_instances(subject) and known and known.interconnect == "rdma" and value.casefold() in _TRUE:
        speed = f"{known.network_gbps:,.0f} Gb/s of " if known.network_gbps else ""
        yield Fault(
            f"`NCCL_IB_DISABLE={value}` switches off the {speed}InfiniBand of `{known.name}`",
            "remove `NCCL_IB_DISABLE`",
            _path(subject, "NCCL_IB_DISABLE"),
        )


@rule("AZ625", Level.WARNING)
def same_gpus_for_all(subject: Subject) -> Iterator[Fault]:
    """`CUDA_VISIBLE_DEVICES` shows fewer GPUs than an instance has processes.

    All processes get the same value. With `0`, all eight processes of an instance see only GPU 0, and NCCL stops
    ("Duplicate GPU detected"). Let each process choose its GPU by `LOCAL_RANK`.
    """
    value, count = _value(subject, "CUDA_VISIBLE_DEVICES"), body(subject).processes_per_instance
    shown = len([device for device in value.split(",") if device.strip()])
    is_set = "CUDA_VISIBLE_DEVICES" in mapping(subject, "environmentVariables")
    if is_set and body(subject).kind in ("PyTorch", "Mpi") and machines(subject).device != "cpu" and shown < count:
        yield Fault(
            f"`CUDA_VISIBLE_DEVICES={value}` shows {plural(shown, 'GPU')} to each of {plural(count, 'process')}",
            "remove it, and let each process use the GPU with the number `LOCAL_RANK`",
            _path(subject, "CUDA_VISIBLE_DEVICES"),
        )


@rule("AZ520", Level.WARNING)
def secrets_out_of_reach(subject: Subject) -> Iterator[Fault]:
    """The job may not be able to look up a secret.

    `keyvault:VAULT/NAME` needs the managed identity of the compute or of the job, with the role `Key Vault Secrets
    User`; a job with `identity: user` or `aml_token` has none. `keyvault:NAME`, in the workspace's own vault, needs
    azureml-core in the environment.
    """
    for name, secret in subject.job.environment.secrets.items():
        place, path = secret.of("azureml") or "", ("environment", "secrets", name)
        if place.startswith("keyvault:") and "/" not in place:
            message = f"the secret `{name}` is in the workspace's vault, which only azureml-core can read"
            yield Fault(message, f"name the vault, `keyvault:VAULT/{place[9:]}`, or install azureml-core", path)
        elif subject.target.identity in ("user", "aml_token"):
            message = f"the secret `{name}` needs a managed identity, and the job has `{subject.target.identity}`"
            yield Fault(message, 'set `identity = "managed"` in `[azureml]`', path)


def _over_instances(subject: Subject) -> bool:
    return body(subject).instances > 1 and works_together(subject)


def _value(subject: Subject, name: str) -> str:
    value = mapping(subject, "environmentVariables").get(name)
    return value if isinstance(value, str) else ""


def _path(subject: Subject, name: str) -> Path:
    """Return the path of the field that sets a variable: the override, `environment.variables`, or else
    `distribution.options`, because options of mpirun can set variables.
    """
    field: Path = ("environment", "variables", name)
    if name not in subject.job.environment.variables:
        field = ("distribution", "options")
    return place(subject, ("environmentVariables", name), field)
