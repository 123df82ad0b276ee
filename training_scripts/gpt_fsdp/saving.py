"""Sharded checkpoints: every process writes its part, and any layout of any number of processes reads them.

torch.distributed.checkpoint stores which part of which tensor lies where; names of parameters do not depend on the
layout, so a run that was stopped as 2 x FSDP goes on as 4 x 2-D. A folder gets its name, and counts, only when all
parts and the metadata are written (`cloudtrain.runtime.Checkpoints`).
"""

from __future__ import annotations

import shutil
import time
import uuid
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)

from cloudtrain import runtime
from cloudtrain.runtime.process_group import any_rank, from_main


class Saving:
    """The checkpoints of a run. All methods are called by all processes.

    With `is_async`, `save` copies the state and returns; a thread writes it while training goes on. That thread has
    messages of its own to send, so it has a group of its own: on the group of the training they would get mixed up, and
    both would wait for ever.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, keep: int, is_async: bool) -> None:
        self.model, self.optimizer = model, optimizer
        self.checkpoints = runtime.Checkpoints(keep=keep)
        self.is_main = dist.get_rank() == 0
        self._group = dist.new_group(backend="gloo") if is_async else None
        self._writing: tuple[Any, Path, int] | None = None  # future, folder, step
        self._newest = 0  # step
        self.waited: list[float] = []  # seconds that training stood still, for each checkpoint
        self._check_that_it_is_shared()
        if self.is_main:
            for left in self.checkpoints.directory.glob(".async-*"):  # of a run that was killed
                shutil.rmtree(left, ignore_errors=True)

    def load(self) -> int:
        """Take model and optimizer from the newest whole checkpoint. Its step; 0 when there is none."""
        saved = self.checkpoints.agree()
        if saved is None:
            return 0
        state = self._state()
        dcp.load(state, checkpoint_id=saved.path)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self._newest = saved.step
        return saved.step

    def save(self, step: int) -> None:
        """Write a checkpoint, or begin to, unless this step has one."""
        self.wait()
        if step == self._newest:
            return
        self._newest = step
        begun = time.perf_counter()
        if self._group is None:
            self.checkpoints.save_sharded(lambda folder: dcp.save(self._state(), checkpoint_id=folder), step)
        else:
            folder = self.checkpoints.directory / f".async-{step}"
            future = dcp.async_save(self._state(), checkpoint_id=folder, process_group=self._group)
            self._writing = future, folder, step
        self.waited.append(time.perf_counter() - begun)

    def poll(self) -> None:
        """Once a step: give a checkpoint its name when all processes have written it."""
        if self._writing is not None and not any_rank(not self._writing[0].done()):
            self.wait()

    def wait(self) -> None:
        """Until nothing is being written."""
        if self._writing is None:
            return
        begun = time.perf_counter()
        future, written, step = self._writing
        self._writing = None
        future.result()  # raises what went wrong in the thread

        def move(folder: Path) -> None:
            if self.is_main:
                for path in written.iterdir():
                    path.rename(folder / path.name)
                written.rmdir()

        self.checkpoints.save_sharded(move, step)
        self.waited[-1] += time.perf_counter() - begun

    def weights(self) -> dict[str, torch.Tensor]:
        """The whole model, on the CPU of rank 0; an empty dict elsewhere."""
        return get_model_state_dict(self.model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def _check_that_it_is_shared(self) -> None:
        """A checkpoint in parts needs one folder that all instances see."""
        folder = self.checkpoints.directory
        mark = folder / from_main(f".shared-{uuid.uuid4().hex}")
        if self.is_main:
            folder.mkdir(parents=True, exist_ok=True)
            mark.touch()
        any_rank(False)
        missing = any_rank(not mark.exists())
        if self.is_main:
            mark.unlink()
        if missing:
            raise runtime.SetupError(
                f"the instances do not share `{folder}`, so parts of a checkpoint would get lost",
                hint="use a file system that all instances mount, or one instance",
            )
