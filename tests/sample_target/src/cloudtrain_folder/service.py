"""Runs in a folder. A run exists once `request.json` does; whoever looks starts its worker where it has had none."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from cloudtrain.errors import NameTaken, RunNotFound, TargetError
from cloudtrain.plans.plan import Plan
from cloudtrain.plans.progress import ListedRun, LogLine, RunStatus
from cloudtrain.plans.states import RunRef, RunState
from cloudtrain.system.private import make_private_folder
from cloudtrain.system.processes import is_held
from cloudtrain.targets.common.archives import copy_places, put_archive
from cloudtrain.targets.contract import BundleWriter, Service


class FolderService(Service):
    """Reads and writes `ROOT/runs/NAME`."""

    in_flight = 0.0
    names_are_unique = True

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def upload(self, plan: Plan, bundle: BundleWriter, *, on_bytes: Any = None) -> bool:
        try:
            return put_archive(Path(plan.uploads[0].destination), bundle)
        except OSError as error:
            raise TargetError(f"the code cannot be written: {error}", hint="name another `root`") from error

    def submit(self, plan: Plan, *, again: bool = False) -> RunRef:
        run, content = self._folder(plan.ref), plan.request_json
        new = run / f"request.{os.getpid()}"
        try:
            make_private_folder(run)
            new.write_text(content)
            (run / "request.json").hardlink_to(new)  # fails where it exists, unlike a rename
        except FileExistsError:
            if not again or (run / "request.json").read_text() != content:
                raise NameTaken(f"there is a run `{run.name}` already", hint="give the job another name") from None
        except OSError as error:
            raise TargetError(f"the run cannot be written: {error}", hint="name another `root`") from error
        finally:
            new.unlink(missing_ok=True)
        self._start_worker(run)
        return plan.ref

    def has(self, ref: RunRef) -> bool:
        return (self._folder(ref) / "request.json").is_file()

    def status(self, ref: RunRef) -> RunStatus:
        run = self._known(ref)
        if not (run / "started").exists():
            self._start_worker(run)
        is_alive = is_held(run / "lock")  # before the result, which is there when the worker has left
        if (run / "result.json").exists():
            result = json.loads((run / "result.json").read_text())
            return RunStatus(**result | {"state": RunState(result["state"])})
        if not (run / "started").exists():
            return RunStatus(RunState.PENDING)
        state = RunState.STOPPING if (run / "stop").exists() else RunState.RUNNING
        reason = None if is_alive else "its worker was killed"
        return RunStatus(state if is_alive else RunState.LOST, reason, started=(run / "started").stat().st_mtime)

    def logs(
        self, ref: RunRef, *, follow: bool = False, rank: Any = None, instance: Any = None, on_status: Any = None
    ) -> Iterator[LogLine]:
        log, read, told = self._known(ref) / "logs" / "0.log", 0, None
        while not rank and not instance:
            status = self.status(ref)  # before the log, which is whole when the status is final
            if on_status is not None and status != told:
                on_status(status)
            new = log.read_bytes()[read:] if log.exists() else b""
            whole = new if status.state.is_final else new[: new.rfind(b"\n") + 1]
            for line in whole.splitlines():
                yield LogLine(log.stat().st_mtime, 0, 0, "stdout", line.decode("utf-8", "replace"))
            read, told = read + len(whole), status
            if status.state.is_final or not follow:
                return
            time.sleep(0.05)

    def stop(self, ref: RunRef) -> None:
        if not self.status(ref).state.is_final:
            (self._folder(ref) / "stop").touch()

    def runs(self, place: str) -> Iterator[ListedRun]:
        found = Path(unquote(place), "runs").glob("*/request.json")
        for request in sorted(found, key=lambda file: file.stat().st_mtime_ns, reverse=True):
            ref = RunRef("folder", place, request.parent.name)
            yield ListedRun(ref, self.status(ref))

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        run = self._known(ref)
        places = json.loads((run / "request.json").read_text())["outputs"] | {"logs": run / "logs"}
        return copy_places({name: [Path(place)] for name, place in places.items()}, path, destination)

    def _folder(self, ref: RunRef) -> Path:
        return Path(unquote(ref.place), "runs", ref.name)

    def _known(self, ref: RunRef) -> Path:
        if not self.has(ref):
            raise RunNotFound(f"there is no run `{ref.name}` in the folder", hint="`cloudtrain ps` lists the runs")
        return self._folder(ref)

    def _start_worker(self, run: Path) -> None:
        argv, off = [sys.executable, "-m", "cloudtrain_folder.worker", str(run)], subprocess.DEVNULL
        alone: Any = {"stdin": off, "stdout": off, "stderr": off, "start_new_session": True}
        if subprocess.run(argv, cwd=run, env=self._environ, **alone).returncode:
            raise TargetError("the worker did not start", hint=f"see what it says: `{' '.join(argv)}`")
