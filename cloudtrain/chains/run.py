"""A run that waits on this machine for other runs, as a run."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from cloudtrain.chains.service import ChainService
from cloudtrain.core.states import RunState
from cloudtrain.errors import UsageError
from cloudtrain.lifecycle.run import Run
from cloudtrain.system.disk import remove_folder


class ChainedRun(Run):
    """A handle on a run that waits. When it was sent, its methods ask the target."""

    @property
    def waits(self) -> bool:  # type: ignore[override]  # a fact of its moment
        """Whether it waits, or waited when its watcher died."""
        return self._last.state in (RunState.QUEUED, RunState.LOST) and self._last.reason is not None

    def resume(self) -> None:
        """Start its watcher again.

        Raises:
            UsageError: it does not wait, or its watcher is there.
        """
        self._service.resume(self.ref)
        self.status()

    def rerun(self, *_: Any, **__: Any) -> Run:
        """Refuse: the run was not sent, so there is nothing to repeat.

        Raises:
            UsageError: always.
        """
        hint = "submit its job again, or name the run later, when it was sent"
        raise UsageError(f"`{self.name}` was not sent yet", hint=hint, code="CT996")

    def remove(self) -> None:
        """Remove a run that ended without being sent. Raises the same errors as `Run.remove`."""
        super().remove()
        folder = self._service.folder(self.name).path
        if folder.exists():
            remove_folder(folder)

    @cached_property
    def _service(self) -> ChainService:
        return ChainService(self._settings.environ, self._settings.state_dir)
