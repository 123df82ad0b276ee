"""Rules about the container of an Azure ML job: shared memory, docker options, services,
identity."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import suppress

from cloudtrain.errors import InPlace, quoted
from cloudtrain.job.model import value_text
from cloudtrain.plans.plan import Level
from cloudtrain.rules.engine import Fault, Nature, Subject, ValuePath, plural, rule, value_at
from cloudtrain.rules.job import LAUNCHER_VARIABLES
from cloudtrain.rules.machines import works_together
from cloudtrain.rules.named import TITLES, Variable, variables
from cloudtrain.targets.azureml.compile.places import curated_of
from cloudtrain.targets.azureml.parts import parse_label
from cloudtrain.targets.azureml.reading import read
from cloudtrain.targets.azureml.rules.account import GUID

_SIZE = r"0*[1-9][0-9]*[bkmgBKMG]?"
_PUBLIC_KEY = r"(ssh-(rsa|ed25519|dss)|ecdsa-sha2-\S+|sk-\S+) +[A-Za-z0-9+/=]{16,}( .*)?"

_MANY_PROCESSES = 4


@rule("AZ701", Level.ERROR)
def shared_memory_size(subject: Subject) -> Iterator[Fault]:
    """The size of the shared memory is not valid.

    Only overrides can cause this; the SDK sends even `banana` (azure-ai-ml 1.35.2). A size is a
    number and one of `b`, `k`, `m` and `g` (documentation, YAML schema of the command job).
    """
    size = read(subject).body.mapping("resources").get("shmSize")
    is_size = isinstance(size, str) and re.fullmatch(_SIZE, size)
    if size is not None and not is_size:
        message = f"`shmSize` must be a size like `64g`, not `{size}`"
        hint = "write for example `shm_size: 64g` under `resources`"
        yield Fault(message, hint, ("resources", "shm_size"))


@rule("AZ702", Level.NOTICE)
def shared_memory_small(subject: Subject) -> Iterator[Fault]:
    """Several processes share the default shared memory of 2 GiB.

    Workers of a data loader pass batches through `/dev/shm`, which all processes of an instance
    share. Azure ML's default is 2g (documentation, YAML schema of the command job). If that is not
    enough, a worker ends with "Bus error".
    """
    reading = read(subject)
    body = reading.body
    count = body.processes_per_instance
    row = reading.group.known
    if body.kind != "PyTorch" or count < _MANY_PROCESSES or row is None or not row.gpus:
        return
    words = _docker_words(subject)
    is_set = any(word.startswith(("--shm-size", "--ipc")) for word in words)
    if is_set or body.mapping("resources").get("shmSize"):
        return

    size = min(8 * count, int(row.memory_gib / 2))
    message = f"{count} processes share the default 2 GiB of `/dev/shm`"
    hint = f"write `shm_size: {size}g` under `resources` if the data loader has workers"
    yield Fault(message, hint, ("resources",))


@rule("AZ703", Level.ERROR)
def docker_arguments(subject: Subject) -> Iterator[Fault]:
    """The docker options cannot be parsed, or contradict each other.

    A body has either `dockerArgs` (one text) or `dockerArgsList`, not both. For shared memory use
    the field `shm_size`: if the docker options also set its size, docker decides which value
    counts.
    """
    resources = read(subject).body.mapping("resources")
    text = resources.get("dockerArgs")
    words = _docker_words(subject)
    path = _docker_path(subject)

    if text and resources.get("dockerArgsList"):
        message = "`dockerArgs` and `dockerArgsList` exclude each other"
        yield Fault(message, "remove one of them", path)
    if isinstance(text, str) and not words and text.strip():
        message = f"`docker_args` is not valid shell syntax: `{text}`"
        yield Fault(message, "close the quotes, or write it as a list", path)
    sizes = [word for word in words if word.partition("=")[0] == "--shm-size"]
    if len(sizes) + (resources.get("shmSize") is not None) > 1:
        hint = "remove `--shm-size` from `docker_args`; keep only `shm_size` under `resources`"
        yield Fault("the size of the shared memory is given twice", hint, path)


@rule("AZ704", Level.WARNING)
def privileged_container(subject: Subject) -> Iterator[Fault]:
    """The option `--privileged` gives the container full access to its machine.

    Every program in the container can use the machine's devices and read its disks, and thus the
    job's token. Few programs need `--privileged`: InfiniBand and GPUs work without it, and a
    debugger needs only `--cap-add SYS_PTRACE`.
    """
    if "--privileged" in _docker_words(subject):
        yield Fault(
            "`--privileged` gives the container all rights on its machine",
            (
                "remove `--privileged` from `docker_args`; `--cap-add NAME` gives the one right "
                "that is needed"
            ),
            _docker_path(subject),
        )


@rule("AZ711", Level.ERROR, Nature.FACT)
def ssh_key(subject: Subject) -> Iterator[Fault]:
    """An ssh service has no public key.

    Without a public key nobody can log in. Write the key itself, the line in
    `~/.ssh/id_ed25519.pub`, not the file's name. Never write a private key, because it would be
    stored with the job.
    """
    reading = read(subject)
    for name in _services(subject, "SSH"):
        keys = reading.body.text("services", name, "properties", "sshPublicKeys")
        lines = re.findall(r"\S.*\S", keys)
        if lines and all(re.fullmatch(_PUBLIC_KEY, line) for line in lines):
            continue
        message = f"the ssh service `{name}` has no valid public key, so login is impossible"
        if "PRIVATE KEY" in keys:
            message = f"the ssh service `{name}` has a private key, which the job's page would show"
        hint = 'write `ssh_public_key = "ssh-ed25519 AAAA..."`, the line of `~/.ssh/id_ed25519.pub`'
        yield Fault(message, hint, reading.place(("services", name)))


@rule("AZ712", Level.WARNING)
def tensor_board_without_folder(subject: Subject) -> Iterator[Fault]:
    """A TensorBoard service has no `log_dir`.

    `log_dir` is the folder that the script writes its events to. Without it TensorBoard reads a
    folder that the service chooses and does not document, and shows nothing.
    """
    reading = read(subject)
    for name in _services(subject, "TensorBoard"):
        if not reading.body.mapping("services", name, "properties").get("logDir"):
            message = (
                f"the TensorBoard service `{name}` does not say where the script writes its events"
            )
            hint = 'write for example `log_dir = "outputs/runs"`'
            yield Fault(message, hint, reading.place(("services", name)))


@rule("AZ721", Level.ERROR)
def managed_identity(subject: Subject) -> Iterator[Fault]:
    """A serverless job cannot use a system-assigned managed identity.

    Serverless jobs use the user's identity, or a user-assigned identity, for which you write the
    client id. A system-assigned identity belongs to a cluster (Azure ML documentation, serverless
    compute).
    """
    reading = read(subject)
    identity = reading.body.mapping("identity")
    if identity.get("identityType") != "Managed" or reading.body.compute is not None:
        return
    if not any(identity.get(field) for field in ("clientId", "objectId", "resourceId")):
        yield Fault(
            "a serverless job cannot act as a system-assigned identity",
            'add `managed_identity_client_id = "..."`, or write `identity = "user"`, under '
            "`[azureml]`",
            reading.place(("identity",)),
        )


@rule("AZ722", Level.ERROR)
def client_id(subject: Subject) -> Iterator[Fault]:
    """The client id of the managed identity is not valid.

    Write the GUID that `az identity show --query clientId` prints, not the identity's name or
    resource id.
    """
    reading = read(subject)
    value = reading.body.mapping("identity").get("clientId")
    if isinstance(value, str) and not re.fullmatch(GUID, value):
        name = value.rpartition("/")[2]
        message = f"`{value}` is not the client id of a managed identity"
        hint = f"`az identity show --name {name} --resource-group GROUP --query clientId` prints it"
        yield Fault(message, hint, reading.place(("identity", "clientId")))


@rule("AZ723", Level.NOTICE)
def interactive_services_keep_running(subject: Subject) -> Iterator[Fault]:
    """A job with an interactive service has no time limit.

    JupyterLab, VS Code and ssh run as long as the job. A job whose command sleeps to keep them open
    does not end by itself, and is billed until its time limit.
    """
    services = _services(subject, "SSH", "JupyterLab", "VSCode")
    limits = read(subject).body.mapping("limits")
    if services and limits.get("timeout") is None:
        names = quoted(services)
        count = plural(len(services), "interactive service")
        message = f"the job has {count} ({names}) and no time limit"
        yield Fault(message, "add for example `max_runtime: 4h`")


def _services(subject: Subject, *kinds: str) -> list[str]:
    """Return the names of the job's services of these kinds."""
    services = read(subject).body.mapping("services")
    return [name for name in services if value_at(services, name, "jobServiceType") in kinds]


