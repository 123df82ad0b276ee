"""Commands inside a training job, by a session of AWS Systems Manager: remote debugging of
SageMaker's documentation. AWS's plug-in carries the session, and does not return the command's exit
code, so the command's output is marked."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from cloudtrain.errors import TargetError, UsageError
from cloudtrain.system.processes import tell
from cloudtrain.targets.common.remote import enter_script, marked, remote_line
from cloudtrain.targets.common.services import Denied
from cloudtrain.targets.inside import ExecRequest, NotOpen, Session, find_program, not_running
from cloudtrain.targets.sagemaker.request import JsonMapping
from cloudtrain.targets.sagemaker.service.clients import Clients

_PLUGIN = "session-manager-plugin"
_INSTALL = (
    "install AWS's Session Manager plugin: https://docs.aws.amazon.com/systems-manager/latest/"
    "userguide/session-manager-working-with-install-plugin.html"
)
_RESPONSE = "AWS_SSM_START_SESSION_RESPONSE"
"""The variable in which AWS's own command line hands the session's token to the plug-in, so that it
stands in no list of processes."""
_LAST_WITHOUT = (1, 2, 497, 0)
"""The plug-in's last version that does not read the variable."""

_READY = b"Waiting for connections"
"""What the plug-in prints when it listens on the local port."""

PATIENCE = 120.0
"""Seconds in which the agent of a container that has just been opened may connect."""
PAUSE = 2.0
"""Seconds between two questions for it."""


def enter(
    clients: Clients,
    description: JsonMapping,
    ranks: Mapping[int, range],
    environ: Mapping[str, str],
    asked: ExecRequest,
) -> Session:
    """Return the session for a described training job. `ranks` are those of its instances.

    Raises:
        NotOpen: the job has no remote debugging; `ExecRequest.may_open` switches it on.
        UsageError: the plug-in is missing, or the job has no such rank.
        TargetError: the container's agent does not connect.
    """
    name = description["TrainingJobName"]
    if asked.is_for_ssh:
        hint = f"`cloudtrain exec {name}` opens a shell, and `--forward PORT` leads to a port"
        raise NotOpen("SageMaker's containers have no ssh server", hint=hint)
    if not (asked.command or asked.port or asked.has_terminal):
        hint = f"name a command: `cloudtrain exec {name} -- nvidia-smi`"
        raise UsageError("a shell on SageMaker needs a terminal", hint=hint)
    plugin = _find_plugin(environ)
    target = f"sagemaker-training-job:{name}_algo-{_instance(name, ranks, asked) + 1}"
    is_new = _open(clients, description, name, asked)
    _await_agent(clients, name, target, PATIENCE if is_new else 0.0)

    if asked.port is not None:
        document = "AWS-StartPortForwardingSession"
        values = {"portNumber": str(asked.port), "localPortNumber": str(asked.local_port)}
    else:
        kind = "Interactive" if asked.has_terminal else "NonInteractive"
        document = f"AWS-Start{kind}Command"
        rank = "" if asked.rank is None else str(asked.rank)
        script = marked(enter_script())
        values = {
            "command": remote_line(script, [f"TRAINING_JOB_NAME={name}", rank, *asked.command])
        }
    request = {
        "Target": target,
        "DocumentName": document,
        "Parameters": {key: [value] for key, value in values.items()},
    }

    def start(client: Any) -> tuple[JsonMapping, Any]:
        return client.start_session(**request), client.meta

    response, meta = clients.attempt("ssm", "start_session", request, start)
    keys = ("SessionId", "TokenValue", "StreamUrl")
    token = json.dumps({key: response[key] for key in keys})
    profile = clients.place.profile or ""
    argv = [plugin, _RESPONSE, meta.region_name, "StartSession", profile, json.dumps(request)]
    return Session(
        (*argv, meta.endpoint_url),
        {**environ, _RESPONSE: token},
        ready=_READY if asked.port is not None else b"",
        is_marked=asked.port is None,
        has_stdin=asked.has_terminal,
    )


def _find_plugin(environ: Mapping[str, str]) -> str:
    plugin = find_program(_PLUGIN, environ, _INSTALL)
    answer = subprocess.run([plugin, "--version"], capture_output=True, text=True, check=False)
    version = tuple(map(int, re.findall(r"\d+", answer.stdout)))
    if version <= _LAST_WITHOUT:
        message = f"`{_PLUGIN}` {answer.stdout.strip()} is too old"
        raise UsageError(message, hint=_INSTALL, code="CT959")
    return plugin


def _instance(name: str, ranks: Mapping[int, range], asked: ExecRequest) -> int:
    """Return the number of the instance; without a rank or instance, the first one. `ranks` is
    empty if they are not known."""
    for number, its_ranks in ranks.items():
        is_wanted = asked.instance in (None, number)
        if is_wanted and (asked.rank is None or asked.rank in its_ranks):
            return number
    if not ranks and (asked.instance is not None or asked.rank is None):
        return asked.instance or 0
    places = [f"{number}: {its[0]} to {its[-1]}" for number, its in ranks.items()]
    hint = f"its ranks on each instance: {'; '.join(places)}" if ranks else "add `--instance 0`"
    raise not_running(name, asked, hint)


def _open(clients: Clients, description: JsonMapping, name: str, asked: ExecRequest) -> bool:
    """Make sure that remote debugging is on. Return whether it was switched on just now."""
    if description.get("EnableNetworkIsolation"):
        message = f"`{name}` runs in network isolation, which no session can enter"
        raise NotOpen(message, hint="submit it without `network_isolation` in `[sagemaker]`")
    if description.get("SecondaryStatus") != "Training":
        message = f"the containers of `{name}` have not started: {description['SecondaryStatus']}"
        raise UsageError(message, hint="try again when the log begins", code="CT958")
    if description.get("RemoteDebugConfig", {}).get("EnableRemoteDebug"):
        return False

    if not asked.may_open:
        raise NotOpen(
            f"remote debugging of `{name}` is off",
            hint=(
                "`--yes` switches it on for this job; for later jobs set `remote_debug = true` "
                "in `[sagemaker]`"
            ),
            question=f"Switch remote debugging of `{name}` on?",
        )
    settings = {"EnableRemoteDebug": True}
    clients.call(
        "sagemaker", "update_training_job", TrainingJobName=name, RemoteDebugConfig=settings
    )
    tell(f"remote debugging of `{name}` was switched on; its agent connects within two minutes")
    return True


def _await_agent(clients: Clients, name: str, target: str, patience: float) -> None:
    """Return when the container's agent is connected, or if nobody may ask for that."""
    end = time.monotonic() + patience
    with suppress(Denied):
        while clients.call("ssm", "get_connection_status", Target=target)["Status"] != "connected":
            if time.monotonic() >= end:
                hint = (
                    "the job's role needs ssmmessages:CreateControlChannel, CreateDataChannel, "
                    f"OpenControlChannel and OpenDataChannel; the log stream `{name}/*/ssm` has "
                    "the agent's errors"
                )
                raise TargetError(f"the agent of `{target}` is not connected", hint=hint)
            time.sleep(PAUSE)
