"""Really runs the jobs of the fake on this machine: their code, all their processes, logs, outputs, ends."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.deadlines import DEADLINE
from tests.fakes.azureml.files import ARTIFACTS, OUTPUTS, artifact
from tests.fakes.azureml.job import Job
from tests.fakes.azureml.messages import Json
from tests.fakes.azureml.processes import environments, instances_of
from tests.fakes.azureml.server import FakeAzure

_REFERENCE = re.compile(r"\$\{\{(inputs|outputs)\.(\w+)\}\}")
_STORE = re.compile(r"azureml://(?:.*/)?datastores/workspaceblobstore/paths/(.*)")


@dataclass
class Life:
    """One job that runs: its folder and its processes, in the order of their ranks."""

    job: Job
    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    canceled: threading.Event = field(default_factory=threading.Event)

    def end_processes(self, how: signal.Signals) -> None:
        for process in self.processes:
            if process.poll() is None:
                with suppress(ProcessLookupError):  # it ended by itself
                    os.killpg(process.pid, how)


class Runner:
    """Runs every job that the fake gets, in folders below `root`."""

    def __init__(self, fake: FakeAzure, root: Path) -> None:
        self._fake, self._root = fake, root
        self._lives: dict[str, Life] = {}
        self._threads: list[threading.Thread] = []
        fake.jobs.on_create, fake.jobs.on_cancel = self._start, self._cancel

    def clean_up(self) -> None:
        """End what still runs."""
        for life in self._lives.values():
            life.canceled.set()
            life.end_processes(signal.SIGKILL)
        for thread in self._threads:
            thread.join(DEADLINE)

    def _start(self, job: Job) -> None:
        life = self._lives[job.name] = Life(job, self._root / job.name)
        self._threads.append(threading.Thread(target=self._live, args=(life,), daemon=True))
        self._threads[-1].start()

    def _cancel(self, job: Job) -> None:
        life = self._lives[job.name]
        life.canceled.set()
        life.end_processes(signal.SIGTERM)

    def _live(self, life: Life) -> None:
        try:
            self._go_through(life)
        except Exception as error:
            life.job.end("Failed", error=f"the fake could not run it: {error!r}")
            raise

    def _go_through(self, life: Life) -> None:
        job, failed = life.job, None
        job.enter("Preparing")
        places = self._prepare(life)
        if not life.canceled.is_set():
            job.enter("Running")
            failed = self._run(life, places)
            self._keep(life)
        if life.canceled.is_set():
            job.end("Canceled")
        elif failed is not None:
            job.end("Failed", error=self._error(life, failed))
        else:
            job.enter("Finalizing")
            job.end("Completed")

    def _prepare(self, life: Life) -> dict[str, str]:
        """Code for every instance, inputs, empty outputs; `inputs.NAME` and `outputs.NAME` to what stands for them."""
        properties, places = life.job.properties, {}
        for node in range(instances_of(properties)):
            self._code(properties.get("codeId"), life.folder / f"node-{node}")
        for name, given in (properties.get("inputs") or {}).items():
            places[f"inputs.{name}"] = self._input(given, life.folder / "inputs" / name)
        for name in properties.get("outputs") or {}:
            folder = life.folder / "outputs" / name
            folder.mkdir(parents=True)
            places[f"outputs.{name}"] = str(folder)
        return places

    def _code(self, code_id: str | None, folder: Path) -> None:
        folder.mkdir(parents=True)
        if code_id:
            _, name, _, version = code_id.rsplit("/", 3)
            uri = self._fake.assets.get("codes", name, version)["codeUri"]
            container, _, prefix = uri.removeprefix(f"{self._fake.blobs.url}/").partition("/")
            self._copy(container, prefix, folder)

    def _input(self, given: Json, folder: Path) -> str:
        """A literal is itself; what lies in the workspace's blob store is copied; the rest stays an address."""
        if given["jobInputType"] == "literal":
            return str(given["value"])
        match = _STORE.fullmatch(given["uri"])
        if match is None:
            return str(given["uri"])
        folder.mkdir(parents=True)
        self._copy(OUTPUTS, match[1], folder)
        return str(folder)

    def _copy(self, container: str, prefix: str, folder: Path) -> None:
        for name, blob in list(self._fake.blobs.containers[container].items()):
            if name.startswith(prefix):
                path = folder / name[len(prefix) :].lstrip("/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(blob.data)

    def _run(self, life: Life, places: dict[str, str]) -> int | None:
        """Run all processes to their end; the rank of the first that failed, whose failure ends the others."""
        properties = life.job.properties
        command = _REFERENCE.sub(
            lambda match: places[f"{match[1]}.{match[2]}"], properties["command"]
        )
        readers = []
        for rank, (node, env) in enumerate(environments(properties)):
            process = subprocess.Popen(
                ["bash", "-c", command], cwd=life.folder / f"node-{node}", env=self._environment(life, places) | env,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            life.processes.append(process)
            readers.append(
                threading.Thread(target=self._read, args=(life, rank, process), daemon=True)
            )
        if life.canceled.is_set():  # asked while the processes were being started
            life.end_processes(signal.SIGTERM)
        for reader in readers:
            reader.start()
        return self._wait(life, readers)

    def _wait(self, life: Life, readers: list[threading.Thread]) -> int | None:
        failed: int | None = None
        while any(reader.is_alive() for reader in readers):
            for reader in readers:
                reader.join(0.02)
            codes = [process.poll() for process in life.processes]
            if failed is None and any(codes):
                failed = next(rank for rank, code in enumerate(codes) if code)
                life.end_processes(signal.SIGTERM)
        codes = [process.wait() for process in life.processes]
        return (
            next((rank for rank, code in enumerate(codes) if code), None)
            if failed is None
            else failed
        )

    def _environment(self, life: Life, places: dict[str, str]) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
        own = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "AZUREML_RUN_ID": life.job.name,
            "AZUREML_ROOT_RUN_ID": life.job.name,
            "AZUREML_EXPERIMENT_ID": "66666666-6666-6666-6666-666666666666",
            "AZUREML_ARM_WORKSPACE_NAME": self._fake.workspace_name,
            "OMP_NUM_THREADS": "1",
        }
        named = {
            f"AZURE_ML_{key.replace('inputs.', 'INPUT_').replace('outputs.', 'OUTPUT_')}": place
            for key, place in places.items()
        }
        return kept | own | named | (life.job.properties.get("environmentVariables") or {})

    def _read(self, life: Life, rank: int, process: subprocess.Popen[bytes]) -> None:
        """Both streams go to one file for each process."""
        assert process.stdout is not None
        with process.stdout as stream:
            for line in stream:
                self._fake.logs.write_bytes(life.job.name, self._log(life, rank), line)

    def _log(self, life: Life, rank: int) -> str:
        name = f"std_log_process_{rank}" if len(life.processes) > 1 else "std_log"
        return f"user_logs/{name}.txt"

    def _keep(self, life: Life) -> None:
        """Outputs go to the blob store, what is in `./outputs` to the artifacts; the code is of no use any more."""
        for path in _files(life.folder / "outputs"):
            output, _, name = path.relative_to(life.folder / "outputs").as_posix().partition("/")
            self._fake.outputs.write(life.job.name, output, name, path.read_bytes())
        for path in _files(life.folder / "node-0" / "outputs"):
            name = path.relative_to(life.folder / "node-0").as_posix()
            self._fake.outputs.write_artifact(life.job.name, name, path.read_bytes())
        shutil.rmtree(life.folder)

    def _error(self, life: Life, rank: int) -> str:
        """As the common runtime words it."""
        log, code = self._log(life, rank), life.processes[rank].returncode
        written = self._fake.blobs.containers[ARTIFACTS].get(artifact(life.job.name, log))
        text = written.data.decode(errors="replace") if written else ""
        return (
            f"Execution failed. User process 'bash' exited with status code {code}. Please check log file '{log}' for "
            f"error details. Error: {text[-2000:]}"
        )


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())