def _docker_path(subject: Subject) -> ValuePath:
    """Return the path of the override that sets the docker options; empty if a setting does."""
    reading = read(subject)
    path = reading.override_of("resources", "dockerArgs")
    return path or reading.place(("resources", "dockerArgsList"))


def _docker_words(subject: Subject) -> list[str]:
    """Return the docker options, split into words; options that cannot be parsed are left out."""
    resources = read(subject).body.mapping("resources")
    arguments = resources.get("dockerArgsList")
    words = list(map(str, arguments)) if isinstance(arguments, list) else []
    text = resources.get("dockerArgs")
    if isinstance(text, str):
        with suppress(ValueError):
            words += shlex.split(text)
    return words


# Rules about the environment of an Azure ML job, and whether it fits the machines.

_ARCHITECTURES = {
    "arm64": r"(?i)(?<![a-z0-9])(arm64|aarch64)(?![a-z0-9])",
    "x86_64": r"(?i)(?<![a-z0-9])(amd64|x86[-_]64)(?![a-z0-9])",
}
_CUDA = r"(?i)cuda|(?<![a-z0-9])cu1[0-9]{1,2}(?![0-9])|nvidia"
_ROCM = r"(?i)rocm|amdgpu"
_CPU = r"(?i)(?<![a-z0-9])cpu(?![a-z0-9])"
_TAG = r"[^/]+:(?P<tag>[\w.-]+)"
_LABEL = (
    r"(?P<asset>.*?(?:/registries/(?P<registry>[^/]+))?/environments/(?P<name>[^/]+))"
    r"/labels/(?P<label>[^/]+)"
)


