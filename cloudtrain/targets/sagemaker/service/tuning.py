"""SageMaker's own tuner. A run is a tuning job with the run's name; SageMaker names the trials'
training jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from io import BytesIO

from cloudtrain.errors import TargetError, UsageError
from cloudtrain.job.sweep import Objective
from cloudtrain.plans.plan import Plan
from cloudtrain.plans.progress import LogLine, OnStatus, RunStatus, Trial
from cloudtrain.plans.states import RunRef, RunState
from cloudtrain.targets.adoption import Original
from cloudtrain.targets.common.services import NotThere, Pace, own_value, refuse_rank, trial_lines
from cloudtrain.targets.contract import BundleWriter, ByteProgress
from cloudtrain.targets.sagemaker.adopt.jobs import code_uri
from cloudtrain.targets.sagemaker.adopt.requests import originals_in
from cloudtrain.targets.sagemaker.adopt.scripts import with_code
from cloudtrain.targets.sagemaker.adopt.trainers import CODE, DRIVERS, place_of
from cloudtrain.targets.sagemaker.compile.sweep import continued, parents_of
from cloudtrain.targets.sagemaker.plan import TRAINING, JobKind, S3Uri
from cloudtrain.targets.sagemaker.request import JsonMapping, JsonObject
from cloudtrain.targets.sagemaker.service.clients import Clients
from cloudtrain.targets.sagemaker.service.service import STATES, SageMakerService, seconds, state_of
from cloudtrain.targets.sagemaker.settings import AwsPlace

TUNING = JobKind("hyper_parameter_tuning", outputs="OutputDataConfig")


class SageMakerTuner(SageMakerService):
    """Submits and manages tuning jobs. Shares requests, retries and credentials with
    `SageMakerService`."""

    kinds = (TUNING,)

    def __init__(self, environ: Mapping[str, str], pace: Pace | None = None) -> None:
        super().__init__(environ, pace)
        self._ended: dict[RunRef, int] = {}

    def upload(
        self, plan: Plan, bundle: BundleWriter, *, on_bytes: ByteProgress | None = None
    ) -> bool:
        training = {**plan.request["TrainingJobDefinition"], TRAINING.name: plan.run_name}
        return super().upload(replace(plan, request=training), bundle, on_bytes=on_bytes)

    def status(self, ref: RunRef) -> RunStatus:
        """Return the status of the tuning job. Its metrics are the best objective value and the
        trial counts, which include the trials of the tuning jobs that it continues."""
        _, description = self._find_job(ref)
        state = STATES["tuning"].get(description[TUNING.status], RunState.RUNNING)

        counts = description.get("TrainingJobStatusCounters", {})
        ended = sum(counts.get(name, 0) for name in ("Completed", "NonRetryableError", "Stopped"))
        limits = description["HyperParameterTuningJobConfig"].get("ResourceLimits", {})
        total = limits.get("MaxNumberOfTrainingJobs", 0)
        for name in parents_of(description):
            earlier = self._trials_of(ref._replace(name=name))
            total += earlier
            ended += earlier
        metrics = {"trials": float(total), "ended": float(ended)}

        best_job = description.get("OverallBestTrainingJob") or description.get("BestTrainingJob")
        best = (best_job or {}).get("FinalHyperParameterTuningJobObjectiveMetric")
        if best is not None:
            metrics[best["MetricName"]] = float(best["Value"])
        created = seconds(description.get("CreationTime"))
        return RunStatus(
            state,
            description.get("FailureReason"),
            created=created,
            started=created,
            ended=seconds(description.get(TUNING.end_time)) if state.is_final else None,
            metrics=metrics,
        )

    def logs(
        self,
        ref: RunRef,
        *,
        follow: bool = False,
        rank: int | None = None,
        instance: int | None = None,
        on_status: OnStatus = None,
    ) -> Iterator[LogLine]:
        """Yield a line for each trial that starts or ends. A trial's own output is in the log of
        its training job."""
        refuse_rank(ref, rank, instance)
        return trial_lines(self, ref, every=self._pace.every, follow=follow, on_status=on_status)

    def stop(self, ref: RunRef) -> None:
        """Ask the tuner and every running trial to stop. Does nothing if the tuning job has
        ended."""
        _, description = self._find_job(ref)
        if STATES["tuning"].get(description[TUNING.status]) is RunState.RUNNING:
            self._at(ref.place).call("sagemaker", TUNING.stop, **{TUNING.name: ref.name})

    def trials(self, ref: RunRef) -> list[Trial]:
        """Return the trials. Those of the tuning jobs that this one continues come first."""
        _, description = self._find_job(ref)
        rows: list[JsonObject] = []
        for name in (*parents_of(description), ref.name):
            rows += self._rows(ref, name)
        return [_trial(number, row) for number, row in enumerate(rows, 1)]

    def objective(self, ref: RunRef) -> Objective | None:
        _, description = self._find_job(ref)
        tuning = description["HyperParameterTuningJobConfig"]
        config = tuning.get("HyperParameterTuningJobObjective")
        if config is None:
            return None
        word = "maximize" if config["Type"] == "Maximize" else "minimize"
        return Objective.model_construct(**{word: config["MetricName"]})

    def continued(self, request: JsonMapping, name: str, trials: int, started: int) -> JsonObject:
        return continued(request, name, trials, started)

    def _rows(self, ref: RunRef, name: str) -> Iterator[JsonObject]:
        """Yield the training jobs of the tuning job `name`: `ref` itself or a parent. A deleted
        parent yields none."""
        pages = self._at(ref.place).pages(
            "sagemaker",
            "list_training_jobs_for_hyper_parameter_tuning_job",
            **{TUNING.name: name},
            SortBy="CreationTime",
            SortOrder="Ascending",
            MaxResults=100,
        )
        try:
            for page in pages:
                yield from page["TrainingJobSummaries"]
        except NotThere:
            if name == ref.name:
                raise

    def _trials_of(self, parent: RunRef) -> int:
        """Return the number of trials that the ended tuning job `parent` started; 0 if it was
        deleted."""
        if parent not in self._ended:
            description = self._describe(parent, TUNING) or {}
            self._ended[parent] = sum(description.get("TrainingJobStatusCounters", {}).values())
        return self._ended[parent]


def _trial(number: int, row: JsonMapping) -> Trial:
    """Return a trial from its row in the service's list of training jobs."""
    state = state_of(row["TrainingJobStatus"], None)
    reason = row.get("FailureReason")
    final = row.get("FinalHyperParameterTuningJobObjectiveMetric") or {}
    value = final.get("Value")
    if value is None and state is RunState.SUCCEEDED:
        state = RunState.FAILED
        reason = "the script never printed the objective"
    texts = row.get("TunedHyperParameters", {})
    return Trial(
        number,
        {name: own_value(text) for name, text in texts.items()},
        row["TrainingJobName"],
        state,
        None if value is None else float(value),
        reason,
        seconds(row.get("TrainingStartTime")),
        seconds(row.get("TrainingEndTime")),
        stopped_early=state is RunState.STOPPED and value is not None,
    )


