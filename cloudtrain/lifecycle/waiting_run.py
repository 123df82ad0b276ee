"""A run that waits on this machine for other runs, with the methods of `Run`."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from cloudtrain.errors import UsageError
from cloudtrain.lifecycle.run import Run
from cloudtrain.lifecycle.waiting import ChainService
from cloudtrain.plans.states import RunState
from cloudtrain.system.files import remove_folder


class ChainedRun(Run):
    """A handle on a waiting run. Once the run is sent, the methods ask its target."""

    @property
    def waits(self) -> bool:  # type: ignore[override]  # may change over time
        """Whether the run is waiting, or was waiting when its watcher died."""
        return self._last.state in (RunState.QUEUED, RunState.LOST) and self._last.reason is not None

    def resume(self) -> None:
        """Start the run's watcher again.

        Raises:
            UsageError: the run is not waiting, or its watcher is alive.
        """
        self._service.resume(self.ref)
        self.status()

    def rerun(self, *_: Any, **__: Any) -> Run:
        """Raise an error, because a run that was not sent cannot be repeated.

        Raises:
            UsageError: always.
        """
        hint = "submit the job again, or repeat this command after the run is sent"
        raise UsageError(f"`{self.name}` has not been sent yet", hint=hint, code="CT996")

    def remove(self) -> None:
        """Remove a run that ended without being sent. Raises the same errors as `Run.remove`."""
        super().remove()
        folder = self._service.folder(self.name).path
        if folder.exists():
            remove_folder(folder)

    @cached_property
    def _service(self) -> ChainService:
        return ChainService(self._settings.environ, self._settings.state_dir)
