"""The Azure ML backend. A plan asks nobody; whatever does is in `service.py`, imported with the first question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.backends.azureml.account import account_of
from cloudtrain.backends.base import BundleWriter, OnBytes
from cloudtrain.errors import SettingsError
from cloudtrain.job import TrainingJob
from cloudtrain.plans import AzureMLAccount, CompileContext, Finding, Plan
from cloudtrain.states import Listed, LogLine, RunRef, RunStatus
from cloudtrain.targets import AzureML

if TYPE_CHECKING:
    from cloudtrain.backends.azureml.service import AzureMLService
    from cloudtrain.backends.following import Pace
    from cloudtrain.catalogue.overlay import Overlay
    from cloudtrain.catalogue.refreshed import Refreshed
    from cloudtrain.processing import AnyJob


class AzureMLBackend:
    """Azure Machine Learning. A run is a command job of the run's name."""

    name = "azureml"
    in_flight = 60.0

    def __init__(self, state_dir: Path, *, environ: Mapping[str, str], pace: Pace | None = None) -> None:  # noqa: ARG002 - the registry's
        self._environ = environ
        self._pace = pace

    @cached_property
    def _service(self) -> AzureMLService:
        from cloudtrain.backends.azureml.service import AzureMLService

        return AzureMLService(self._environ, self._pace, self._overlay)

    def account(self, target: AzureML) -> AzureMLAccount:
        """What this machine knows of the workspace, and the user's corrections of the catalogue."""
        return replace(account_of(target, self._environ, Path.cwd()), overlay=self._overlay() or None)

    def _overlay(self) -> Overlay:
        from platformdirs import user_config_path

        from cloudtrain.catalogue.overlay import load_overlays

        return load_overlays(user_config_path("cloudtrain", appauthor=False), Path.cwd(), self.name)

    def compile(self, job: AnyJob, target: AzureML, context: CompileContext) -> Plan:
        """The plan of a job on Azure ML, which can also be had in the words of its SDK and command line."""
        from cloudtrain.backends.azureml.plan import AzureMLPlan
        from cloudtrain.compile.azureml import compile_azureml

        return AzureMLPlan.of(compile_azureml(job, target, context))

    def refresh_catalogue(self, target: AzureML) -> Refreshed:
        """Read the workspace's instance types, prices and quotas into a file beside the user's own corrections.

        Raises:
            SettingsError: the target does not say which workspace.
        """
        from datetime import datetime, timezone

        from platformdirs import user_config_path

        account = account_of(target, self._environ, Path.cwd())
        if account.missing:
            message = "the instance types of a region are asked for at a workspace, and none is given"
            hint = "set `subscription_id`, `resource_group` and `workspace` under `[azureml]` in cloudtrain.toml"
            raise SettingsError(message, hint=hint)
        folder, today = user_config_path("cloudtrain", appauthor=False), datetime.now(timezone.utc).date()
        return self._service.refresh_catalogue(account.place, folder=folder, date=today.isoformat())

    def can_check(self, target: AzureML) -> bool:
        """Whether there seem to be credentials."""
        from cloudtrain.backends.azureml.credentials import credentials_in_sight

        return target.credential is not None or credentials_in_sight(self._environ)

    def check(self, job: TrainingJob, target: AzureML, plan: Plan) -> list[Finding]:
        """Workspace, compute, quota, environment and data, as far as the credentials may look."""
        from cloudtrain.compile.azureml.machines import machines_of

        return self._service.check(plan, machines_of(job, target, self.account(target)).instance_type)

    def upload(self, plan: Plan, bundle: BundleWriter, *, on_bytes: OnBytes | None = None) -> bool:
        """Make the assets that the plan needs: its code, its environment. False when all are there already."""
        return self._service.upload(plan, bundle, on_bytes=on_bytes)

    def submit(self, plan: Plan, *, since: float = 0.0) -> RunRef:
        """Send the request. A job of that name that is ours already is the run: a submission may be repeated."""
        return self._service.submit(plan, since)

    def has(self, ref: RunRef, *, since: float = 0.0) -> bool:
        """Whether the workspace has that run, and we made it."""
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
        """Ask Azure ML to cancel the job. Nothing for a job that has ended."""
        self._service.stop(ref)

    def runs(self, place: str) -> Iterator[Listed]:
        """The workspace's jobs, newest first."""
        return self._service.runs(place)

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        """Copy what the job wrote; see `download.py`."""
        return self._service.download(ref, path, destination)