@rule("AZ601", Level.NOTICE)
def environment_changes(subject: Subject) -> Iterator[Fault]:
    """The environment uses the label `latest`, which can mean another version tomorrow.

    As soon as a new version is registered, a job with `NAME@latest` or `labels/latest` runs with
    other packages, and you cannot reproduce an earlier failure. `cloudtrain submit` asks the
    workspace for the current version, reports it (AZ916), and sends that version, as the SDK does;
    it sends labels of registries unchanged. (`framework` and `version` select the newest build on
    purpose, because Microsoft removes old builds.)
    """
    reading = read(subject)
    match = re.fullmatch(_LABEL, reading.body.environment)
    is_chosen = subject.job.environment.of("azureml") or reading.override_of("environmentId")
    if match and is_chosen:
        name = match["name"]
        hint = f"write `{match['asset']}/versions/VERSION`"
        if parse_label(reading.body.environment):
            hint = f"add `--pin`, or write `azureml:{name}:VERSION`"
        option = f" --registry-name {match['registry']}" if match["registry"] else ""
        message = f"the version of `{name}` with the label `{match['label']}` can change"
        hint = f"{hint}; `az ml environment list --name {name}{option}` lists them"
        yield Fault(message, hint, reading.environment_path)


@rule("AZ607", Level.NOTICE)
def environment_holds_another(subject: Subject) -> Iterator[Fault]:
    """The curated environment holds another version of the framework than its name and the job say.

    Microsoft goes on building an environment under one name, and replaces packages that have
    security holes. Since 2026-07-23 the environment `acpt-pytorch-2.8-cuda12.6` installs PyTorch
    2.10.0 (Azure/azureml-assets, its Dockerfile).
    """
    version = subject.job.environment.version
    row = curated_of(subject.job.environment)
    if row is None or not row.former or read(subject).override_of("environmentId"):
        return
    if f"{version}.".startswith(f"{row.former}."):
        held = f"{TITLES[row.framework]} {row.version}"
        message = f"`{row.name}` has held {held} since {row.since}, not {version}"
        hint = f'write `version: "{row.version}"`, or name an image of your own with {version}'
        yield Fault(message, hint, ("environment", "version"))


