"""The requests to AWS. Each method sends one or a few requests; other modules of this package read the responses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from heapq import merge
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.catalogue.overlay import user_overlay
from cloudtrain.core.job import TrainingJob
from cloudtrain.core.plan import Finding, Plan, Upload
from cloudtrain.core.states import ListedRun, LogLine, RunRef, RunState, RunStatus
from cloudtrain.errors import NameTaken, SettingsError, TargetError, TargetUnreachable, UsageError
from cloudtrain.targets.base import BundleWriter, ByteProgress
from cloudtrain.targets.common.following import Pace, follow
from cloudtrain.targets.common.provider_errors import Denied, NotThere
from cloudtrain.targets.common.tracebacks import error_in
from cloudtrain.targets.sagemaker.account import account_id
from cloudtrain.targets.sagemaker.account_ref import AccountRef
from cloudtrain.targets.sagemaker.jobs import KINDS, TRAINING, JobKind, kind_of
from cloudtrain.targets.sagemaker.s3_uri import S3Uri
from cloudtrain.targets.sagemaker.service.clients import Clients
from cloudtrain.targets.sagemaker.service.logs import JobLog
from cloudtrain.targets.sagemaker.service.ownership import is_ours
from cloudtrain.targets.sagemaker.service.provider_errors import not_found, was_repeated
from cloudtrain.targets.sagemaker.service.states import hourly_price, job_state, listed_status, status_of
from cloudtrain.targets.sagemaker.service.writers import ranks_of
from cloudtrain.targets.sagemaker.settings import SageMaker

if TYPE_CHECKING:
    from cloudtrain.catalogue.refreshed import Refreshed

_TAIL_STREAMS, _TAIL_EVENTS = 4, 40
"""The part of a failed job's output that is searched for the reason: the last events of the first streams."""


