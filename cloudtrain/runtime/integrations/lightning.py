"""Support for Lightning's Trainer, both of the package `lightning.pytorch` and of
`pytorch_lightning`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from cloudtrain.runtime.checkpoints import Checkpoints
from cloudtrain.runtime.errors import SetupError
from cloudtrain.runtime.process_group import from_every
from cloudtrain.runtime.randomness import random_states, restore_random_states
from cloudtrain.runtime.stopping import exit_preempted, should_stop, watch_for_stop
from cloudtrain.runtime.uncaught import tell_setup_errors

from .loop import StepReports, require_all_processes, spare_workers

_FILE = "lightning.ckpt"


def fit(trainer: Any, model: Any, *arguments: Any, **keywords: Any) -> None:
    """Run `trainer.fit(model, ...)`, starting from the newest whole checkpoint of
    `checkpoint_dir()`.

    If the run is stopped, `fit` does not return: the process exits with code 0.
    """
    tell_setup_errors()
    callback = next((one for one in trainer.callbacks if isinstance(one, _Hooks)), None)
    if callback is None:
        callback = _callback_of(type(trainer).__module__.removesuffix(".trainer.trainer"))()
        trainer.callbacks.append(callback)
    if keywords.get("ckpt_path") is None:
        checkpoint = callback.checkpoints.latest()
        callback.resumes_from = checkpoint.path.name if checkpoint else ""
        keywords["ckpt_path"] = str(checkpoint.path / _FILE) if checkpoint else None
    trainer.fit(model, *arguments, **keywords)


class _Hooks:
    """The callback's methods, shared by the callback classes for `lightning.pytorch` and
    `pytorch_lightning`."""

    resumes_from: str | None = None
    """The checkpoint that this process found; None where the script named one."""

    def __init__(self, directory: str | Path | None = None, keep: int | None = None) -> None:
        self.checkpoints = Checkpoints(directory, keep)
        self._reports = StepReports()
        self._epoch_began = ""  # random states
        self._saved: dict[str, Any] = {}

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Check that the trainer uses all processes of the job, and that they resume from the same
        checkpoint."""
        require_all_processes(
            trainer.world_size,
            "set `Trainer(devices=..., num_nodes=...)` to the numbers of the job",
        )
        names = from_every(self.resumes_from)
        if len({*names}) > 1:
            told = ", ".join(f"`{name}`" if name else "none" for name in names)
            raise SetupError(
                "the processes see different newest checkpoints in "
                f"`{self.checkpoints.directory}`: {told}",
                hint="keep checkpoints in a folder that every instance can read",
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the current random states, and those at the beginning of the epoch, with which the
        order of the data was drawn."""
        return {"random": random_states(), "epoch_began": self._epoch_began}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Store the checkpoint's random states, which `on_fit_start` restores."""
        self._saved = dict(state_dict)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Restore the random states of the checkpoint before Lightning draws the order of the data
        for the first epoch."""
        if self._saved:
            restore_random_states(self._saved["random"])
        self._epoch_began = random_states()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Replace Lightning's handler of SIGTERM, and skip the batches that were already trained
        on."""
        watch_for_stop()
        loaders = trainer.fit_loop._combined_loader.flattened
        spare_workers(loaders)
        batch_count = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        if self._saved and 0 < batch_count < trainer.num_training_batches:
            self._epoch_began = self._saved["epoch_began"]
            if not all(hasattr(loader, "load_state_dict") for loader in loaders):
                self._skip_batches(trainer, loaders, batch_count)
            restore_random_states(self._saved["random"])  # drawing the order has moved them
        self._saved = {}

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Record the random states at the beginning of every epoch but the first. For the first,
        `on_fit_start` records them, because the order of its data is drawn earlier."""
        if trainer.current_epoch > 0 and not trainer.fit_loop.is_resuming:
            self._epoch_began = random_states()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Report metrics as often as Lightning logs. If a stop was requested, save and exit."""
        step = trainer.global_step
        total = trainer.estimated_stepping_batches
        values = {"epoch": trainer.current_epoch}
        if step % max(1, trainer.log_every_n_steps) == 0:
            self._reports.log(step, total, {**trainer.callback_metrics, **values})
        else:
            self._reports.tick(step, total, values)
        if should_stop() and step < total:
            self._save(trainer)
            exit_preempted(step)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the results of the validation."""
        if not trainer.sanity_checking:
            values = {**trainer.callback_metrics, "epoch": trainer.current_epoch}
            self._reports.log(trainer.global_step, trainer.estimated_stepping_batches, values)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Save a checkpoint after every epoch, like Lightning's own callback for checkpoints."""
        self._save(trainer)

    def _save(self, trainer: Any) -> None:
        self.checkpoints.save_sharded(
            lambda folder: trainer.save_checkpoint(folder / _FILE), trainer.global_step
        )

    def _skip_batches(self, trainer: Any, loaders: Any, count: int) -> None:
        """Draw the order of the interrupted epoch again, and skip the batches that were already
        trained on.

        Lightning itself restores only its counters, so it would go on with the epoch's first batch.
        """
        fetcher = trainer.fit_loop._data_fetcher
        restore_random_states(self._epoch_began)
        for loader in loaders:
            for name in ("sampler", "batch_sampler"):
                set_epoch = getattr(getattr(loader, name, None), "set_epoch", None)
                if set_epoch is not None:
                    set_epoch(trainer.fit_loop.epoch_progress.current.processed)
        iter(fetcher)
        for _ in range(count):
            next(fetcher)
        fetcher.fetched -= count  # the loop adds them


def _callback_of(package: str) -> Any:
    """Return the callback class for trainers of `package`. Each package has its own base class of
    callbacks."""
    base = import_module(f"{package}.callbacks").Callback
    return type(
        "LightningCallback", (_Hooks, base), {"__module__": __name__, "__doc__": _Hooks.__doc__}
    )


def __getattr__(name: str) -> object:
    if name != "LightningCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    older = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
    return _callback_of("pytorch_lightning" if older else "lightning.pytorch")
