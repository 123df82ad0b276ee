"""Training and processing jobs: made once per name, moved on by tests, described as the service describes them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.sagemaker.faults import Refused

ACCOUNT = "123456789012"
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
_FINAL = ("Completed", "Failed", "Stopped")

Answer = dict[str, Any]


@dataclass
class Job:
    """One job. `enter`, `end` and `interrupt` move it on; times are seconds since the epoch."""

    noun: str
    request: dict[str, Any]
    arn: str
    created: float
    status: str = "InProgress"
    secondary: str = "Starting"
    transitions: list[dict[str, Any]] = field(default_factory=list)
    started: float | None = None
    ended: float | None = None
    changed: float = 0.0
    more: dict[str, Any] = field(default_factory=dict)
    """What else a description holds: FailureReason, BillableTimeInSeconds, FinalMetricDataList, ..."""

    @property
    def name(self) -> str:
        return str(self.request[f"{self.noun}JobName"])

    @property
    def is_final(self) -> bool:
        return self.status in _FINAL

    def enter(self, phase: str, message: str = "", *, at: float | None = None) -> None:
        """The next secondary status."""
        now = time.time() if at is None else at
        if self.transitions and "EndTime" not in self.transitions[-1]:
            self.transitions[-1]["EndTime"] = now
        self.transitions.append(
            {"Status": phase, "StartTime": now, "StatusMessage": message or phase}
        )
        self.changed = now
        if phase == "Training" and self.started is None:
            self.started = now
        self.secondary = phase  # last: whoever sees it in another thread finds the times too

    def end(
        self, status: str, secondary: str | None = None, *, at: float | None = None, **more: Any
    ) -> None:
        """The last status."""
        self.enter(secondary or status, at=at)
        self.more |= more
        self.ended = self.changed if self.started is not None else None
        self.transitions[-1]["EndTime"] = self.changed
        self.status = status

    def describe(self) -> Answer:
        body = {key: value for key, value in self.request.items() if key != "Tags"}
        body |= {
            f"{self.noun}JobArn": self.arn,
            f"{self.noun}JobStatus": self.status,
            "CreationTime": self.created,
            "LastModifiedTime": self.changed,
        }
        if self.noun == "Training":
            body |= {
                "SecondaryStatus": self.secondary,
                "SecondaryStatusTransitions": [dict(item) for item in self.transitions],
            }
        times = {f"{self.noun}StartTime": self.started, f"{self.noun}EndTime": self.ended}
        return body | {key: value for key, value in times.items() if value is not None} | self.more

    def summary(self) -> Answer:
        body = {
            f"{self.noun}JobName": self.name,
            f"{self.noun}JobArn": self.arn,
            f"{self.noun}JobStatus": self.status,
            "CreationTime": self.created,
            "LastModifiedTime": self.changed,
        }
        return body | ({} if self.ended is None else {f"{self.noun}EndTime": self.ended})


class Jobs:
    """The SageMaker service. `on_create` and `on_stop` are told of jobs; without them a test moves the jobs itself."""

    def __init__(self, region: str) -> None:
        self.region = region
        self.by_name: dict[str, Job] = {}
        self.tags: dict[str, dict[str, str]] = {}
        self.on_create: Callable[[Job], None] | None = None
        self.on_stop: Callable[[Job], None] | None = None
        self.page_size = 100
        self.trials: dict[str, list[Answer]] = {}
        """Tuning job to the summaries of its training jobs; tests write them."""
        self._lock = threading.RLock()

    def __getitem__(self, name: str) -> Job:
        return self.by_name[name]

    def handle(self, operation: str, body: Answer) -> Answer:
        """The answer to an operation."""
        with self._lock:
            if operation == "ListTrainingJobsForHyperParameterTuningJob":
                self._known("HyperParameterTuning", body)
                return {
                    "TrainingJobSummaries": self.trials.get(body["HyperParameterTuningJobName"], [])
                }
            for noun in ("Training", "Processing", "HyperParameterTuning"):
                verb, _, rest = operation.partition(f"{noun}Job")
                if rest in ("", "s") and verb in ("Create", "Describe", "List", "Stop", "Update"):
                    return getattr(self, f"_{verb.lower()}")(noun, body)
            if operation in ("ListTags", "AddTags"):
                return getattr(self, f"_{operation[:-4].lower()}_tags")(body)
        raise Refused("UnknownOperationException", f"the fake knows no {operation}", 404)

    def session(self, operation: str, body: Answer) -> Answer:
        """The answer of Systems Manager about a container, which connects when its job has remote debugging. Recorded of
        the documentation's examples."""
        name = body["Target"].removeprefix("sagemaker-training-job:").rpartition("_algo-")[0]
        debug = self.by_name[name].describe().get("RemoteDebugConfig", {})
        is_connected = bool(debug.get("EnableRemoteDebug"))
        if operation == "GetConnectionStatus":
            return {
                "Target": body["Target"],
                "Status": "connected" if is_connected else "notconnected",
            }
        if not is_connected:
            raise Refused("TargetNotConnected", f"{body['Target']} is not connected.")
        return {
            "SessionId": "ada-0f1e2d3c",
            "TokenValue": "AAEAAd-token",
            "StreamUrl": "wss://ssmmessages.eu-west-1.amazonaws.com/v1/data-channel/ada-0f1e2d3c?role=publish_subscribe",
        }

    def _update(self, noun: str, body: Answer) -> Answer:
        job = self._known(noun, body)
        if job.secondary not in ("Downloading", "Training"):
            raise Refused("ValidationException", f"The job is in status {job.secondary}.")
        job.more |= {key: value for key, value in body.items() if key != f"{noun}JobName"}
        return {f"{noun}JobArn": job.arn}

    def _create(self, noun: str, body: Answer) -> Answer:
        name = body[f"{noun}JobName"]
        if not _NAME.fullmatch(name):
            raise Refused(
                "ValidationException",
                f"1 validation error detected: Value '{name}' failed to satisfy",
            )
        if name in self.by_name:
            message = f"{noun} job names must be unique within an AWS account and region, and a job with this name exists"
            raise Refused("ResourceInUse", message)
        arn = f"arn:aws:sagemaker:{self.region}:{ACCOUNT}:{noun.lower()}-job/{name}"
        job = Job(noun, body, arn, created=time.time(), changed=time.time())
        job.enter("Starting", "Starting the training job")
        self.by_name[name] = job
        self.tags[arn] = {tag["Key"]: tag["Value"] for tag in body.get("Tags", ())}
        if self.on_create is not None:
            self.on_create(job)
        return {f"{noun}JobArn": arn}

    def _known(self, noun: str, body: Answer) -> Job:
        job = self.by_name.get(body[f"{noun}JobName"])
        if job is None or job.noun != noun:
            raise Refused("ValidationException", "Requested resource not found.")
        return job

    def _describe(self, noun: str, body: Answer) -> Answer:
        return self._known(noun, body).describe()

    def _stop(self, noun: str, body: Answer) -> Answer:
        job = self._known(noun, body)
        if job.status != "InProgress":
            message = f"The request was rejected because the {noun.lower()} job is in status {job.status}."
            raise Refused("ValidationException", message)
        job.status = "Stopping"
        job.enter("Stopping", "Stopping the training job")
        if self.on_stop is not None:
            self.on_stop(job)
        return {}

    def _list(self, noun: str, body: Answer) -> Answer:
        jobs = [job for job in self.by_name.values() if job.noun == noun]
        jobs = [job for job in jobs if body.get("StatusEquals", job.status) == job.status]
        jobs.sort(
            key=lambda job: job.created, reverse=body.get("SortOrder", "Descending") == "Descending"
        )
        start = int(body.get("NextToken", 0))
        end = start + min(self.page_size, body.get("MaxResults", 10))
        more = {"NextToken": str(end)} if end < len(jobs) else {}
        return {f"{noun}JobSummaries": [job.summary() for job in jobs[start:end]]} | more

    def _list_tags(self, body: Answer) -> Answer:
        tags = self.tags.get(body["ResourceArn"], {})
        return {"Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}

    def _add_tags(self, body: Answer) -> Answer:
        self.tags.setdefault(body["ResourceArn"], {}).update(
            {tag["Key"]: tag["Value"] for tag in body["Tags"]}
        )
        return self._list_tags(body)
