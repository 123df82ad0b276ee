"""The SageMaker backend. A plan asks nobody; whatever does is in `service.py`, imported with the first question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.backends.base import BundleWriter, OnBytes
from cloudtrain.backends.sagemaker.account import account_of, credentials_in_sight
from cloudtrain.job import TrainingJob
from cloudtrain.plans import CompileContext, Finding, Plan, SageMakerAccount
from cloudtrain.states import Listed, LogLine, RunRef, RunStatus
from cloudtrain.targets import SageMaker

if TYPE_CHECKING:
    from cloudtrain.backends.following import Pace
    from cloudtrain.backends.sagemaker.service import SageMakerService
    from cloudtrain.catalogue.overlay import Overlay
    from cloudtrain.processing import AnyJob


class SageMakerBackend:
    """Amazon SageMaker. A run is a training job (or a processing job) of the run's name."""

    name = "sagemaker"
    in_flight = 60.0

    def __init__(self, state_dir: Path, *, environ: Mapping[str, str], pace: Pace | None = None) -> None:  # noqa: ARG002 - the registry's
        self._environ = environ
        self._pace = pace

    @cached_property
    def _service(self) -> SageMakerService:
        from cloudtrain.backends.sagemaker.service import SageMakerService

        return SageMakerService(self._environ, self._pace, self._overlay)

    def account(self, target: SageMaker) -> SageMakerAccount:
        """What this machine knows of the account, and the user's corrections of the catalogue."""
        return replace(account_of(target, self._environ), overlay=self._overlay() or None)

    def _overlay(self) -> Overlay:
        from platformdirs import user_config_path

        from cloudtrain.catalogue.overlay import load_overlays

        return load_overlays(user_config_path("cloudtrain", appauthor=False), Path.cwd())

    def compile(self, job: AnyJob, target: SageMaker, context: CompileContext) -> Plan:
        """The plan of a job on SageMaker, which can also be had in the SageMaker SDK's words."""
        from cloudtrain.backends.sagemaker.plan import SageMakerPlan
        from cloudtrain.compile.sagemaker import compile_sagemaker

        account: SageMakerAccount = context.account
        if isinstance(job, TrainingJob):
            compiled = compile_sagemaker(job, target, context)
        else:
            from cloudtrain.compile.sagemaker.processing import compile_processing

            compiled = compile_processing(job, target, context)
        return SageMakerPlan.of(replace(compiled, place=account.place))

    def can_check(self, target: SageMaker) -> bool:
        """Whether there seem to be credentials."""
        return credentials_in_sight(target, self._environ)

    def check(self, job: TrainingJob, target: SageMaker, plan: Plan) -> list[Finding]:  # noqa: ARG002 - the protocol's
        """Role, buckets, inputs and quota, as far as the credentials may look."""
        return self._service.check(plan)

    def upload(self, plan: Plan, bundle: BundleWriter, *, on_bytes: OnBytes | None = None) -> bool:
        """Put the bundle where the plan says; False when it is there already, or the plan needs none."""
        return self._service.upload(plan, bundle, on_bytes=on_bytes)

    def submit(self, plan: Plan, *, since: float = 0.0) -> RunRef:
        """Send the request. A job of that name that is ours already is the run: a submission may be repeated."""
        return self._service.submit(plan, since)

    def has(self, ref: RunRef, *, since: float = 0.0) -> bool:
        """Whether SageMaker has that run, and we made it."""
        return self._service.has(ref, since)

    def status(self, ref: RunRef) -> RunStatus:
        """Where the job is now; for a failed one, with the last lines that it wrote."""
        return self._service.status(ref)

    def logs(
        self,
        ref: RunRef,
        *,
        follow: bool = False,
        rank: int | None = None,
        instance: int | None = None,
        on_status: Callable[[RunStatus], None] | None = None,
    ) -> Iterator[LogLine]:
        """The output so far; with `follow`, until the job has ended and its log is silent."""
        return self._service.logs(ref, follow=follow, rank=rank, instance=instance, on_status=on_status)

    def stop(self, ref: RunRef) -> None:
        """Ask the job to stop: SIGTERM, and SIGKILL after two minutes. Nothing for a job that has ended."""
        self._service.stop(ref)

    def runs(self, place: str) -> Iterator[Listed]:
        """The account's training and processing jobs, newest first."""
        return self._service.runs(place)

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        """Copy what the job wrote; see `download.py`."""
        return self._service.download(ref, path, destination)
