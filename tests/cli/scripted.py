"""A target whose runs have the fate that a file tells: their lines, then their last status."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cloudtrain.plans.progress import LogLine, RunStatus
from cloudtrain.plans.states import RunRef, RunState
from tests.fakes.file_target import FileService, FileTarget


class ScriptedTarget(FileTarget):
    """The local target with such runs."""

    def service(self, *, environ: Mapping[str, str], state_dir: Path) -> Any:
        return ScriptedService(environ=environ)


class ScriptedService(FileService):
    """`fate.json`: {"state": ..., "states": {run: state, ...}, "lines": [[rank, text], ...], "lines_of": {run: lines}, "interrupt": bool, ...fields of RunStatus}."""

    @property
    def _fate(self) -> dict[str, Any]:
        file = self.jobs.parent / "fate.json"
        fate: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return fate

    def status(self, ref: RunRef) -> RunStatus:
        super().status(ref)
        fate = self._fate
        fields = {
            key: fate[key]
            for key in ("reason", "failed_rank", "exit_code", "metrics")
            if key in fate
        }
        return RunStatus(
            RunState(fate.get("states", {}).get(ref.name, fate.get("state", "succeeded"))),
            started=100.0,
            ended=112.0,
            details=tuple(fate.get("details", ())),
            **fields,
        )

    def logs(
        self, ref: RunRef, *, follow: bool = False, rank: int | None = None, instance: int | None = None,
        on_status: Callable[[RunStatus], None] | None = None,
    ) -> Iterator[LogLine]:  # fmt: skip
        lines = self._fate.get("lines_of", {}).get(ref.name, self._fate.get("lines", ()))
        for number, (of_rank, text) in enumerate(lines):
            if rank in (None, of_rank) and instance in (None, 0):
                yield LogLine(100.25 + number, 0, of_rank, "stdout", text)
        if follow and self._fate.get("interrupt"):
            signal.raise_signal(signal.SIGINT)

    def stop(self, ref: RunRef) -> None:
        (self.jobs.parent / "stopped").write_text(ref.name)

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        destination.mkdir(parents=True, exist_ok=True)
        file = destination / "weights.pt"
        file.write_bytes(b"1")
        return [file]
