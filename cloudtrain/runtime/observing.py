"""Diagnostics for failures and slow steps on GPUs: NCCL's flight recorder, a snapshot of GPU memory
when it runs out, and a trace of some steps. All files go into one folder of the run, which the
target keeps."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from .directories import output_dir, run_dir
from .environment import detect_environment, notice
from .errors import SetupError
from .loopback import torch_version

FOLDER = "diagnostics"
PROFILE = "CLOUDTRAIN_PROFILE"
MEMORY = "CLOUDTRAIN_MEMORY_HISTORY"

RECORDER_NAMES = ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE")
OLD_RECORDER_NAMES = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""The variables for the size of NCCL's flight recorder and for its file, to which torch appends the
rank: from torch 2.8 on, and before.
https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html"""

ENTRIES = "2000"


def diagnostics_dir() -> Path:
    """Return the folder for diagnostics: `diagnostics` in the run's folder on this machine; on a
    cloud, a folder that the target keeps."""
    run = run_dir()
    folder = output_dir(FOLDER) if run is None else run / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def record_flights() -> None:
    """Switch on NCCL's flight recorder, unless its environment variables are already set. Call it
    before creating the process group."""
    entries, place = RECORDER_NAMES
    if torch_version() < (2, 8):
        entries, place = OLD_RECORDER_NAMES
    os.environ.setdefault(entries, ENTRIES)
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    if os.environ[entries] != "0":
        os.environ.setdefault(place, str(diagnostics_dir() / "nccl_trace_rank_"))


def watch_memory() -> None:
    """From now on, if this process's GPU runs out of memory, write a file with all allocations for
    https://pytorch.org/memory_viz.

    For this file, every allocation is recorded, which costs the host about a microsecond each time.
    `CLOUDTRAIN_MEMORY_HISTORY=0` switches the recording off.
    """
    if os.environ.get(MEMORY, "1") == "0":
        return
    import torch

    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is None:
        return
    memory: Any = torch.cuda.memory
    memory._record_memory_history(max_entries=100_000)

    def write_snapshot(*_: object) -> None:
        path = diagnostics_dir() / f"out_of_memory_rank_{detect_environment().rank}.pickle"
        memory._dump_snapshot(str(path))
        notice(f"out of memory: what held it is in `{path}`", every_rank=True)

    attach(write_snapshot)


_PLAN = re.compile(r"(\d+)(?:-(\d+))?(?:@(\d+(?:,\d+)*|all))?")


class StepProfile:
    """Records a trace of some steps on some ranks. `10-12@0,4` means steps 10 to 12 on ranks 0 and
    4; without `@`, only rank 0 records.

    profile = runtime.StepProfile(config.profile)
    for step in ...:
        profile.begin(step)
        ...
    profile.end()

    Without an argument, `CLOUDTRAIN_PROFILE` chooses the steps. If that is not set either, nothing
    is recorded. Each recorded rank writes one file, a Chrome trace.
    """

    def __init__(self, text: str = "") -> None:
        self.first: int = -1
        self.last: int = -1
        self.is_on = False
        self._profiler: Any = None
        text = text or os.environ.get(PROFILE, "")
        if not text:
            return
        match = _PLAN.fullmatch(text)
        if match is None:
            raise SetupError(
                f"`{text}` is not a profile",
                hint="write steps and ranks, as in `10-12@0,4` or `10-12@all`",
            )
        self.first = int(match[1])
        self.last = int(match[2] or match[1])
        if self.last < self.first:
            raise SetupError(f"`{text}` ends before it begins", hint="write the smaller step first")
        ranks = match[3] or "0"
        own = str(detect_environment().rank)
        self.is_on = ranks == "all" or own in ranks.split(",")

    def begin(self, step: int) -> None:
        """Mark the beginning of `step`. Call it before every step, including steps that are not
        recorded."""
        if step > self.last:
            self.end()
        is_wanted = self.is_on and self.first <= step <= self.last
        if self._profiler is not None or not is_wanted:
            return
        import torch
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            kinds.append(ProfilerActivity.CUDA)
        self._profiler = profile(activities=kinds, record_shapes=False, with_stack=False)
        self._profiler.start()

    def end(self) -> None:
        """Write the recorded trace, if there is one."""
        if self._profiler is None:
            return
        profiler = self._profiler
        self._profiler = None
        self.is_on = False
        profiler.stop()
        steps = f"{self.first}-{self.last}"
        rank = detect_environment().rank
        path = diagnostics_dir() / f"trace_steps_{steps}_rank_{rank}.json"
        profiler.export_chrome_trace(str(path))
        notice(f"a trace of the steps {steps} is in `{path}`", every_rank=True)
