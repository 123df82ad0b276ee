"""What the Azure ML backend asks of Azure: each method is one or a few requests; what they mean is in the modules
beside this one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.backends.azureml.blobs import Blobs
from cloudtrain.backends.azureml.client import Client
from cloudtrain.backends.azureml.failure import explain
from cloudtrain.backends.azureml.lines import Layout
from cloudtrain.backends.azureml.logs import RunLog
from cloudtrain.backends.azureml.money import ClusterOf, paid_machines
from cloudtrain.backends.azureml.ownership import is_ours
from cloudtrain.backends.azureml.place import Place
from cloudtrain.backends.azureml.refusals import Denied, NotThere, not_found
from cloudtrain.backends.azureml.states import created_at, listed_status, state_of, status_of
from cloudtrain.backends.azureml.versions import CANCEL, COMPUTE, JOB, SUBMIT
from cloudtrain.backends.base import BundleWriter, OnBytes, is_earlier
from cloudtrain.backends.following import Pace, follow
from cloudtrain.errors import NameTaken, TargetError, TargetUnreachable
from cloudtrain.plans import Finding, Plan
from cloudtrain.states import Listed, LogLine, RunRef, RunState, RunStatus

if TYPE_CHECKING:
    from cloudtrain.catalogue.overlay import Overlay
    from cloudtrain.catalogue.refreshed import Refreshed

_TOKEN = "x-azureml-token"
"""Header with a token that a job acts with for its user, who reads the data."""


class AzureMLService:
    """The service of one process. A run is a command job of the run's name."""

    def __init__(self, environ: Mapping[str, str], pace: Pace | None, overlay: Callable[[], Overlay] = tuple) -> None:
        """`overlay` gives the user's corrections of the catalogue, for prices."""
        self._environ = environ
        self._pace = pace or Pace()
        self._overlay = cache(overlay)
        self._clients: dict[str, Client] = {}
        self._blobs: dict[str, Blobs] = {}
        self._clusters: dict[str, Mapping[str, Any] | None] = {}

    def check(self, plan: Plan, expected: str | None) -> list[Finding]:
        """Workspace, compute, quota, environment and data, as far as the credentials may look.

        Args:
            expected: the instance type that the job was planned for.
        """
        from cloudtrain.backends.azureml.online import check

        return check(self._at(plan.place), plan, expected)

    def refresh_catalogue(self, place: str, *, folder: Path, date: str) -> Refreshed:
        """What the workspace's region has, written to a file of `folder`; see `sizes.py`."""
        from cloudtrain.backends.azureml.sizes import refresh

        client = self._at(place)
        return refresh(client, client.place.subscription_id, folder=folder, date=date)

    def upload(self, plan: Plan, bundle: BundleWriter, *, on_bytes: OnBytes | None = None) -> bool:
        """Make the assets that the plan needs; False when all are there already."""
        from cloudtrain.backends.azureml.assets import make_asset

        client = self._at(plan.place)
        made = [make_asset(client, item, bundle, on_bytes) for item in plan.uploads]
        return any(made)

    def submit(self, plan: Plan, since: float) -> RunRef:
        """Send the request. A job of that name that is ours already is the run: a submission may be repeated.

        The name is looked up first, because a PUT to a job that exists changes it where its properties, tags and
        description differ. The PUT itself may be repeated when its answer is lost: for the service a second one of
        the same content is the same job, and should it refuse it, the job is found to be ours.

        Raises:
            NameTaken: the workspace has an earlier job of that name, made before `since`.
            TargetError: Azure ML refuses the job, or somebody else has one of that name.
        """
        client = self._at(plan.place)
        if self._ours(plan.ref, since, plan.request):
            return plan.ref
        content, headers = plan.request_json.encode(), self._headers(client, plan)
        try:
            client.send("PUT", f"jobs/{plan.run_name}", api_version=SUBMIT, content=content, headers=headers)
        except (NameTaken, TargetUnreachable):
            if not self._ours(plan.ref, since, plan.request):
                raise
        return plan.ref

    def has(self, ref: RunRef, since: float) -> bool:
        """Whether the workspace has that run, and we made it since then."""
        try:
            return self._ours(ref, since)
        except NameTaken:
            return False

    def status(self, ref: RunRef) -> RunStatus:
        """Where the job is now; for a failed one, with the last lines that it wrote."""
        job = self._job(ref)
        status = self._status(ref, job)
        return explain(status, self._log(ref, job)) if status.state is RunState.FAILED else status

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
        job = self._job(ref)
        log = self._log(ref, job, rank=rank, instance=instance)
        return self._followed(ref, job, log, on_status) if follow else self._so_far(ref, log, on_status)

    def stop(self, ref: RunRef) -> None:
        """Ask the service to cancel the job, which it does by and by. Nothing for a job whose work is done."""
        if _is_ending(self._job(ref)):
            return
        try:
            self._at(ref.place).post(f"jobs/{ref.name}/cancel", api_version=CANCEL)
        except TargetUnreachable:
            raise
        except TargetError:
            if not _is_ending(self._job(ref)):  # it may have ended between the two requests
                raise

    def runs(self, place: str) -> Iterator[Listed]:
        """The workspace's jobs, whoever made them, page by page.

        The service lists the newest first; that nobody promises the order within a page is why it is put right.
        """
        pages = self._at(place).pages("jobs", api_version=JOB, query={"listViewType": "ActiveOnly"})
        for page in pages:
            listed = [Listed(RunRef("azureml", place, job["name"]), listed_status(job)) for job in page]
            yield from sorted(listed, key=lambda item: item.status.created or 0.0, reverse=True)

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        """Copy what the job wrote; see `download.py`."""
        from cloudtrain.backends.azureml.download import download

        return download(self._stores(ref.place), self._job(ref), path, destination)

    def _at(self, place: str) -> Client:
        if place not in self._clients:
            self._clients[place] = Client(Place.parse(place), self._environ)
        return self._clients[place]

    def _stores(self, place: str) -> Blobs:
        if place not in self._blobs:
            self._blobs[place] = Blobs(self._at(place))
        return self._blobs[place]

    def _job(self, ref: RunRef) -> dict[str, Any]:
        """The job of a reference.

        Raises:
            RunNotFound: there is none.
        """
        job = self._found(ref)
        if job is None:
            raise not_found(ref.name, self._at(ref.place).place.workspace)
        return job

    def _found(self, ref: RunRef) -> dict[str, Any] | None:
        try:
            job: dict[str, Any] = self._at(ref.place).get(f"jobs/{ref.name}", api_version=JOB)
        except NotThere:
            return None
        return job

    def _ours(self, ref: RunRef, since: float, request: Mapping[str, Any] | None = None) -> bool:
        """Whether the job is there.

        Raises:
            NameTaken: it is there, and an earlier submission made it.
            TargetError: it is there, and somebody else made it.
        """
        job = self._found(ref)
        if job is None:
            return False
        if not is_ours(job, request):
            raise TargetError(
                f"the workspace has a job `{ref.name}` already, and it is not this one",
                hint=f"see it with `cloudtrain status {ref}`, or give your job another name",
            )
        if is_earlier(created_at(job), since):
            raise NameTaken(
                f"the workspace has an earlier job `{ref.name}`", hint=f"see it with `cloudtrain status {ref}`"
            )
        return True

    def _headers(self, client: Client, plan: Plan) -> dict[str, str]:
        identity = plan.request["properties"].get("identity") or {}
        if identity.get("identityType") != "UserIdentity":
            return {}
        return {_TOKEN: client.token(client.cloud.job_scope)}

    def _status(self, ref: RunRef, job: Mapping[str, Any]) -> RunStatus:
        client = self._at(ref.place)
        try:
            details: dict[str, Any] = client.history(f"runs/{ref.name}/details")
        except (NotThere, Denied):
            details = {}  # a job appears in run history a moment after it was made, and not everybody may look there
        paid = None
        if details.get("startTimeUtc"):  # before, nothing is paid for
            paid = paid_machines(job["properties"], details, self._cluster_at(client))
        return status_of(job, details, paid.hourly_price(self._overlay()) if paid else None, time.time())

    def _cluster_at(self, client: Client) -> ClusterOf:
        def cluster_of(compute: str) -> Mapping[str, Any] | None:
            if compute not in self._clusters:
                try:
                    self._clusters[compute] = client.get(compute, api_version=COMPUTE)
                except (NotThere, Denied):
                    self._clusters[compute] = None
            return self._clusters[compute]

        return cluster_of

    def _log(self, ref: RunRef, job: Mapping[str, Any], **only: int | None) -> RunLog:
        return RunLog(self._stores(ref.place), ref.name, Layout.of(job["properties"]), **only)

    def _followed(
        self, ref: RunRef, job: Mapping[str, Any], log: RunLog, on_status: Callable[[RunStatus], None] | None
    ) -> Iterator[LogLine]:
        yield from follow(log, lambda: self._status(ref, job), on_status, self._pace)
        yield from log.rest()

    def _so_far(self, ref: RunRef, log: RunLog, on_status: Callable[[RunStatus], None] | None) -> Iterator[LogLine]:
        status = self.status(ref)
        if on_status is not None:
            on_status(status)
        yield from log.new_lines()
        if status.state.is_final:
            yield from log.rest()


def _is_ending(job: Mapping[str, Any]) -> bool:
    """Whether there is nothing left to cancel. The service refuses it too for a job whose outputs are being kept."""
    word = job["properties"]["status"]
    state = state_of(word)
    return state.is_final or state is RunState.STOPPING or word == "Finalizing"
