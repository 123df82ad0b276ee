"""Azure ML's own tuner: a run is a sweep job of the run's name. Jobs of all kinds share their requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cloudtrain.core.states import LogLine, RunRef, RunStatus
from cloudtrain.core.sweep import Objective
from cloudtrain.core.trial import Trial
from cloudtrain.errors import UsageError
from cloudtrain.targets.azureml.service.service import AzureMLService
from cloudtrain.targets.azureml.service.versions import SWEEP


class AzureMLTuner(AzureMLService):
    """The tuner."""

    submit_version = SWEEP

    def status(self, ref: RunRef) -> RunStatus:
        """Where the sweep job is; its trials are jobs of their own."""
        from cloudtrain.targets.azureml.service.states import status_of

        return status_of(self._job(ref), {}, None, 0.0)

    def logs(
        self,
        ref: RunRef,
        *,
        follow: bool = False,
        rank: int | None = None,  # noqa: ARG002 - the promise's
        instance: int | None = None,  # noqa: ARG002 - the promise's
        on_status: Callable[[RunStatus], None] | None = None,
    ) -> Iterator[LogLine]:
        """Nothing: a sweep job has no output of its own. With `follow`, until it has ended."""
        import time

        while True:
            status = self.status(ref)
            if on_status is not None:
                on_status(status)
            if status.state.is_final or not follow:
                return
            time.sleep(self._pace.every)
            yield from ()

    def trials(self, ref: RunRef) -> list[Trial]:
        """Not known here: the service's own page has them.

        Raises:
            UsageError: always.
        """
        page = self.status(ref).page
        hint = f"look at {page}" if page else "look at the job's page in Azure ML's studio"
        raise UsageError("cloudtrain does not list the trials of Azure ML's own sweeps", hint=hint, code="CT992")

    def objective(self, ref: RunRef) -> Objective | None:
        """What the sweep job is after."""
        found: dict[str, Any] = self._job(ref)["properties"].get("objective") or {}
        word = str(found.get("goal", "maximize")).lower()
        return Objective.model_construct(**{word: found["primaryMetric"]}) if found else None