@rule("AZ602", Level.WARNING)
def image_changes(subject: Subject) -> Iterator[Fault]:
    """The image has no tag, or a tag that can point to another image later.

    Without a tag a registry returns `latest`, the image that was pushed last. Azure ML builds an
    environment once and keeps it, so the same job can run with an old image in one workspace and
    with a new one in another.
    """
    reading = read(subject)
    name = reading.image
    if not name or "@sha256:" in name:
        return
    tag = re.fullmatch(_TAG, name.rpartition("/")[2])
    if tag is None or tag["tag"] == "latest":
        plain = name.removesuffix(":latest")
        message = f"`{name}` has no tag of a version, so its content can change"
        hint = f"write `{plain}:VERSION`, or `{plain}@sha256:DIGEST`"
        yield Fault(message, hint, reading.environment_path)


@rule("AZ603", Level.ERROR)
def image_of_another_architecture(subject: Subject) -> Iterator[Fault]:
    """The image and the instance type are for different processors.

    GB200 and GB300 machines have Arm processors (Grace), all others x86-64. A container for the
    other architecture fails at once with "exec format error". This rule reads the image's
    architecture from its name.
    """
    reading = read(subject)
    row = reading.group.known
    name = reading.environment_name
    if row is None or subject.processing is not None:
        return
    other = "x86_64" if row.architecture == "arm64" else "arm64"
    if _says(name, other) and not _says(name, row.architecture):
        processors = _PROCESSOR[row.architecture]
        message = f"`{name}` is for {_PROCESSOR[other]}, and `{row.name}` has {processors}"
        hint = f"use an image for {row.architecture}, or another type"
        yield Fault(message, hint, reading.environment_path)


@rule("AZ604", Level.WARNING)
def image_for_arm_unsaid(subject: Subject) -> Iterator[Fault]:
    """The instance type has Arm processors, but the environment may be for x86-64 only.

    Most images are for x86-64 only, and fail with "exec format error" on a GB200 or GB300; Azure
    ML's curated environments are probably among them. An image for both architectures works; check
    it with `docker manifest inspect`.
    """
    reading = read(subject)
    row = reading.group.known
    name = reading.environment_name
    if row is None or row.architecture != "arm64":
        return
    if not any(_says(name, architecture) for architecture in _ARCHITECTURES):
        message = (
            f"`{row.name}` has {_PROCESSOR['arm64']}, and nothing in `{name}` says that it "
            "supports them"
        )
        yield Fault(
            message,
            "use an image for arm64, or add `--ignore AZ604` if `docker manifest inspect IMAGE` "
            "lists arm64",
            reading.environment_path,
        )


@rule("AZ605", Level.ERROR)
def image_of_another_gpu(subject: Subject) -> Iterator[Fault]:
    """The environment and the instance type are for GPUs of different makers.

    Software for CUDA cannot use an AMD MI300X, and software for ROCm cannot use an NVIDIA GPU. The
    script trains on the CPU, or fails, and you still pay for the GPUs. Azure ML's curated
    environments are for CUDA.
    """
    reading = read(subject)
    row = reading.group.known
    name = reading.environment_name
    if row is None or not row.gpus:
        return
    has_cuda = re.search(_CUDA, name) is not None
    has_rocm = re.search(_ROCM, name) is not None
    is_amd = row.gpu.startswith("MI")
    if has_cuda == has_rocm or has_rocm == is_amd:
        return

    needed = "ROCm, `rocm/pytorch:TAG` for example" if is_amd else "CUDA"
    message = f"`{name}` is made for other GPUs than those of `{row.name}` ({row.hardware})"
    yield Fault(message, f"use an image with {needed}", reading.environment_path)


