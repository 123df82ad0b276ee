"""A SageMaker host for tests: `/opt/ml` in a temporary folder, as the service would fill it, and the real start line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloudtrain.code.tree import scan
from cloudtrain.runtime.sagemaker_launcher import container_entrypoint
from cloudtrain.runtime.sagemaker_launcher.network import EMULATION
from tests.deadlines import DEADLINE

RECORDER = """
import json, os, sys
name = "seen_" + os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")) + ".json"
with open(os.path.join(os.environ["SM_OUTPUT_DATA_DIR"], name), "w") as file:
    json.dump({"argv": sys.argv[1:], "env": dict(os.environ)}, file)
"""
"""A script that writes down what it was started with."""


def resource_config(
    host: str,
    groups: Mapping[str, list[str]] | None = None,
    *,
    hosts: tuple[str, ...] = ("algo-1",),
) -> dict[str, Any]:
    """`resourceconfig.json` of one host."""
    groups = groups or {"homogeneousCluster": list(hosts)}
    return {
        "current_host": host,
        "current_instance_type": "ml.g5.12xlarge",
        "current_group_name": next(name for name, members in groups.items() if host in members),
        "hosts": sorted(member for members in groups.values() for member in members),
        "instance_groups": [
            {"instance_group_name": name, "instance_type": "ml.g5.12xlarge", "hosts": members}
            for name, members in groups.items()
        ],
        "network_interface_name": "lo",
    }


@dataclass
class Host:
    """One host. `start` runs the container's start line; `wait` gives its exit code."""

    root: Path
    resource: dict[str, Any] = field(default_factory=lambda: resource_config("algo-1"))
    variables: dict[str, str] = field(default_factory=dict)
    endpoints: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None
    out: str = ""
    err: str = ""

    def fill(
        self, files: Mapping[str, str], hyperparameters: Mapping[str, Any], **launch: Any
    ) -> Host:
        """Bundle and configuration, as the service puts them there."""
        source = self.root.parent / f"{self.root.name}-src"
        for name, text in files.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_text(text)
        scan(source).write(self.root / "input/data/code/sourcedir.tar.gz")
        request = {key: json.dumps(value) for key, value in hyperparameters.items()}
        self.configure(
            {**request, "cloudtrain_launch": json.dumps({"launcher": "single", **launch})}
        )
        return self

    def configure(self, request: Mapping[str, str]) -> None:
        config = self.root / "input/config"
        config.mkdir(parents=True, exist_ok=True)
        (self.root / "output/data").mkdir(parents=True, exist_ok=True)
        (config / "hyperparameters.json").write_text(json.dumps(request))
        (config / "resourceconfig.json").write_text(json.dumps(self.resource))
        (config / "inputdataconfig.json").write_text(
            json.dumps({"code": {"TrainingInputMode": "File"}})
        )

    def start(self, shell: tuple[str, ...] = ("/bin/sh",)) -> Host:
        argv = [*shell, *container_entrypoint(str(self.root))[1:]]
        env = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self.root),
            **self.variables,
        }
        if self.endpoints:
            env[EMULATION] = json.dumps(self.endpoints)
        self.process = subprocess.Popen(
            argv,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self

    def wait(self, timeout: float = DEADLINE) -> int:
        assert self.process is not None
        try:
            self.out, self.err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.out, self.err = self.process.communicate()
            raise
        return self.process.returncode

    def run(self, **options: Any) -> int:
        return self.start(**options).wait()

    def when(self, happened: Callable[[], bool]) -> None:
        """Wait for a sign of life of the script."""
        deadline = time.monotonic() + DEADLINE
        while not happened():
            assert time.monotonic() < deadline, "the script gives no sign"
            time.sleep(0.02)

    def seen(self, rank: int = 0) -> dict[str, Any]:
        """What the recorder wrote."""
        found: dict[str, Any] = json.loads(
            (self.root / f"output/data/seen_{rank}.json").read_text()
        )
        return found

    @property
    def failure(self) -> str | None:
        path = self.root / "output/failure"
        return path.read_text() if path.exists() else None
