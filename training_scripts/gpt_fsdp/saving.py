"""Sharded checkpoints: every process writes its part, and any layout of any number of processes reads them.

torch.distributed.checkpoint stores which part of which tensor lies where; names of parameters do not depend on the
layout, so a run that was stopped as 2 x FSDP can continue as 4 x 2-D. A folder gets its final name only when all parts
and the metadata are written (`cloudtrain.runtime.Checkpoints`).
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._state_dict_utils import _copy_state_dict, _create_cpu_state_dict
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)

from cloudtrain import runtime
from cloudtrain.runtime.process_group import any_rank, from_main
from cloudtrain.runtime.sharded import read_shards, write_shards


def use_same_gpu() -> Callable[[], None]:
    """Return the function by which another thread takes this thread's GPU. Otherwise it would take the first one, where
    each process of the machine would occupy memory."""
    if not torch.cuda.is_available():
        return lambda: None
    device = torch.cuda.current_device()
    return lambda: torch.cuda.set_device(device)


class Saving:
    """The checkpoints of a run. All methods are called by all processes.

    With `is_async`, `save` copies the state into memory that is kept for that (pinned, where there are GPUs, so that
    the copy does not wait for the host) and returns; a thread writes it during the training. That thread has its own
    process group for its messages: in the training's group the messages would get mixed up, and both would wait for
    ever.

    `progress` is the part of a checkpoint that is not tensors: plain numbers and texts, the same on all processes.
    """

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, keep: int, is_async: bool
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.checkpoints = runtime.Checkpoints(keep=keep)
        self.is_main = dist.get_rank() == 0
        self.progress: dict[str, Any] = {}
        self._group = dist.new_group(backend="gloo") if is_async else None
        self._thread = ThreadPoolExecutor(1, initializer=use_same_gpu()) if is_async else None
        self._staged: Any = None
        self._writing: tuple[Future[Any], Path, int] | None = None  # what was written, folder, step
        self._newest = 0  # step
        self.waited: list[float] = []  # seconds that training stood still, for each checkpoint
        self._check_that_it_is_shared()
        if self.is_main:
            for left in self.checkpoints.directory.glob(".async-*"):  # of a run that was killed
                shutil.rmtree(left, ignore_errors=True)

    def load(self) -> int:
        """Restore model, optimizer, progress and random states from the newest whole checkpoint. Return its step, or
        0."""
        state: dict[str, Any] = {}

        def read(folder: Path) -> None:
            state.update(state or self._state())
            read_shards(state, folder)

        saved = self.checkpoints.load_sharded(read)
        if saved is None:
            return 0
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.progress = json.loads(state["progress"])
        runtime.restore_random_states(state["random"])
        self._newest = saved.step
        return saved.step

    def save(self, step: int) -> None:
        """Write a checkpoint, or begin to write it in a thread, unless this step already has a checkpoint."""
        self.wait()
        if step == self._newest:
            return
        self._newest = step
        begun = time.perf_counter()
        state = self._state()
        if self._thread is None:
            self.checkpoints.save_sharded(lambda folder: write_shards(state, folder), step)
        else:
            folder = self.checkpoints.directory / f".async-{step}"
            staged = self._copied(state)
            self._writing = (
                self._thread.submit(write_shards, staged, folder, group=self._group),
                folder,
                step,
            )
        self.waited.append(time.perf_counter() - begun)

    def poll(self) -> None:
        """Rename a checkpoint to its final name when all processes have written it. Call it once a step."""
        if self._writing is not None and not any_rank(not self._writing[0].done()):
            self.wait()

    def wait(self) -> None:
        """Wait until no checkpoint is being written."""
        if self._writing is None:
            return
        begun = time.perf_counter()
        future, written, step = self._writing
        self._writing = None
        files = future.result()  # raises what went wrong in the thread

        def move(folder: Path) -> dict[str, Any]:
            if self.is_main:
                for path in written.iterdir():
                    path.rename(folder / path.name)
                written.rmdir()
            any_rank(False)
            return files

        self.checkpoints.save_sharded(move, step)
        self.waited[-1] += time.perf_counter() - begun

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the whole model, on the CPU of rank 0; an empty dict elsewhere."""
        return get_model_state_dict(
            self.model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
        )

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        rest = {"progress": json.dumps(self.progress), "random": runtime.random_states()}
        return {"model": model, "optimizer": optimizer, **rest}

    def _copied(self, state: dict[str, Any]) -> Any:
        """Copy the current state into this object's host memory."""
        tensors = {name: state.pop(name) for name in ("model", "optimizer")}
        if self._staged is None:
            self._staged = _create_cpu_state_dict(tensors, pin_memory=torch.cuda.is_available())
        copied = _copy_state_dict(tensors, self._staged, non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the optimizer may change the originals from here on
        return {**copied, **state}

    def _check_that_it_is_shared(self) -> None:
        """Check that all instances share the folder, as a sharded checkpoint requires."""
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