@rule("AZ606", Level.WARNING)
def cpu_image_on_gpus(subject: Subject) -> Iterator[Fault]:
    """The environment is made for CPUs, and the instance type has GPUs.

    A framework that was built without CUDA cannot use the GPUs: the script trains on the CPU, and
    you still pay for them.
    """
    reading = read(subject)
    row = reading.group.known
    name = reading.environment_name
    if row is None or not row.gpus:
        return
    if re.search(_CPU, name) and not re.search(_CUDA, name):
        message = f"`{name}` is made for CPUs, and `{row.name}` has {row.hardware}"
        hint = "use an environment with CUDA, or a type without GPUs"
        yield Fault(message, hint, reading.environment_path)


_PROCESSOR = {"arm64": "Arm processors", "x86_64": "x86-64 processors"}


def _says(name: str, architecture: str) -> bool:
    """Return whether the name of an environment contains an architecture."""
    return re.search(_ARCHITECTURES[architecture], name) is not None


# Rules about the environment variables of an Azure ML job.

_OF_SERVICE = (
    r"AZ_BATCH_.*|AZ_BATCHAI_.*|OMPI_COMM_WORLD_.*|OMPI_UNIVERSE_SIZE|AZUREML_CR_.*|"
    r"AZUREML_ARM_.*|AZUREML_WORKSPACE_.*"
    r"|AZUREML_(ROOT_)?RUN_(ID|TOKEN.*)|AZUREML_EXPERIMENT_(ID|SCOPE)|"
    r"AZUREML_\w*SERVICE_ENDPOINT|AZUREML_NODE_COUNT"
    r"|AZUREML_PROCESS_NAME|AZUREML_TARGET_TYPE|AZUREML_(PARAMETER|DATAREFERENCE)_.*|"
    r"AZURE_ML_(INPUT|OUTPUT)_.*"
    r"|MLFLOW_RUN_ID"
)
"""Variables that the service sets in each process, as published environments of jobs show."""

_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_NOT_A_NETWORK = r"(=*(docker|lo|veth)[^,]*(,|$))+"
_TRUE = ("1", "true", "yes", "y", "on")


@rule("AZ621", Level.ERROR)
def variable_is_no_text(subject: Subject) -> Iterator[Fault]:
    """The value of an environment variable is a number or `true` instead of a text.

    Only overrides can cause this. The SDK sends such values unchanged (azure-ai-ml 1.35.2), and the
    API accepts only texts.
    """
    for name, value in read(subject).body.mapping("environmentVariables").items():
        if not isinstance(value, str):
            text = value_text(value)
            message = f"the variable `{name}` is `{text}`, and not a text"
            hint = InPlace(f'write `{name}: "{text}"`')
            yield Fault(message, hint, ("environment", "variables", name))


@rule("AZ622", Level.ERROR)
def variable_of_service(subject: Subject) -> Iterator[Fault]:
    """The job sets an environment variable that Azure ML sets.

    These variables tell each process its rank, the location of its data, and its token for the
    workspace. If the job sets them, all processes may get the same rank, or the job may lose the
    connection to its run. This rule ignores `AZUREML_COMMON_RUNTIME_...` and other variables that
    users may set.
    """
    for variable in _variables(subject):
        name = variable.name
        # CT204 reports these variables already
        is_reported = name in LAUNCHER_VARIABLES or name.startswith("AZUREML_CR_")
        if re.fullmatch(_OF_SERVICE, name) and not is_reported:
            message = f"Azure ML sets `{name}` itself, for each process"
            yield Fault(message, variable.removed, variable.path)


