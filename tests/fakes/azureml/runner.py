"""Really runs the code of jobs, one process per rank, so that the contract suite's scripts run here too.

As on the service, each process has a log file of its own, into which both of its streams go; what is in the folder of
the output `model` is kept when a job has succeeded; a failure is told in the words of its common runtime.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

from tests.fakes.azureml.job import Job
from tests.fakes.azureml.server import FakeAzure


class Runner:
    """Runs every job that the fake gets, in folders below `root`."""

    def __init__(self, fake: FakeAzure, root: Path) -> None:
        self._fake = fake
        self._root = root
        self._running: dict[str, list[subprocess.Popen[bytes]]] = {}
        self._threads: list[threading.Thread] = []
        fake.jobs.first_status = "Preparing"
        fake.jobs.on_create, fake.jobs.on_cancel = self._start, self._stop

    def clean_up(self) -> None:
        """End what still runs."""
        for processes in self._running.values():
            for process in processes:
                process.kill()
        for thread in self._threads:
            thread.join(10)

    def _start(self, job: Job) -> None:
        self._running[job.name] = []
        self._threads.append(threading.Thread(target=self._run, args=(job,), daemon=True))
        self._threads[-1].start()

    def _stop(self, job: Job) -> None:
        for process in self._running[job.name]:
            process.terminate()

    def _run(self, job: Job) -> None:
        folder = self._root / job.name
        self._unpack(job, folder / "code")
        (folder / "model").mkdir(parents=True)
        if job.status == "Preparing":
            job.enter("Running")
        readers = [self._process(job, folder, rank) for rank in range(_ranks(job))]
        if job.status == "CancelRequested":  # asked while the processes were being started
            self._stop(job)
        for process in self._running[job.name]:
            process.wait()
        for reader in readers:
            reader.join()
        self._end(job, folder)

    def _unpack(self, job: Job, folder: Path) -> None:
        """The blobs that the job's code asset names."""
        _, name, _, version = job.properties["codeId"].rsplit("/", 3)
        uri = self._fake.assets.get("codes", name, version)["codeUri"].removeprefix(f"{self._fake.blobs.url}/")
        container, _, prefix = uri.partition("/")
        for path, blob in self._fake.blobs.containers[container].items():
            place = folder / path.removeprefix(f"{prefix}/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(blob.data)

    def _process(self, job: Job, folder: Path, rank: int) -> threading.Thread:
        """One rank; the thread that keeps its output."""
        model = str(folder / "model")
        ours = {"RANK": str(rank), "WORLD_SIZE": str(_ranks(job)), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
                "AZURE_ML_OUTPUT_model": model, "CLOUDTRAIN_MODEL_DIR": model,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # fmt: skip
        process = subprocess.Popen(
            ["bash", "-c", f"exec {job.properties['command']}"], cwd=folder / "code", env=os.environ | ours,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._running[job.name].append(process)
        assert process.stdout is not None
        reader = threading.Thread(target=self._read, args=(job, rank, process.stdout), daemon=True)
        reader.start()
        return reader

    def _read(self, job: Job, rank: int, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                self._fake.logs.write_bytes(job.name, _log_file(job, rank), line)

    def _end(self, job: Job, folder: Path) -> None:
        codes = [process.returncode for process in self._running[job.name]]
        if job.status == "CancelRequested":
            job.end("Canceled")
        elif any(codes):
            rank = next(rank for rank, code in enumerate(codes) if code)
            job.end("Failed", error=f"Execution failed. User process 'bash' exited with status code {codes[rank]}. "
                    f"Please check log file '{_log_file(job, rank)}' for error details.")  # fmt: skip
        else:
            for path in (folder / "model").rglob("*"):
                if path.is_file():
                    name = path.relative_to(folder / "model").as_posix()
                    self._fake.outputs.write(job.name, "model", name, path.read_bytes())
            job.end("Completed")


def _ranks(job: Job) -> int:
    per_instance = (job.properties.get("distribution") or {}).get("processCountPerInstance") or 1
    return int(job.properties["resources"]["instanceCount"]) * int(per_instance)


def _log_file(job: Job, rank: int) -> str:
    return f"user_logs/std_log_process_{rank}.txt" if _ranks(job) > 1 else "user_logs/std_log.txt"