# Read a training job from the account for `cloudtrain adopt`: its description, its tags, and its
# code if readable.

_MOST = 256 << 20
"""Largest code archive in bytes; anything larger is treated as data and left in S3."""


def fetch_original(
    place: str,
    name: str,
    settings: object,  # noqa: ARG001 - as the other targets
    environ: Mapping[str, str],
) -> Original:
    """Return the job with its code. If the code cannot be read, the new job file contains the
    code's S3 address."""
    clients = Clients(AwsPlace.parse(place), environ)
    try:
        document = dict(clients.call("sagemaker", "describe_training_job", TrainingJobName=name))
    except NotThere:
        raise UsageError(
            f"there is no training job `{name}` in this account and region",
            hint="`cloudtrain ps --target sagemaker` lists the account's jobs",
            code="CT974",
        ) from None
    document.pop("ResponseMetadata", None)

    tags: list[JsonObject] = []
    for page in clients.pages("sagemaker", "list_tags", ResourceArn=document["TrainingJobArn"]):
        tags += page.get("Tags", ())
    document["Tags"] = tags

    (original,) = originals_in(document, None)
    objects = dict(_objects(clients, original.request))
    job, code = with_code(original, objects)
    return replace(job, kind=f"the job {name}", code=code)


def _objects(clients: Clients, request: JsonMapping) -> Iterator[tuple[str, bytes]]:
    """Yield address and content of the code's S3 objects: an archive, or the files that SDK version
    3 uploaded."""
    drivers = place_of(request, DRIVERS)
    places = [drivers, place_of(request, CODE)] if drivers else [code_uri(request)]
    bytes_left = _MOST
    for place in places:
        if not place:
            continue
        where = S3Uri.parse(place)
        try:
            for row in clients.objects(Bucket=where.bucket, Prefix=where.key):
                key = row["Key"]
                if key.endswith("/"):
                    continue
                bytes_left -= row["Size"]
                if bytes_left < 0:
                    return
                content = _content(clients, where.bucket, key)
                yield f"s3://{where.bucket}/{key}", content
        except TargetError:
            continue  # the code is gone, or the caller may not read it


def _content(clients: Clients, bucket: str, key: str) -> bytes:
    content = BytesIO()
    clients.attempt(
        "s3",
        "get_object",
        {"Bucket": f"{bucket}/{key}"},
        lambda client: client.download_fileobj(bucket, key, content),
    )
    return content.getvalue()
