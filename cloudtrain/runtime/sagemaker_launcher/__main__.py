"""`python -m cloudtrain.runtime.sagemaker_launcher [/opt/ml]`: the container's main process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread
from typing import Any

from cloudtrain.runtime.install import install
from cloudtrain.runtime.secret_values import forms_of, masked, resolved

from . import ROOT
from .children import Child, Children, run_guarded
from .failure import write_once
from .machine import read_config, this_machine
from .network import EMULATION, LATECOMERS, Beacon, Network, wait_for_name, watch_chief
from .plan import WATCH_PORT, LaunchPlan, launch_plan


def main(arguments: list[str]) -> int:
    """Run the job and return the container's exit code: the exit code of the first failed process,
    or 128 plus the number of the signal that killed it."""
    root = Path(arguments[0] if arguments else ROOT)

    def write_reason(text: str) -> None:
        write_once(root / "output" / "failure", text)

    return run_guarded(lambda children: _run(root, children, write_reason), write_reason)


def _run(root: Path, children: Children, write_reason: Callable[[str], None]) -> int:
    variables = dict(os.environ)
    config = root / "input" / "config"
    network = Network.of(variables)
    resource = read_config(config / "resourceconfig.json")
    channels: Mapping[str, Any] = {}
    if (config / "inputdataconfig.json").exists():
        channels = read_config(config / "inputdataconfig.json")
    plan = launch_plan(
        read_config(config / "hyperparameters.json"),
        resource,
        channels,
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
        wait_for_name(plan.wait_for)
    if children.asked_to_stop:
        return 128 + signal.SIGTERM

    beacon = _listen_for_chief(plan, network, resource["current_host"], children)
    code = 1
    failed = None
    try:
        for program in plan.programs:
            children.start(program, environment, str(root / "code"))
        code, failed = children.finish(plan.finishes)
    finally:
        if beacon is not None:
            beacon.tell(code, patience=0 if children.asked_to_stop else LATECOMERS)
    if code and not children.asked_to_stop:
        write_reason(masked(_explain_failure(failed, environment), forms_of(secrets)))
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
    if plan.watch != host:
        place = (address, port)
        Thread(target=watch_chief, args=(place, children.chief_ended), daemon=True).start()
        return None
    interface = address if network.is_emulated else ""
    return Beacon(port, others=len(plan.hosts) - 1, address=interface)


def _explain_failure(failed: Child | None, environment: Mapping[str, str]) -> str:
    if failed is None:
        return "the chief failed, or its host was lost; read that host's log"
    logs = environment.get("PET_LOG_DIR")  # torchrun's setting: the ranks' output goes there
    files: list[Path] = []
    if logs:
        files = sorted(Path(logs).rglob("stderr.log"), key=lambda path: path.stat().st_mtime)
    return failed.explain_failure(files=files)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