class SageMakerService:
    """Submits and manages runs. A run is a training job or processing job with the run's name."""

    in_flight = 60.0
    names_are_unique = True

    def __init__(self, environ: Mapping[str, str], pace: Pace | None = None) -> None:
        self._environ = environ
        self._pace = pace or Pace()
        self._overlay = cache(user_overlay)
        self._clients: dict[str, Clients] = {}

    def can_check(self, settings: SageMaker) -> bool:
        """Return whether this machine seems to have credentials."""
        from cloudtrain.targets.sagemaker.account import credentials_in_sight

        return credentials_in_sight(settings, self._environ)

    def check(self, job: TrainingJob, settings: SageMaker, plan: Plan) -> list[Finding]:  # noqa: ARG002 - the promise's
        """Check role, buckets, inputs and quotas, as far as the credentials' permissions allow."""
        from cloudtrain.targets.sagemaker.service.online import check

        return check(self._at(plan.place), plan)

    def refresh_catalogue(self, settings: SageMaker) -> Refreshed:
        """Download the region's prices into a file in the user's configuration folder.

        Raises:
            SettingsError: no region is configured.
        """
        from datetime import datetime, timezone

        from platformdirs import user_config_path

        from cloudtrain.targets.sagemaker.account import account_of
        from cloudtrain.targets.sagemaker.service.prices import pricing_region, refresh

        account = account_of(settings, self._environ)
        if "region" in account.missing:
            message = "prices depend on the region, and none is set"
            raise SettingsError(message, hint="set `region` under `[sagemaker]` in cloudtrain.toml")
        folder, today = user_config_path("cloudtrain", appauthor=False), datetime.now(timezone.utc).date()
        clients = self._at(account._replace(region=pricing_region(account.region)).place)
        return refresh(clients, account.region, folder=folder, date=today.isoformat())

    def upload(self, plan: Plan, bundle: BundleWriter, *, on_bytes: ByteProgress | None = None) -> bool:
        """Upload bundle and data to the plan's addresses; return False if nothing had to be uploaded."""
        from cloudtrain.targets.sagemaker.service.upload import upload, upload_data

        clients = self._at(plan.place)
        owner = account_id(plan.request.get("RoleArn", ""))
        kms_key = plan.request.get(kind_of(plan.request).outputs, {}).get("KmsKeyId")

        def put(item: Upload) -> bool:
            expected = owner if owner and f"-{owner}/" in item.destination else None
            if item.kind == "data":
                return upload_data(clients, item, owner=expected, kms_key=kms_key, on_bytes=on_bytes)
            return upload(clients, item, bundle, owner=expected, kms_key=kms_key, on_bytes=on_bytes)

        sent = [put(item) for item in plan.uploads]
        return any(sent)

    def submit(self, plan: Plan, *, again: bool = False) -> RunRef:
        """Send the request that creates the job.

        If SageMaker refuses it because the job exists, the job may be this run's: botocore may have repeated the
        request, or an earlier process may have sent it (`again`). If it is this run's job, the call succeeds.

        Raises:
            NameTaken: the account has another job with this name.
            TargetError: SageMaker refuses the job.
        """
        clients, kind = self._at(plan.place), kind_of(plan.request)
        try:
            clients.call("sagemaker", kind.create, **plan.request)
        except NameTaken as error:
            if not (again or was_repeated(error)):
                raise
            self._ours(plan.ref, kind, plan.request)
        except TargetUnreachable:
            # The answer is lost, but the job may exist.
            if not self.has(plan.ref):
                raise
        return plan.ref

    def has(self, ref: RunRef) -> bool:
        """Return whether the run exists, and check that cloudtrain created it.

        Raises:
            NameTaken: another tool or user created a job with this name.
        """
        return any(self._ours(ref, kind) for kind in KINDS)

    def withdraw(self, ref: RunRef) -> bool:
        """Return True if the run does not exist, so that nothing must be withdrawn, and False if it exists.

        Call this only when no earlier request can still create the run (see `in_flight`).
        """
        return not self.has(ref)

    def status(self, ref: RunRef) -> RunStatus:
        """Return the job's current status. The status of a failed job includes the last lines of its output."""
        kind, description = self._find_job(ref)
        status = self._status(kind, description)
        return self._explain(ref, kind, description, status) if status.state is RunState.FAILED else status

    def logs(
        self,
        ref: RunRef,
        *,
        follow: bool = False,
        rank: int | None = None,
        instance: int | None = None,
        on_status: Callable[[RunStatus], None] | None = None,
    ) -> Iterator[LogLine]:
        """Yield the output so far: all lines, or those of one `rank` or `instance`.

        With `follow`, continue until the job has ended and no more lines arrive.
        """
        kind, description = self._find_job(ref)
        log = self._log(ref, kind, description, instance)
        lines = self._follow(ref, kind, log, on_status) if follow else self._so_far(ref, log, on_status)
        return lines if rank is None else _of_rank(lines, rank)

    def stop(self, ref: RunRef) -> None:
        """Stop the job: SageMaker sends SIGTERM, and SIGKILL after two minutes. Does nothing if the job has ended."""
        kind, description = self._find_job(ref)
        state = job_state(description, kind)
        if state.is_final or state is RunState.STOPPING:
            return
        try:
            self._at(ref.place).call("sagemaker", kind.stop, **{kind.name: ref.name})
        except TargetUnreachable:
            raise
        except TargetError:
            if not self._state(ref).is_final:  # it may have ended between the two requests
                raise

    def runs(self, place: str) -> Iterator[ListedRun]:
        """Yield the account's training and processing jobs, newest first. Reads 100 jobs of each type per request."""
        lists = [self._list(place, kind) for kind in KINDS]
        return merge(*lists, key=lambda item: item.status.created or 0.0, reverse=True)

    def _list(self, place: str, kind: JobKind) -> Iterator[ListedRun]:
        clients = self._at(place)
        pages = clients.pages("sagemaker", kind.list, SortBy="CreationTime", SortOrder="Descending", MaxResults=100)
        try:
            for page in pages:
                for summary in page[kind.summaries]:
                    yield ListedRun(RunRef("sagemaker", place, summary[kind.name]), listed_status(summary, kind))
        except Denied:
            if kind is TRAINING:  # users without permission for processing jobs have none to list
                raise

    def code(self, ref: RunRef, upload: Upload, scratch: Path) -> Iterator[Path]:
        """Download the run's code, and yield the unpacked folder; nothing if the archive is missing or damaged."""
        from cloudtrain.targets.common.archives import unpacked
        from cloudtrain.targets.sagemaker.service.download import fetch

        where, archive = S3Uri.parse(upload.destination), scratch / "sourcedir.tar.gz"
        with suppress(NotThere):
            fetch(self._at(ref.place), where.bucket, where.key, archive)
            yield from unpacked(archive, upload.sha256, scratch)

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        """Download the job's results; see `download.py`."""
        from cloudtrain.targets.sagemaker.outputs import places_of
        from cloudtrain.targets.sagemaker.service.download import download

        kind, description = self._find_job(ref)
        places = places_of(description, kind)
        log = self._log(ref, kind, description, None)
        return download(self._at(ref.place), places, path, destination, log.new_lines)

    def _at(self, place: str) -> Clients:
        if place not in self._clients:
            self._clients[place] = Clients(AccountRef.parse(place), self._environ)
        return self._clients[place]

    def _describe(self, ref: RunRef, kind: JobKind) -> dict[str, Any] | None:
        try:
            return self._at(ref.place).call("sagemaker", kind.describe, **{kind.name: ref.name})
        except NotThere:
            return None
        except Denied:
            if kind is TRAINING:  # users without permission for processing jobs have made none
                raise
            return None

    def _find_job(self, ref: RunRef) -> tuple[JobKind, dict[str, Any]]:
        """Return the type of a run's job (training or processing) and its description.

        Raises:
            RunNotFound: the job does not exist.
        """
        for kind in KINDS:
            description = self._describe(ref, kind)
            if description is not None:
                return kind, description
        raise not_found(ref.name, self._at(ref.place).region())

    def _state(self, ref: RunRef) -> RunState:
        kind, description = self._find_job(ref)
        return job_state(description, kind)

    def _status(self, kind: JobKind, description: Mapping[str, Any]) -> RunStatus:
        return status_of(description, kind, hourly_price(description, self._overlay()), time.time())

    def _ours(self, ref: RunRef, kind: JobKind, request: Mapping[str, Any] | None = None) -> bool:
        """Return whether the job exists, and check that cloudtrain created it (see `is_ours`).

        Raises:
            NameTaken: another tool or user created the job.
        """
        description = self._describe(ref, kind)
        if description is None:
            return False
        if not is_ours(self._at(ref.place), kind, description, request):
            raise NameTaken(
                f"the account already has a different {kind.noun} job named `{ref.name}`",
                hint=f"see it with `cloudtrain status {ref}`, or give your job another name",
                code="CT945",
            )
        return True

    def _log(self, ref: RunRef, kind: JobKind, description: Mapping[str, Any], instance: int | None) -> JobLog:
        ranks = ranks_of(description, self._overlay())
        return JobLog(self._at(ref.place), kind.log_group, ref.name, ranks=ranks, instance=instance)

    def _follow(
        self, ref: RunRef, kind: JobKind, log: JobLog, on_status: Callable[[RunStatus], None] | None
    ) -> Iterator[LogLine]:
        def now() -> RunStatus:
            description = self._describe(ref, kind)
            if description is None:
                raise not_found(ref.name, self._at(ref.place).region())
            return self._status(kind, description)

        return follow(log, now, on_status, self._pace)

    def _so_far(self, ref: RunRef, log: JobLog, on_status: Callable[[RunStatus], None] | None) -> Iterator[LogLine]:
        if on_status is not None:
            on_status(self.status(ref))
        yield from log.new_lines()

    def _explain(
        self, ref: RunRef, kind: JobKind, description: Mapping[str, Any], status: RunStatus
    ) -> RunStatus:  # fmt: skip
        """Add the reason from a failed job's output to its status, if the service's own message has no details."""
        if status.details:
            return status
        log = self._log(ref, kind, description, None)
        try:
            log.discover()
            for stream in log.streams[:_TAIL_STREAMS]:
                lines = log.tail(stream, _TAIL_EVENTS)
                error = error_in([line.text for line in lines])
                if error is not None:
                    return _with_output(status, lines, error)
        except TargetError:
            return status  # unreadable logs must not hide the reason
        return status


def _of_rank(lines: Iterator[LogLine], rank: int) -> Iterator[LogLine]:
    """Yield the lines of one rank.

    Raises:
        UsageError: none of the lines names its rank.
    """
    marked = unmarked = False
    for line in lines:
        marked, unmarked = marked or line.rank is not None, unmarked or line.rank is None
        if line.rank == rank:
            yield line
    if unmarked and not marked:
        hint = 'use `--host algo-1`; with `environment: {variables: {PET_TEE: "3"}}` torchrun marks each line'
        raise UsageError("the lines of this log do not name their ranks", hint=hint, code="CT937")


def _with_output(status: RunStatus, lines: list[LogLine], error: str) -> RunStatus:
    rank = next((line.rank for line in reversed(lines) if line.text.strip().startswith(error[:40])), None)
    reason = status.reason or ""
    return replace(
        status,
        reason=reason if error in reason else f"{reason}: {error}",
        details=tuple(line.text for line in lines[-20:]),
        failed_rank=status.failed_rank if status.failed_rank is not None else rank,
    )
