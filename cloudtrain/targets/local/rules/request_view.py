"""The view through which the rules for all targets read a launch specification."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cloudtrain.core.targets import target_names
from cloudtrain.rules.data_places import DataPlace, declared_places
from cloudtrain.rules.overridden import Path
from cloudtrain.rules.subject import IMAGE, RequestView, Subject
from cloudtrain.targets.registry import target_of


class LocalView(RequestView):
    """The rules' view of a launch specification. With `emulate`, it includes the overrides of the emulated service.

    In an emulation, only checkpoints are written outside the run's own folder, and the job always runs on this machine,
    even if the overrides name other machines.
    """

    def __init__(self, target: str, emulated: str | None) -> None:
        super().__init__(target)
        self._emulated = target_of(emulated).request_view(None) if emulated is not None else None
        self.distribution_key = self._emulated.distribution_key if self._emulated is not None else "distribution"
        self.overridden_by = self._emulated.overridden_by if self._emulated is not None else {}

    @property
    def service(self) -> str:
        """Return the name of the emulated service; without emulation, the target's name."""
        return self._emulated.service if self._emulated is not None else self.target

    def change(self, subject: Subject) -> dict[str, Any]:
        """Return the variables and hyperparameters as the emulated service's overrides change them. Return an empty
        dict without emulation."""
        return self._emulated.change_script(subject) if self._emulated is not None else {}

    def places(self, subject: Subject) -> Iterator[DataPlace]:
        """Yield the job's own paths for data, such as `inputs.NAME.local`; with emulation, without paths of outputs."""
        return declared_places(subject.job, self.target, outputs=self._emulated is None)

    def images(self, subject: Subject) -> Iterator[tuple[str, Path]]:
        """Yield the job's images for all targets, so that rules can check their names. This machine runs no images."""
        given = subject.job.environment.image
        names = [] if given is None else [name for target in target_names() if (name := given.of(target)) is not None]
        yield from ((name, IMAGE) for name in dict.fromkeys(names))