@rule("AZ623", Level.WARNING)
def interface_without_network(subject: Subject) -> Iterator[Fault]:
    """NCCL would use a network card that does not connect the instances.

    `docker0` and `lo` exist on every instance but do not connect instances, so NCCL hangs at the
    start until it times out. The Ethernet card of Azure's GPU machines is `eth0`; without
    `NCCL_SOCKET_IFNAME`, NCCL finds it by itself.
    """
    count = read(subject).body.instances
    for name, value, path in _network_variables(subject):
        # the names after `^` are those of cards that NCCL does not use
        if name in _INTERFACES and re.fullmatch(_NOT_A_NETWORK, value):
            message = f"`{name}={value}` does not connect the job's {count:,} instances"
            yield Fault(message, f"write `{name}: eth0`, or remove it", path)


@rule("AZ624", Level.WARNING)
def infiniband_switched_off(subject: Subject) -> Iterator[Fault]:
    """The job pays for InfiniBand but switches it off.

    With `NCCL_IB_DISABLE=1`, all gradients travel over Ethernet at a fraction of the speed. On a
    machine with InfiniBand this is useful only to find network errors.
    """
    row = read(subject).group.known
    if row is None or row.interconnect != "rdma":
        return
    for variable in _network_variables(subject):
        if variable.name == "NCCL_IB_DISABLE" and variable.value.casefold() in _TRUE:
            message = (
                f"`NCCL_IB_DISABLE={variable.value}` switches off the InfiniBand of `{row.name}`"
            )
            yield Fault(message, variable.removed, variable.path)


@rule("AZ625", Level.WARNING)
def same_gpus_for_all(subject: Subject) -> Iterator[Fault]:
    """`CUDA_VISIBLE_DEVICES` shows fewer GPUs than an instance has processes.

    All processes get the same value. With `0`, all eight processes of an instance see only GPU 0,
    and NCCL stops ("Duplicate GPU detected"). Let each process choose its GPU by `LOCAL_RANK`.
    """
    reading = read(subject)
    body = reading.body
    if body.kind not in ("PyTorch", "Mpi") or reading.group.device == "cpu":
        return
    for name, value, path in _variables(subject):
        devices = re.findall(r"[^\s,]+", value)
        if name == "CUDA_VISIBLE_DEVICES" and len(devices) < body.processes_per_instance:
            processes = plural(body.processes_per_instance, "process")
            message = f"`{name}={value}` shows {plural(len(devices), 'GPU')} to each of {processes}"
            hint = "remove it, and let each process use the GPU with the number `LOCAL_RANK`"
            yield Fault(message, hint, path)


@rule("AZ520", Level.WARNING)
def secrets_out_of_reach(subject: Subject) -> Iterator[Fault]:
    """The job may not be able to look up a secret.

    `keyvault:VAULT/NAME` needs the managed identity of the compute or of the job, with the role
    `Key Vault Secrets User`; a job with `identity: user` or `aml_token` has none. `keyvault:NAME`,
    in the workspace's own vault, needs azureml-core in the environment.
    """
    for name, secret in subject.job.environment.secrets.items():
        place = secret.of("azureml") or ""
        path = ("environment", "secrets", name)
        if place.startswith("keyvault:") and "/" not in place:
            message = (
                f"the secret `{name}` is in the workspace's vault, which only azureml-core can read"
            )
            hint = f"name the vault, `keyvault:VAULT/{place[9:]}`, or install azureml-core"
            yield Fault(message, hint, path)
        elif subject.settings.identity in ("user", "aml_token"):
            identity = subject.settings.identity
            message = f"the secret `{name}` needs a managed identity, and the job has `{identity}`"
            yield Fault(message, 'set `identity = "managed"` in `[azureml]`', path)


def _variables(subject: Subject) -> Iterable[Variable]:
    """Return the variables that the user sets. As in the body, one of `environment.variables`
    replaces one of the same name in mpirun's options."""
    by_name: dict[str, Variable] = {}
    for variable in variables(subject):
        by_name.setdefault(variable.name, variable)
    return by_name.values()


def _network_variables(subject: Subject) -> Iterable[Variable]:
    """Return the variables that the user sets, if several instances train together."""
    is_joined = read(subject).body.instances > 1 and works_together(subject)
    return _variables(subject) if is_joined else ()
