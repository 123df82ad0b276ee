"""How rules read the launch specification of a run on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cloudtrain.core.targets import target_names
from cloudtrain.rules.data_places import DataPlace, declared_places
from cloudtrain.rules.overridden import Path
from cloudtrain.rules.subject import IMAGE, RequestView, Subject
from cloudtrain.targets.registry import target_of


class LocalView(RequestView):
    """Lets rules read a launch specification.

    With `emulate`, the job's overrides for the emulated service apply, except those that name machines: the emulated
    job, too, runs on this machine.
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
        """Return the variables and hyperparameters that the emulated service's overrides change, with their final
        values. Return an empty dict without emulation."""
        return self._emulated.change_script(subject) if self._emulated is not None else {}

    def places(self, subject: Subject) -> Iterator[DataPlace]:
        """Yield the paths of the job's data on this machine, such as `inputs.NAME.local`. With emulation, outputs are
        left out, because they are written to the run's own folder."""
        return declared_places(subject.job, self.target, outputs=self._emulated is None)

    def images(self, subject: Subject) -> Iterator[tuple[str, Path]]:
        """Yield the images that the job names for any target, with their path in the job. A local run uses no image."""
        given = subject.job.environment.image
        names = [] if given is None else [name for target in target_names() if (name := given.of(target)) is not None]
        yield from ((name, IMAGE) for name in dict.fromkeys(names))
