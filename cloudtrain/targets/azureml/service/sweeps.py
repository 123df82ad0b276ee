"""Azure ML's own tuner: a run is a sweep job with the run's name. Sweep jobs and command jobs use
the same requests.

Each trial is a separate job, whose run is a child of the sweep's run. The trial's state comes from
the run history, and so do its hyperparameters, which are in a tag. Its metrics come from the
workspace's MLflow interface.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory

from cloudtrain.documents import JsonMapping
from cloudtrain.documents.archives import archive_of
from cloudtrain.errors import TargetError, UsageError
from cloudtrain.job.sweep import Objective
from cloudtrain.plans.progress import LogLine, OnStatus, RunStatus, Trial
from cloudtrain.plans.states import RunRef, RunState
from cloudtrain.rules.engine import mapping_at, text_at, value_at
from cloudtrain.targets.adoption import Original
from cloudtrain.targets.azureml.adopt.requests import originals_in
from cloudtrain.targets.azureml.service.blobs import Blobs
from cloudtrain.targets.azureml.service.client import HISTORY, SUBMIT, SWEEP, Client
from cloudtrain.targets.azureml.service.service import AzureMLService
from cloudtrain.targets.azureml.service.status import reason_of, seconds, state_of, status_of
from cloudtrain.targets.azureml.service.tracking import last_values
from cloudtrain.targets.azureml.service.transfer import fetch_code
from cloudtrain.targets.azureml.settings import AzureML, AzureMLAccount, account_of
from cloudtrain.targets.common.services import NotThere, own_value, refuse_rank, trial_lines
from cloudtrain.targets.contract import Tuner

_NOT_A_TRIAL = "_preparation"
"""The end of the name of the child that prepares the code for the others."""


class AzureMLTuner(AzureMLService, Tuner):
    """Azure ML's own tuner, whose runs are sweep jobs."""

    submit_version = SWEEP

    def status(self, ref: RunRef) -> RunStatus:
        """The status has no billable time and no cost, because these belong to the trials."""
        job = self._job(ref)
        status = status_of(job, self._details(ref), None, time.time())
        total = value_at(job, "properties", "limits", "maxTotalTrials")
        metrics = {"trials": float(total)} if total else {}
        return replace(status, billable_seconds=None, metrics=metrics)

    def logs(
        self,
        ref: RunRef,
        *,
        follow: bool = False,
        rank: int | None = None,
        instance: int | None = None,
        on_status: OnStatus = None,
    ) -> Iterator[LogLine]:
        refuse_rank(ref, rank, instance)
        return trial_lines(self, ref, every=self._pace.every, follow=follow, on_status=on_status)

    def trials(self, ref: RunRef) -> list[Trial]:
        """The trials are ordered by the number at the end of their names."""
        client = self._at(ref.place)
        objective = self.objective(ref)
        try:
            path = f"runs/{ref.name}/children"
            url = client.gateway(f"history/{HISTORY}", path)
            children = client.items(url, api_version=HISTORY)
        except NotThere:
            return []  # the run history shows a new job with a delay

        rows = [row for row in children if not row["runId"].endswith(_NOT_A_TRIAL)]
        rows.sort(key=lambda row: (len(row["runId"]), row["runId"]))  # `_9` before `_10`
        experiments = {row["experimentId"] for row in rows if row.get("experimentId")}
        metrics = last_values(client, ref.name, experiments)
        return [
            _trial(number, row, metrics.get(row["runId"], {}), objective)
            for number, row in enumerate(rows, 1)
        ]

    def objective(self, ref: RunRef) -> Objective | None:
        objective = mapping_at(self._job(ref), "properties", "objective")
        if not objective:
            return None
        goal = str(objective.get("goal", "maximize")).lower()
        return Objective.model_construct(**{goal: objective["primaryMetric"]})


