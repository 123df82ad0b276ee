"""The service of the Azure ML target: each method sends one or a few requests; other modules
interpret the answers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.documents import JsonMapping, JsonObject
from cloudtrain.errors import (
    NameTaken,
    RunNotFound,
    SettingsError,
    TargetError,
    TargetUnreachable,
)
from cloudtrain.job.training import TrainingJob
from cloudtrain.machines.overlay import user_overlay
from cloudtrain.plans.plan import Finding, Plan, Upload
from cloudtrain.plans.progress import ListedRun, LogLine, OnStatus, RunStatus
from cloudtrain.plans.states import RunRef, RunState
from cloudtrain.rules.engine import mapping_at, value_at
from cloudtrain.targets.azureml.compile.job import RUN_PROPERTY
from cloudtrain.targets.azureml.parts import machines_of
from cloudtrain.targets.azureml.reading import Body, machines_in, type_of_compute
from cloudtrain.targets.azureml.service.blobs import Blobs
from cloudtrain.targets.azureml.service.client import CANCEL, COMPUTE, JOB, SUBMIT, Client, Labels
from cloudtrain.targets.azureml.service.clouds import credentials_in_sight
from cloudtrain.targets.azureml.service.inside import enter
from cloudtrain.targets.azureml.service.logs import RunLog
from cloudtrain.targets.azureml.service.online import check as check_online
from cloudtrain.targets.azureml.service.online import refresh
from cloudtrain.targets.azureml.service.status import (
    explain,
    hourly_price,
    is_ending,
    listed_status,
    status_of,
)
from cloudtrain.targets.azureml.service.tracking import new_values
from cloudtrain.targets.azureml.service.transfer import download as download_results
from cloudtrain.targets.azureml.service.transfer import fetch_code, make_asset, upload_data
from cloudtrain.targets.azureml.settings import AzureML, AzureMLAccount, account_of
from cloudtrain.targets.common.services import (
    Denied,
    NotThere,
    Pace,
    contains,
    follow_log,
    name_taken,
    why_unasked,
)
from cloudtrain.targets.contract import (
    BundleWriter,
    ByteProgress,
    OwnMetrics,
    Service,
    Unasked,
)
from cloudtrain.targets.settings import CAPS

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob
    from cloudtrain.machines.overlay import Refreshed
    from cloudtrain.targets.inside import ExecRequest, Session

_TOKEN = "x-azureml-token"
"""Header with a token with which a job acts for its user to read the data."""


class AzureMLService(Service):
    """Azure ML's service. Each run is a command job with the run's name."""

    in_flight: float = 60.0
    names_are_unique = True
    submit_version = SUBMIT
    """The version of the API that makes a job."""

    def __init__(self, environ: Mapping[str, str], pace: Pace | None = None) -> None:
        self._environ = environ
        self._pace = pace or Pace()
        self._overlay = cache(partial(user_overlay, target="azureml"))
        self._at = cache(lambda place: Client(AzureMLAccount.parse(place), environ))
        self._stores = cache(lambda place: Blobs(self._at(place)))
        self._cluster = cache(_cluster)
        self._labels = Labels()

    def unasked(self, settings: AzureML) -> Unasked | None:
        has_credentials = settings.credential is not None or credentials_in_sight(self._environ)
        return why_unasked(
            "azureml", "azure.identity", "Azure", "`az login`", has_credentials=has_credentials
        )

    def check(self, job: TrainingJob, settings: AzureML, plan: Plan) -> list[Finding]:
        account = account_of(settings, self._environ, Path.cwd())
        account = account._replace(overlay=self._overlay() or None)
        body = Body(plan.request)
        machines = machines_in(body, machines_of(job, account), account)
        caps = [getattr(settings, name) for name in CAPS]
        is_capped = any(caps) and type_of_compute(body.compute_name, account.overlay) is None
        return check_online(
            self._at(plan.place), plan, machines.instance_type, self._labels, is_capped=is_capped
        )

    def pin(self, job: AnyJob, settings: AzureML) -> AnyJob:
        """Return the job with the newest versions in place of the labels of environment and data;
        see `Labels`."""
        return self._labels.pinned(self._at(self._account(settings).place), job)

    def refresh_catalogue(self, settings: AzureML) -> Refreshed:
        from platformdirs import user_config_path

        account = self._account(settings)
        folder = user_config_path("cloudtrain", appauthor=False)
        today = datetime.now(timezone.utc).date()
        return refresh(self._at(account.place), folder=folder, date=today.isoformat())

    def upload(
        self, plan: Plan, bundle: BundleWriter, *, on_bytes: ByteProgress | None = None
    ) -> bool:
        client = self._at(plan.place)
        is_new = False
        for item in plan.uploads:
            if item.kind == "data":
                is_new |= upload_data(client, item, on_bytes)
        for item in plan.uploads:
            if item.kind != "data":
                is_new |= make_asset(client, item, bundle, on_bytes)
        return is_new

    def submit(self, plan: Plan, *, again: bool = False) -> RunRef:
        """Send the request, with each label replaced by the version that the check reported.

        If an earlier process may have sent the request (`again`), the name is looked up first,
        because a PUT to an existing job changes its properties, tags and description. If the answer
        to a PUT is lost, the PUT is repeated: the same content does not create a second job. If the
        service then refuses the PUT because the job exists, cloudtrain recognizes the job as its
        own.
        """
        client = self._at(plan.place)
        if again and self._ours(plan.ref, plan.request):
            return plan.ref
        content = self._labels.body(client, plan.request).encode()
        headers = {}
        if value_at(plan.request, "properties", "identity", "identityType") == "UserIdentity":
            headers[_TOKEN] = client.token(client.cloud.job_scope)

        path = f"jobs/{plan.run_name}"
        version = self.submit_version
        try:
            client.send("PUT", path, api_version=version, content=content, headers=headers)
        except (NameTaken, TargetUnreachable):
            if not self._ours(plan.ref, plan.request):
                raise
        return plan.ref

    def has(self, ref: RunRef) -> bool:
        return self._ours(ref)

    def withdraw(self, ref: RunRef) -> bool:
        """Return whether the run does not exist. Nothing is sent to the service: an earlier request
        to create the run has arrived by now, or is lost."""
        return not self.has(ref)

    def status(self, ref: RunRef) -> RunStatus:
        job = self._job(ref)
        status = self._status(ref, job)
        if status.state is RunState.FAILED:
            return explain(status, self._log(ref, job))
        return status

    def logs(
        self,
        ref: RunRef,
        *,
        follow: bool = False,
        rank: int | None = None,
        instance: int | None = None,
        on_status: OnStatus = None,
    ) -> Iterator[LogLine]:
        job = self._job(ref)
        log = self._log(ref, job, rank=rank, instance=instance)
        # Only a status that is read once explains a failure by the log.
        look = partial(self._status, ref, job) if follow else partial(self.status, ref)
        return follow_log(log, look, on_status, self._pace, to_end=follow)

    def log_after(self, ref: RunRef, mark: Any) -> RunLog:
        return self._log(ref, self._job(ref), mark=mark)

    def own_metrics(self, ref: RunRef, mark: Any) -> OwnMetrics:
        return new_values(self._at(ref.place), ref.name, mark)

    def stop(self, ref: RunRef) -> None:
        if is_ending(self._job(ref)):
            return
        try:
            self._at(ref.place).post(f"jobs/{ref.name}/cancel", api_version=CANCEL)
        except TargetUnreachable:
            raise
        except TargetError:
            if not is_ending(self._job(ref)):  # it may have ended between the two requests
                raise

    def enter(self, ref: RunRef, asked: ExecRequest) -> Session:
        return enter(self._at(ref.place), self._job(ref), self._environ, asked)

    def runs(self, place: str) -> Iterator[ListedRun]:
        """The service lists the newest first, but does not promise the order within a page, so each
        page is sorted."""
        query = {"listViewType": "ActiveOnly"}
        for page in self._at(place).pages("jobs", api_version=JOB, query=query):
            runs = []
            for job in page:
                if job.get("properties"):  # a pipeline's step has none (recorded 2022)
                    ref = RunRef("azureml", place, job["name"])
                    runs.append(ListedRun(ref, listed_status(job)))
            yield from sorted(runs, key=lambda item: item.status.created or 0.0, reverse=True)

    def code(self, ref: RunRef, upload: Upload, scratch: Path) -> Iterator[Path]:
        with suppress(NotThere):
            yield fetch_code(self._stores(ref.place), upload.destination, scratch / "code")

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        return download_results(self._stores(ref.place), self._job(ref), path, destination)

    def _account(self, settings: AzureML) -> AzureMLAccount:
        """Return the account; raise SettingsError if the settings name no workspace."""
        account = account_of(settings, self._environ, Path.cwd())
        if account.missing:
            raise SettingsError(
                "cloudtrain cannot ask Azure ML, because no workspace is configured",
                hint="set `subscription_id`, `resource_group` and `workspace` under `[azureml]` "
                "in cloudtrain.toml",
            )
        return account

    def _job(self, ref: RunRef) -> JsonObject:
        """Return the service's description of the job. Raises `RunNotFound` without one."""
        job = self._find(ref)
        if job is None:
            workspace = self._at(ref.place).place.workspace
            message = f"the workspace `{workspace}` has no run `{ref.name}`"
            raise RunNotFound(
                message, hint="`cloudtrain ps --target azureml` lists the workspace's runs"
            )
        return job

    def _find(self, ref: RunRef) -> JsonObject | None:
        """Return the service's description of the job, always with `properties`; None without
        one."""
        try:
            job: JsonObject = self._at(ref.place).get(f"jobs/{ref.name}", api_version=JOB)
        except NotThere:
            return None
        return {**job, "properties": job.get("properties") or {}}

    def _ours(self, ref: RunRef, request: JsonMapping | None = None) -> bool:
        """Return whether the job exists. Raises `NameTaken` if somebody else created it."""
        job = self._find(ref)
        if job is None:
            return False
        if not _is_ours(job, request):
            raise name_taken("workspace", "job", ref)
        return True

    def _status(self, ref: RunRef, job: JsonMapping) -> RunStatus:
        details = self._details(ref)
        price = None
        if details.get("startTimeUtc"):  # billing begins at this time
            cluster_of = partial(self._cluster, self._at(ref.place))
            price = hourly_price(Body(job), details, cluster_of, self._overlay())
        return status_of(job, details, price, time.time())

    def _details(self, ref: RunRef) -> JsonObject:
        """Return the run history's description of the run; empty if there is none."""
        try:
            details: JsonObject = self._at(ref.place).history(f"runs/{ref.name}/details")
        except (NotThere, Denied):
            return {}  # the run history shows a new job with a delay, and may be forbidden
        return details

    def _log(self, ref: RunRef, job: JsonMapping, **only: Any) -> RunLog:
        return RunLog(self._stores(ref.place), ref.name, Body(job), **only)


def _cluster(client: Client, compute: str) -> JsonMapping | None:
    """Return the description of a compute; None if it is missing or must not be read."""
    try:
        cluster: JsonMapping = client.get(compute, api_version=COMPUTE)
    except (NotThere, Denied):
        return None
    return cluster


def _is_ours(job: JsonMapping, request: JsonMapping | None) -> bool:
    """Return whether cloudtrain created the job, for the run of the same name. cloudtrain's jobs
    have the property `RUN_PROPERTY`. If overrides removed the property from `request`, the job is
    compared with `request` instead. Without `request`, a job that lacks the property counts as
    someone else's."""
    properties = job["properties"]
    mark = value_at(properties, "properties", RUN_PROPERTY)
    if mark is not None:
        return bool(mark == job["name"])

    if request is None:
        return False
    wanted = request["properties"]
    if RUN_PROPERTY in mapping_at(wanted, "properties"):
        return False
    return contains(properties, wanted)
