"""Commands inside a job, by its ssh service. The address of the service is a web socket, to which
the `ml` extension of the Azure CLI connects ssh."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from cloudtrain.documents import JsonMapping
from cloudtrain.errors import UsageError
from cloudtrain.rules.engine import mapping_at, value_at
from cloudtrain.targets.azureml.reading import Body
from cloudtrain.targets.azureml.service.client import Client
from cloudtrain.targets.common.remote import enter_script, marked, remote_line
from cloudtrain.targets.common.services import NotThere
from cloudtrain.targets.inside import (
    ExecRequest,
    NotOpen,
    Session,
    find_program,
    not_running,
    relay_command,
    relayed,
)

_CONNECTOR = "ml/azext_mlv2/manual/custom/_ssh_connector.py"
"""The program of the extension that `az ml job connect-ssh` gives to ssh as well. Its argument is
the service's address."""

_ADDRESS = r"wss://[\w.:/?=&~-]+"
_KEYS = r"(?:ssh-|ecdsa-|sk-)\S+ (\S+)"


def enter(
    client: Client, job: JsonMapping, environ: Mapping[str, str], asked: ExecRequest
) -> Session:
    """Return the session for a job, as the service describes it.

    Raises:
        NotOpen: the job has no ssh service on the instance.
        UsageError: the service has not started, or this machine lacks the Azure CLI.
    """
    name = job["name"]
    body = Body(job)
    instance = asked.instance
    if instance is None:
        instance = (asked.rank or 0) // body.processes_per_instance
    if instance >= body.instances:
        raise not_running(name, asked, f"its instances are 0 to {body.instances - 1}")

    options = {
        "User": "azureuser",
        "ProxyCommand": _proxy(environ, name, _address(client, name, instance)),
        # the name in front of the container's key is made up
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": "/dev/null",
        "LogLevel": "ERROR",
    }
    key = _private_key(environ, mapping_at(job, "properties", "services"))
    if key is not None:
        options["IdentityFile"] = key
    if asked.is_for_ssh:
        return Session(ssh={"HostName": name, **options})

    argv = ["ssh", "-t" if asked.has_terminal else "-T"]
    for option, value in options.items():
        argv += ["-o", f"{option}={value}"]
    command = asked.command if asked.port is None else relay_command(asked.port)
    rank = "" if asked.rank is None else str(asked.rank)
    is_marked = not (asked.has_terminal or asked.port)
    script = marked(enter_script()) if is_marked else enter_script()
    line = remote_line(script, [f"AZUREML_RUN_ID={name}", rank, *command])
    argv += ["--", name, line]
    if asked.port is not None:
        return relayed(argv, environ, asked)
    return Session(tuple(argv), environ, is_marked=is_marked)


def _address(client: Client, name: str, instance: int) -> str:
    """Return the address of the ssh service of an instance."""
    services: Mapping[str, JsonMapping] = {}
    with suppress(NotThere):
        answer = client.history(f"runs/{name}/serviceinstances/{instance}")
        services = mapping_at(answer, "instances")
    for service in services.values():
        if service.get("type") != "SSH":
            continue
        address = str(value_at(service, "properties", "ProxyEndpoint") or "")
        if service.get("status") == "Running" and re.fullmatch(_ADDRESS, address):
            return address
        why = value_at(service, "error", "error", "message") or service.get("status")
        message = f"the ssh service of `{name}` on instance {instance} is not ready: {why}"
        raise UsageError(message, hint="try again in two minutes", code="CT958")

    raise NotOpen(
        f"`{name}` has no ssh service on instance {instance}",
        hint='add to `[azureml]`: `services.ssh = {type = "ssh", all_instances = true, '
        'ssh_public_key = "ssh-ed25519 AAAA..."}`, the line of `~/.ssh/id_ed25519.pub`',
    )


def _proxy(environ: Mapping[str, str], name: str, address: str) -> str:
    """Return the command that connects ssh to an address."""
    hint = "install the Azure CLI, and then `az extension add --name ml`"
    az = find_program("az", environ, hint)
    answer = subprocess.run(
        [az, "--version"], env=environ, capture_output=True, text=True, check=False
    ).stdout
    places = dict(re.findall(r"^(Python location|Extensions directory) '(.+)'$", answer, re.M))
    python = places.get("Python location", "python3")
    connector = Path(places.get("Extensions directory", "/"), _CONNECTOR)
    if not connector.is_file():
        hint = (
            "`az extension add --upgrade --name ml` installs it; "
            f"`az ml job connect-ssh --name {name}` opens a shell without cloudtrain"
        )
        raise UsageError(
            "the Azure CLI has no `ml` extension that connects ssh", hint=hint, code="CT959"
        )
    # ssh replaces what follows a `%`
    return f'"{python}" "{connector}" {address}'.replace("%", "%%")


def _private_key(environ: Mapping[str, str], services: JsonMapping) -> str | None:
    """Return the private key beside the public key with which the job was sent; None without one:
    then ssh tries those of its agent and its own default."""
    keys = set()
    for name in services:
        text = value_at(services, name, "properties", "sshPublicKeys")
        keys.update(re.findall(_KEYS, str(text or "")))
    for file in sorted(Path(environ.get("HOME", "/"), ".ssh").glob("*.pub")):
        private = file.with_suffix("")
        if private.exists() and keys.intersection(re.findall(_KEYS, file.read_text("utf-8"))):
            return str(private)
    return None
