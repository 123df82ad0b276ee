"""Support for the Trainer of Hugging Face's transformers, and for trainers derived from it, such as
TRL's."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from cloudtrain.runtime.atomic import MANIFEST, entries, file_names, is_whole, write_file
from cloudtrain.runtime.directories import checkpoint_dir, model_dir
from cloudtrain.runtime.environment import detect_environment, notice
from cloudtrain.runtime.process_group import from_main, wait_for_all
from cloudtrain.runtime.stopping import exit_preempted, should_stop, watch_for_stop
from cloudtrain.runtime.uncaught import tell_setup_errors

from .loop import StepReports, require_all_processes, spare_workers

_NAME = re.compile(r"checkpoint-(\d+)")


def train(trainer: Any, **arguments: Any) -> Any:
    """Run `trainer.train(**arguments)`, starting from the newest whole checkpoint of
    `checkpoint_dir()`.

    Afterwards, `trainer.save_model()` writes to `model_dir()`. If the run is stopped, `train` does
    not return: the process exits with code 0.
    """
    tell_setup_errors()
    _load_to_numbered_cpus()
    callbacks = trainer.callback_handler.callbacks
    if not any(isinstance(callback, HuggingFaceCallback) for callback in callbacks):
        trainer.add_callback(HuggingFaceCallback())
    if "resume_from_checkpoint" not in arguments and trainer.args.resume_from_checkpoint is None:
        arguments["resume_from_checkpoint"] = from_main(newest_checkpoint(checkpoint_dir()))
    return trainer.train(**arguments)


@cache
def _load_to_numbered_cpus() -> None:
    """Let `torch.load` accept accelerate's `cpu:1`, to which transformers 5.3 loads an
    optimizer."""
    import torch

    def restore(item: Any, place: str) -> Any:
        return item if place.startswith("cpu:") else None

    torch.serialization.register_package(19, lambda _: None, restore)


# where transformers is not installed, it is Any
class HuggingFaceCallback(TrainerCallback):  # type: ignore[misc]
    """Reports the values that the Trainer logs. On SIGTERM, saves a checkpoint and ends the
    training.

    Checkpoints go to `checkpoint_dir()`.
    """

    def __init__(self) -> None:
        self._reports = StepReports()
        self._stopping = self._resumed = False

    def on_train_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any
    ) -> None:
        """Set the folder for checkpoints, and start to watch for SIGTERM."""
        require_all_processes(
            args.world_size, "without GPUs, write `TrainingArguments(use_cpu=True)`"
        )
        args.output_dir = str(checkpoint_dir())
        self._resumed = state.global_step > 0
        watch_for_stop()
        spare_workers([train_dataloader])

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Report the numbers that the Trainer logs, but not the last mean of a resumed one, which
        lacks losses."""
        values = dict(logs or {})
        if self._resumed and "train_runtime" in values:
            values.pop("train_loss", None)
        self._reports.log(state.global_step, state.max_steps, values)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """If a stop was requested, save, end the training, and skip the evaluation of this step."""
        self._reports.tick(state.global_step, state.max_steps, {"epoch": state.epoch})
        if should_stop():
            self._stopping = control.should_training_stop = control.should_save = True
            control.should_evaluate = False

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After a stop, skip saving and evaluating at the end of the epoch, because the checkpoint
        of the last step has already been saved."""
        if self._stopping:
            control.should_save = control.should_evaluate = False

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the manifest, from which `newest_checkpoint` sees whether the checkpoint is
        whole."""
        wait_for_all()
        if detect_environment().is_main:
            folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
            (folder / MANIFEST).unlink(missing_ok=True)
            files = entries(folder, file_names(folder))
            manifest = {"version": 1, "step": state.global_step, "files": files}
            text = json.dumps(manifest, indent=1) + "\n"
            write_file(folder / MANIFEST, text.encode())

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Exit if the training was stopped. Otherwise set the output folder to `model_dir()`, where
        `save_model()` then writes."""
        if self._stopping and state.global_step < state.max_steps:
            exit_preempted(state.global_step)
        args.output_dir = str(model_dir())


def newest_checkpoint(directory: Path) -> str | None:
    """Return the path of the Trainer's newest whole checkpoint in a folder, or None if there is
    none. Torn checkpoints are skipped with a notice."""
    checkpoints = []
    for path in directory.iterdir():
        match = _NAME.fullmatch(path.name)
        if match is not None:
            checkpoints.append((int(match[1]), path))
    for _, path in sorted(checkpoints, reverse=True):
        if is_whole(path):
            return str(path)
        notice(f"skipped the torn checkpoint `{path}`")
    return None
