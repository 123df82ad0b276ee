"""An AWS account for a notebook: the fake service on loopback, whose training jobs really run, on this machine.

What a container would start is what a plan says of it: the same argv and variables, with `/opt/ml` in a folder of each
host, and `algo-1` on loopback. What the hosts print goes to the log, and the model to S3, as the service does it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from cloudtrain.machines.table import instance_named
from cloudtrain.plans.processes import Process
from cloudtrain.targets.sagemaker.catalogue.contents import ImageContents
from cloudtrain.targets.sagemaker.launch.processes import view
from tests.fakes.sagemaker.jobs import Job
from tests.fakes.sagemaker.runner import packed
from tests.fakes.sagemaker.server import FakeAws
from tests.fakes.unpacking import unpack
from tests.ports import free_port

IMAGE = ImageContents("pytorch", "5.1.1")
REGION = "us-west-2"


def pretended_account() -> FakeAws:
    """Starts the service and points boto3 in this process at it; runs are kept apart from one's own.

    It lives as long as the process.
    """
    fake = FakeAws(region=REGION).__enter__()
    root = Path(tempfile.mkdtemp(prefix="cloudtrain-notebook-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    os.environ |= fake.environ | {"CLOUDTRAIN_STATE_DIR": str(root / "state")}
    machines = Machines(fake, root)
    fake.jobs.on_create, fake.jobs.on_stop = machines.start, machines.stop
    return fake


class Machines:
    """Starts what the hosts of a job would start, and tells the service how it goes."""

    def __init__(self, fake: FakeAws, root: Path) -> None:
        self._fake = fake
        self._root = root
        self._running: dict[str, list[subprocess.Popen[str]]] = {}

    def start(self, job: Job) -> None:
        threading.Thread(target=self._live, args=(job,), daemon=True).start()

    def stop(self, job: Job) -> None:
        for process in self._running.get(job.name, ()):
            process.terminate()

    def _live(self, job: Job) -> None:
        """The life of one job, from the bundle to the model."""
        try:
            began = time.time()
            model, code = self._train(job)
            seconds = max(1, round(time.time() - began))
            more: dict[str, Any] = {
                "TrainingTimeInSeconds": seconds,
                "BillableTimeInSeconds": seconds,
            }
            if job.status == "Stopping":
                job.end("Stopped", **more)
            elif code:
                job.end("Failed", FailureReason=f"AlgorithmError: exit code: {code}", **more)
            else:
                job.end(
                    "Completed",
                    ModelArtifacts={"S3ModelArtifacts": self._upload(job, model)},
                    **more,
                )
        except Exception as error:
            job.end("Failed", FailureReason=f"InternalServerError: {error!r}")
            raise

    def _train(self, job: Job) -> tuple[Path, int]:
        """The model's folder on the first host, and the worst exit code."""
        job.enter("Downloading", "Downloading the training image")
        launchers = [process for process in view(job.request, IMAGE, _gpus) if process.rank is None]
        hosts = [self._host(job, process) for process in launchers]
        job.enter("Training", "Training image download completed. Training in progress.")
        port = free_port()
        running = [
            _start(process, host, port) for process, host in zip(launchers, hosts, strict=True)
        ]
        self._running[job.name] = running
        readers = [
            threading.Thread(target=self._log, args=(job, item, number))
            for number, item in enumerate(running)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        return hosts[0] / "model", max(abs(process.wait()) for process in running)

    def _host(self, job: Job, process: Process) -> Path:
        """`/opt/ml` of one host, with the code in it."""
        folder = self._root / job.name / f"algo-{process.instance + 1}"
        code = self._fake.s3.get(process.env["SM_MODULE_DIR"]).data
        unpack(code, folder / "code")
        for name in ("model", "output/data"):
            (folder / name).mkdir(parents=True)
        return folder

    def _log(self, job: Job, process: subprocess.Popen[str], number: int) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._fake.logs.write(f"{job.name}/algo-{number + 1}-1700000000", line.rstrip("\n"))

    def _upload(self, job: Job, model: Path) -> str:
        job.enter("Uploading", "Uploading generated training model")
        place = f"{job.request['OutputDataConfig']['S3OutputPath']}/{job.name}/output/model.tar.gz"
        self._fake.s3.put(place, packed(model))
        return place


def _gpus(instance_type: str) -> int:
    known = instance_named("sagemaker", instance_type)
    return known.gpus if known is not None else 0


def _start(process: Process, host: Path, port: int) -> subprocess.Popen[str]:
    """What the container starts, with this machine's interpreter, addresses and folders."""
    command, *arguments = process.argv
    assert command == "torchrun", command
    moved = {"algo-1": "127.0.0.1", "7777": str(port)}
    variables = {name: text.replace("/opt/ml", str(host)) for name, text in process.env.items()}
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            *(moved.get(word, word) for word in arguments),
        ],
        cwd=host / "code",
        env=os.environ | variables | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
