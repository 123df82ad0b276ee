"""Really runs the code of jobs, one process per instance, so that the contract suite's scripts run here too.

As in a container that starts mpirun, all output comes in the first instance's stream, each line with its rank and
stream in front; the model folder is packed into `model.tar.gz`; a failure is told as the toolkit tells it.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import IO, Any

from tests.deadlines import DEADLINE
from tests.fakes.sagemaker.jobs import Job
from tests.fakes.sagemaker.server import FakeAws
from tests.fakes.unpacking import unpack


class Runner:
    """Runs every job that the fake gets, in folders below `root`."""

    def __init__(self, fake: FakeAws, root: Path) -> None:
        self._fake = fake
        self._root = root
        self._running: dict[str, list[subprocess.Popen[str]]] = {}
        self._threads: list[threading.Thread] = []
        fake.jobs.on_create, fake.jobs.on_stop = self._start, self._stop

    def clean_up(self) -> None:
        """End what still runs."""
        for processes in self._running.values():
            for process in processes:
                process.kill()
        for thread in self._threads:
            thread.join(DEADLINE)

    def _start(self, job: Job) -> None:
        self._running[job.name] = []
        self._threads.append(threading.Thread(target=self._run, args=(job,), daemon=True))
        self._threads[-1].start()

    def _stop(self, job: Job) -> None:
        for process in self._running[job.name]:
            process.terminate()

    def _run(self, job: Job) -> None:
        folder = self._root / job.name
        job.enter("Downloading")
        values = {key: json.loads(text) for key, text in job.request["HyperParameters"].items()}
        code = self._fake.s3.get(values["sagemaker_submit_directory"]).data
        unpack(code, folder / "code")
        job.enter("Training")
        count = job.request["ResourceConfig"]["InstanceCount"]
        last_errors = self._processes(job, folder, values["sagemaker_program"], count)
        self._end(job, folder, last_errors)

    def _processes(self, job: Job, folder: Path, program: str, count: int) -> list[str]:
        """Run all ranks to their end; the last line that each wrote to stderr."""
        model = folder / "model"
        model.mkdir(parents=True)
        env = os.environ | {
            "SM_MODEL_DIR": str(model),
            "CLOUDTRAIN_MODEL_DIR": str(model),
            "OMP_NUM_THREADS": "1",
        }
        readers, errors = [], [""] * count
        for rank in range(count):
            process = subprocess.Popen(
                [sys.executable, program], cwd=folder / "code", env=env,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            self._running[job.name].append(process)
            for name in ("stdout", "stderr"):
                stream: IO[str] = getattr(process, name)
                arguments = (job.name, rank, name, stream, errors)
                readers.append(threading.Thread(target=self._read, args=arguments, daemon=True))
                readers[-1].start()
        if job.status == "Stopping":  # asked while the processes were being started
            self._stop(job)
        for process in self._running[job.name]:
            process.wait()
        for reader in readers:
            reader.join()
        return errors

    def _read(self, name: str, rank: int, kind: str, stream: IO[str], errors: list[str]) -> None:
        with stream:
            for line in stream:
                text = line.rstrip("\n")
                self._fake.logs.write(f"{name}/algo-1-1700000000", f"[1,{rank}]<{kind}>:{text}")
                if kind == "stderr":
                    errors[rank] = text

    def _end(self, job: Job, folder: Path, errors: list[str]) -> None:
        codes = [process.returncode for process in self._running[job.name]]
        if job.status == "Stopping":
            job.end("Stopped")
            return
        if any(codes):
            rank = next(rank for rank, code in enumerate(codes) if code)
            said = f'ExecuteUserScriptError:\nExitCode {codes[rank]}\nErrorMessage "{errors[rank]}"\nCommand "python"'
            job.end("Failed", FailureReason=f"AlgorithmError: {said}, exit code: {codes[rank]}")
            return
        job.enter("Uploading")
        uri = f"{job.request['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{job.name}/output/model.tar.gz"
        self._fake.s3.put(uri, packed(folder / "model"))
        more: dict[str, Any] = {"ModelArtifacts": {"S3ModelArtifacts": uri}}
        job.end("Completed", **more)


def packed(folder: Path) -> bytes:
    """The folder as the service packs it."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for path in sorted(folder.rglob("*")):
            tar.add(path, arcname=path.relative_to(folder).as_posix(), recursive=False)
    return data.getvalue()