def _trial(
    number: int, row: JsonMapping, metrics: Mapping[str, float], objective: Objective | None
) -> Trial:
    """Return a trial from its run. Without a finite value of the objective, a completed trial
    counts as failed."""
    state = state_of(row.get("status") or "")
    reason = None
    metric = objective.metric if objective is not None else ""
    value = metrics.get(metric)
    if state is RunState.FAILED:
        reason = reason_of(row.get("error")).text
    elif value is not None and not isfinite(value):
        value = None
    if state is RunState.SUCCEEDED and value is None:
        state = RunState.FAILED
        reason = f"the script reported no `{metric}`, or ended with one that is no number"

    values = own_value(value_at(row, "tags", "hyperparameters"))
    hyperparameters = {}
    if isinstance(values, dict):
        for name, item in values.items():
            hyperparameters[name.lstrip("-")] = own_value(item)
    return Trial(
        number,
        hyperparameters,
        row["runId"],
        state,
        value,
        reason,
        seconds(row.get("startTimeUtc")),
        seconds(row.get("endTimeUtc")),
        stopped_early=state is RunState.STOPPED and value is not None,
    )


# Fetch a command job from a workspace for `cloudtrain adopt`: its body, and its code if it can be
# read.

_MOST = 256 << 20
"""Bytes of code: more is data, and stays where it is."""

_FILE = "adopt the pipeline's file: `cloudtrain adopt pipeline.yml --job STEP`"


def workspace_of(place: str, account: AzureMLAccount) -> AzureMLAccount:
    """Return the workspace in the middle part of a job's reference:
    `SUBSCRIPTION:RESOURCE_GROUP:WORKSPACE`. If `place` is only the workspace's name, the rest comes
    from `account`."""
    if ":" in place:
        return AzureMLAccount.parse(place)
    if "subscription_id" in account.missing or "resource_group" in account.missing:
        raise UsageError(
            f"the subscription of the workspace `{place}` is not known",
            hint="write `azureml://SUBSCRIPTION:RESOURCE_GROUP:WORKSPACE/NAME`, or set "
            "`subscription_id` and `resource_group` under `[azureml]` in cloudtrain.toml",
            code="CT933",
        )
    return account._replace(workspace=place)


def fetch_original(
    place: str, name: str, settings: AzureML, environ: Mapping[str, str]
) -> Original:
    """Return the job `name` with its code. If the code cannot be read, the result contains only the
    code's id."""
    workspace = workspace_of(place, account_of(settings, environ, Path.cwd()))
    client = Client(workspace, environ)
    try:
        # older versions of the API leave out fields of a body
        document = client.get(f"jobs/{name}", api_version=SUBMIT)
    except NotThere:
        message = f"the workspace `{client.place.workspace}` has no job `{name}`"
        hint = "`cloudtrain ps --target azureml` lists the workspace's jobs"
        raise UsageError(message, hint=hint, code="CT974") from None
    # The service answers so for a pipeline's step (recorded 2022).
    if not document.get("properties"):
        message = f"Azure ML does not show the body of `{name}`, a step of a pipeline"
        raise UsageError(message, hint=_FILE, code="CT981")
    originals = originals_in(document, None)
    if len(originals) != 1:
        raise UsageError(f"`{name}` is a pipeline, not a single job", hint=_FILE, code="CT981")

    original = originals[0]
    own_settings = dict(original.settings)
    for key in ("credential", "cloud"):
        value = getattr(client.place, key)
        if value:
            own_settings[key] = value

    code_id = text_at(original.request, "properties", "codeId").removeprefix("azureml:")
    code = _code(client, code_id) if code_id.startswith("/subscriptions/") else None
    return replace(original, kind=f"the job {name}", settings=own_settings, code=code)


def _code(client: Client, code_id: str) -> bytes | None:
    """Return the job's code as an archive; None if the files are missing or too large, or the user
    may not read them."""
    with TemporaryDirectory(prefix="cloudtrain-") as scratch:
        try:
            folder = fetch_code(Blobs(client), code_id, Path(scratch, "code"))
        except TargetError:
            return None
        files = [file for file in folder.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        if not files or size > _MOST:
            return None
        contents = {str(file.relative_to(folder)): file.read_bytes() for file in files}
        return archive_of(contents)
