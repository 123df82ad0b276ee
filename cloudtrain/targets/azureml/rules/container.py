"""Rules about the container of an Azure ML job: shared memory, docker options, services, identity."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from cloudtrain.core.plan import Level
from cloudtrain.rules.reading import value_at
from cloudtrain.rules.rule import Fault, Subject, rule
from cloudtrain.rules.words import plural
from cloudtrain.targets.azureml.rules.view import (
    Path,
    body,
    is_on_cluster,
    machines,
    mapping,
    overridden,
    place,
)

_SIZE = re.compile(r"0*[1-9][0-9]*[bkmgBKMG]?")
_PUBLIC_KEY = re.compile(r"(ssh-(rsa|ed25519|dss)|ecdsa-sha2-\S+|sk-\S+) +[A-Za-z0-9+/=]{16,}( .*)?")
_CLIENT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)

_MANY_PROCESSES = 4


@rule("AZ701", Level.ERROR)
def shared_memory_size(subject: Subject) -> Iterator[Fault]:
    """The size of the shared memory is not valid.

    Only overrides can cause this; the SDK sends even `banana` (azure-ai-ml 1.35.2). A size is a number and one of `b`,
    `k`, `m` and `g` (documentation, YAML schema of the command job).
    """
    written = mapping(subject, "resources").get("shmSize")
    if written is not None and not (isinstance(written, str) and _SIZE.fullmatch(written)):
        yield Fault(
            f"`shmSize` must be a size like `64g`, not `{written}`",
            "remove it from the overrides, and write for example `shm_size: 64g` under `resources`",
            place(subject, ("resources", "shmSize"), ("resources", "shm_size")),
        )


@rule("AZ702", Level.NOTICE)
def shared_memory_small(subject: Subject) -> Iterator[Fault]:
    """Several processes share the default shared memory of 2 GiB.

    Workers of a data loader pass batches through `/dev/shm`, which all processes of an instance share. Azure ML's
    default is 2g (documentation, YAML schema of the command job). If that is not enough, a worker ends with "Bus
    error".
    """
    found, count = machines(subject), body(subject).processes_per_instance
    given = mapping(subject, "resources").get("shmSize") or any(
        word.startswith(("--shm-size", "--ipc")) for word in _docker_words(subject)
    )
    if body(subject).kind == "PyTorch" and found.gpus and count >= _MANY_PROCESSES and not given:
        size = min(max(8 * count, 16), int((found.known.memory_gib if found.known else 64) / 2))
        yield Fault(
            f"{count} processes share the default 2 GiB of `/dev/shm`",
            f"write `shm_size: {size}g` under `resources` if the data loader has workers",
            ("resources",),
        )


@rule("AZ703", Level.ERROR)
def docker_arguments(subject: Subject) -> Iterator[Fault]:
    """The docker options cannot be parsed, or contradict each other.

    A body has either `dockerArgs` (one text) or `dockerArgsList`, not both. For shared memory use the field `shm_size`:
    if the docker options also set its size, docker decides which value counts.
    """
    resources = mapping(subject, "resources")
    text, words = resources.get("dockerArgs"), _docker_words(subject)
    path = _docker_path(subject)
    if text and resources.get("dockerArgsList"):
        yield Fault("`dockerArgs` and `dockerArgsList` exclude each other", "remove one of them", path)
    if isinstance(text, str) and not words and text.strip():
        yield Fault(
            f"`docker_args` is not valid shell syntax: `{text}`", "close the quotes, or write it as a list", path
        )
    sizes = [word for word in words if word.partition("=")[0] == "--shm-size"]
    if len(sizes) + (resources.get("shmSize") is not None) > 1:
        hint = "remove `--shm-size` from `docker_args`; keep only `shm_size` under `resources`"
        yield Fault("the size of the shared memory is given twice", hint, path)


@rule("AZ704", Level.WARNING)
def privileged_container(subject: Subject) -> Iterator[Fault]:
    """The option `--privileged` gives the container full access to its machine.

    Every program in the container can use the machine's devices and read its disks, and thus the job's token. Few
    programs need `--privileged`: InfiniBand and GPUs work without it, and a debugger needs only `--cap-add SYS_PTRACE`.
    """
    if "--privileged" in _docker_words(subject):
        yield Fault(
            "`--privileged` gives the container all rights on its machine",
            "remove `--privileged` from `docker_args`; `--cap-add NAME` gives the one right that is needed",
            _docker_path(subject),
        )


@rule("AZ711", Level.ERROR)
def ssh_key(subject: Subject) -> Iterator[Fault]:
    """An ssh service has no public key.

    Without a public key nobody can log in. Write the key itself, the line in `~/.ssh/id_ed25519.pub`, not the file's
    name. Never write a private key, because it would be stored with the job.
    """
    for name in _services(subject, "SSH"):
        key = str(mapping(subject, "services", name, "properties").get("sshPublicKeys") or "")
        if all(_PUBLIC_KEY.fullmatch(line.strip()) for line in key.splitlines() if line.strip()) and key.strip():
            continue
        message = f"the ssh service `{name}` has no public key, so login is impossible"
        if "PRIVATE KEY" in key:
            message = f"the ssh service `{name}` has a private key, which the job's page would show"
        elif key:
            message = f"`{key[:40]}` is not a public key, so login to the ssh service `{name}` is impossible"
        hint = 'write `ssh_public_key = "ssh-ed25519 AAAA..."`, the line of `~/.ssh/id_ed25519.pub`'
        yield Fault(message, hint, place(subject, ("services", name)))


@rule("AZ712", Level.WARNING)
def tensor_board_without_folder(subject: Subject) -> Iterator[Fault]:
    """A TensorBoard service has no `log_dir`.

    `log_dir` is the folder that the script writes its events to. Without it TensorBoard reads a folder that the service
    chooses and does not document, and shows nothing.
    """
    for name in _services(subject, "TensorBoard"):
        if not mapping(subject, "services", name, "properties").get("logDir"):
            message = f"the TensorBoard service `{name}` does not say where the script writes its events"
            yield Fault(message, 'write for example `log_dir = "outputs/runs"`', place(subject, ("services", name)))


@rule("AZ721", Level.ERROR)
def managed_identity(subject: Subject) -> Iterator[Fault]:
    """A serverless job cannot use a system-assigned managed identity.

    Serverless jobs use the user's identity, or a user-assigned identity, for which you write the client id. A
    system-assigned identity belongs to a cluster (Azure ML documentation, serverless compute).
    """
    identity = mapping(subject, "identity")
    named = any(identity.get(field) for field in ("clientId", "objectId", "resourceId"))
    if identity.get("identityType") == "Managed" and not named and not is_on_cluster(subject):
        yield Fault(
            "a serverless job cannot act as a system-assigned identity",
            'add `managed_identity_client_id = "..."`, or write `identity = "user"`, under `[azureml]`',
            place(subject, ("identity",)),
        )


@rule("AZ722", Level.ERROR)
def client_id(subject: Subject) -> Iterator[Fault]:
    """The client id of the managed identity is not valid.

    Write the GUID that `az identity show --query clientId` prints, not the identity's name or resource id.
    """
    written = mapping(subject, "identity").get("clientId")
    if isinstance(written, str) and not _CLIENT_ID.fullmatch(written):
        name = written.rpartition("/")[2]
        yield Fault(
            f"`{written}` is not the client id of a managed identity",
            f"`az identity show --name {name} --resource-group GROUP --query clientId` prints it",
            place(subject, ("identity", "clientId")),
        )


@rule("AZ723", Level.NOTICE)
def interactive_services_keep_running(subject: Subject) -> Iterator[Fault]:
    """A job with an interactive service has no time limit.

    JupyterLab, VS Code and ssh run as long as the job. A job whose command sleeps to keep them open does not end by
    itself, and is billed until its time limit.
    """
    kinds = [name for kind in ("SSH", "JupyterLab", "VSCode") for name in _services(subject, kind)]
    if kinds and mapping(subject, "limits").get("timeout") is None:
        shown = ", ".join(f"`{name}`" for name in kinds)
        message = f"the job has {plural(len(kinds), 'interactive service')} ({shown}) and no time limit"
        yield Fault(message, "add for example `max_runtime: 4h`")


def _services(subject: Subject, kind: str) -> list[str]:
    """Return the names of the services of type `kind`."""
    services = mapping(subject, "services")
    return [name for name, service in services.items() if value_at(service, "jobServiceType") == kind]


def _docker_path(subject: Subject) -> Path:
    return overridden(subject, "resources", "dockerArgs") or overridden(subject, "resources", "dockerArgsList") or ()


def _docker_words(subject: Subject) -> list[str]:
    """Return the docker options, split into words; options that cannot be parsed are left out."""
    resources = mapping(subject, "resources")
    listed, text = resources.get("dockerArgsList"), resources.get("dockerArgs")
    words = [str(word) for word in listed] if isinstance(listed, list) else []
    try:
        return [*words, *(shlex.split(text) if isinstance(text, str) else [])]
    except ValueError:
        return words
