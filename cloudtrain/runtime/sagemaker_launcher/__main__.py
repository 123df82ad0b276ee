"""`python -m cloudtrain.runtime.sagemaker_launcher [/opt/ml]`: the container's main process."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from cloudtrain.runtime.errors import SetupError, tell
from cloudtrain.runtime.install import install
from cloudtrain.runtime.secret_values import forms_of, masked, resolved

from . import ROOT
from .children import Child, Children
from .failure import failure_text, fitting, write_once
from .machine import read_config, this_machine
from .network import EMULATION, LATECOMERS, Beacon, Network, wait_for_name, watch_chief
from .plan import WATCH_PORT, LaunchPlan, launch_plan


def main(arguments: list[str]) -> int:
    """Run the job and return the container's exit code: the exit code of the first failed process,
    or 128 plus the number of the signal that killed it."""
    root = Path(arguments[0] if arguments else ROOT)
    children = Children()
    signal.signal(signal.SIGTERM, lambda *_: children.ask_to_stop())
    try:
        return _run(root, children, dict(os.environ))
    except SetupError as error:
        error.tell()
        _write_failure(root, fitting(str(error), []))
        return 1
    finally:
        children.sweep()


def _run(root: Path, children: Children, variables: dict[str, str]) -> int:
    config = root / "input" / "config"
    network = Network.of(variables)
    resource = read_config(config / "resourceconfig.json")
    plan = launch_plan(
        read_config(config / "hyperparameters.json"),
        resource,
        read_config(config / "inputdataconfig.json")
        if (config / "inputdataconfig.json").exists()
        else {},
        this_machine(variables, str(resource.get("current_instance_type"))),
        root=str(root),
        network=network,
    )
    environment = {**variables, **plan.environment}
    if plan.requirements and EMULATION not in variables:
        install(plan.requirements, root / "code", environment, python=plan.python)
    secrets = resolved(environment)
    environment.update(secrets)
    if plan.wait_for:
        wait_for_name(plan.wait_for, tell=tell)
    if children.asked_to_stop:
        return 128 + signal.SIGTERM
    beacon = _listen_for_chief(plan, network, resource["current_host"], children)
    code = 1
    failed = None
    try:
        for program in plan.programs:
            tell("starting " + " ".join(map(shlex.quote, program.argv)))
            children.start(program, environment, str(root / "code"))
        code, failed = children.finish(plan.finishes)
    finally:
        code = 128 - code if code < 0 else code
        if beacon is not None:
            beacon.tell(code, patience=0 if children.asked_to_stop else LATECOMERS)
    if code and not children.asked_to_stop:
        _write_failure(root, masked(_explain_failure(failed, environment), forms_of(secrets)))
    return code


def _listen_for_chief(
    plan: LaunchPlan, network: Network, host: str, children: Children
) -> Beacon | None:
    """On the chief's host, start and return the beacon, a server that reports the chief's end to
    the other hosts. On the other hosts, start a thread that waits for this report, and return None.
    If the plan names no host to watch, only return None."""
    if plan.watch is None:
        return None
    address, port = network.place(plan.watch, WATCH_PORT)
    if plan.watch == host:
        return Beacon(
            port, others=len(plan.hosts) - 1, address=address if network.is_emulated else ""
        )
    watch_chief((address, port), children.chief_ended)
    return None


def _explain_failure(failed: Child | None, environment: Mapping[str, str]) -> str:
    if failed is None:
        return "the chief failed, or its host was lost; read that host's log"
    logs = environment.get("PET_LOG_DIR")  # torchrun's setting: the ranks' output goes there
    files = (
        sorted(Path(logs).rglob("stderr.log"), key=lambda path: path.stat().st_mtime)
        if logs
        else []
    )
    assert failed.exit_code is not None, "it has ended"
    return failure_text(failed.program.role, failed.exit_code, failed.read_stderr_end(), files)


def _write_failure(root: Path, text: str) -> None:
    write_once(root / "output" / "failure", text.encode("utf-8", "replace"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
