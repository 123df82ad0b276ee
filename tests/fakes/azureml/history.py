"""Run history and the data plane: status, times, errors, where the logs and the outputs are, tags."""

from __future__ import annotations

import re

from tests.fakes.azureml.blobs import Blobs
from tests.fakes.azureml.files import ARTIFACTS, Logs, artifact
from tests.fakes.azureml.job import Job, stamp
from tests.fakes.azureml.jobs import Jobs
from tests.fakes.azureml.messages import Json, Refused, Reply, Request, Route, answer

EXPERIMENT = "55555555-5555-5555-5555-555555555555"


class History:
    """The services that the workspace's discovery names."""

    def __init__(self, jobs: Jobs, logs: Logs, blobs: Blobs) -> None:
        self.jobs, self.logs, self.blobs = jobs, logs, blobs
        self.sas_seconds = 3600.0
        """How long the address of a log file is good for."""
        self.output_types = {"uri_folder": "UriFolder", "uri_file": "UriFile"}
        """How the type of an output is written in a run. azure-ai-ml knows other words (azure-sdk-for-python#48941):
        it resolves an output's address only where this is empty, and guesses it otherwise."""

    @property
    def routes(self) -> list[Route]:
        runs, kind = "/history/v1.0{WS}/runs/{name}", "runhistory"
        experiment = "/history/v1.0{WS}/experiments/{experiment}/runs/{name}"
        return [
            Route("GET", f"{runs}/details", kind, self._details),
            Route("GET", f"{runs}/serviceinstances/{{node}}", kind, self._instances),
            Route("GET", runs, kind, self._run),
            Route("POST", "/history/v1.0{WS}/rundata", kind, self._run_data),
            Route("PATCH", experiment, kind, self._patch),
            Route("GET", f"{runs}/children", kind, self._children),
            Route("POST", "/mlflow/v2.0{WS}/api/2.0/mlflow/runs/search", "", self._search),
            Route("GET", "/mlflow/v2.0{WS}/api/2.0/mlflow/runs/get", "", self._mlflow_run),
            Route("GET", "/mlflow/v2.0{WS}/api/2.0/mlflow/metrics/get-history", "", self._values),
            Route(
                "POST",
                "/data/v1.0{WS}/dataversion/batchGetResolvedUris",
                "dataversion",
                self._resolve,
            ),
        ]

    def _details(self, request: Request, name: str) -> Reply:
        """Where the SDK looks for the status while it follows a job: this question moves a scripted life on."""
        job = self.jobs.known(name)
        job.advance()
        files = {
            file: self.blobs.sas_url(ARTIFACTS, artifact(name, file), seconds=self.sas_seconds)
            for file in self.logs.files(name)
        }
        described = job.describe()["properties"]
        warnings = [{"source": "Service", "message": text} for text in job.warnings]
        body = {
            "runId": name, "target": (job.properties.get("computeId") or "serverless").rsplit("/", 1)[-1],
            "status": job.status, "createdTimeUtc": stamp(job.created), "startTimeUtc": stamp(job.started),
            "endTimeUtc": stamp(job.ended), "services": {}, "warnings": warnings or None, "error": _error(job),
            "properties": described["properties"], "inputDatasets": [], "outputDatasets": [], "runDefinition": {},
            "logFiles": files, "submittedBy": "Ada",
        }  # fmt: skip
        return answer({key: value for key, value in body.items() if value is not None})

    def _instances(self, request: Request, name: str, node: str) -> Reply:
        """The services of a node, as azure-ai-ml 1.35.2 reads them: each is ready as soon as the job runs."""
        job = self.jobs.known(name)
        services = job.properties.get("services") or {}
        status = "Running" if job.status == "Running" else "NotStarted"
        instances = {}
        for service, sent in services.items():
            if node == "0" or (sent.get("nodes") or {}).get("nodesValueType") == "All":
                address = {"ProxyEndpoint": f"wss://ssh-{name}-{node}.eastus.nodes.azureml.ms"}
                instances[service] = {
                    "type": sent["jobServiceType"], "port": 22, "status": status, "error": None,
                    "endpoint": None, "properties": {**(sent.get("properties") or {}), **address},
                }  # fmt: skip
        return answer({"instances": instances})

    def _run(self, request: Request, name: str) -> Reply:
        job = self.jobs.known(name)
        job.advance()
        return answer(self._described(job))

    def _run_data(self, request: Request) -> Reply:
        job = self.jobs.known(request.body["runId"])
        return answer(
            {"runMetadata": self._described(job), "runDefinition": {}, "jobSpecification": None}
        )

    def _patch(self, request: Request, experiment: str, name: str) -> Reply:
        """Tags and properties are added to those that there are; `hidden` archives."""
        job = self.jobs.known(name)
        if experiment != job.describe()["properties"]["experimentName"]:
            raise Refused(
                404,
                "UserError",
                f"Run {name} was not found in experiment {experiment}",
                inner="NotFoundError",
            )
        job.run_tags.update(request.body.get("tags") or {})
        job.run_properties.update(request.body.get("properties") or {})
        job.hidden = request.body.get("hidden", job.hidden)
        return answer(self._described(job))

    def _children(self, request: Request, name: str) -> Reply:
        """Those that a sweep has started, and the one that made its code ready, in pages of two."""
        self.jobs.known(name)
        children = [
            self._described(job) | {"experimentId": EXPERIMENT} for job in self.jobs.trials_of(name)
        ]
        children.insert(
            0, {"runId": f"{name}_preparation", "status": "Completed", "experimentId": EXPERIMENT}
        )
        start = int(request.query.get("$skip", 0))
        here = f"https://{request.headers['host']}{request.target.partition('?')[0]}"
        more = f"{here}?api-version=v1.0&%24skip={start + 2}" if start + 2 < len(children) else None
        return answer({"value": children[start : start + 2], "nextLink": more})

    def _search(self, request: Request) -> Reply:
        """MLflow's own search, which knows the children of a run by a tag; a page has one run."""
        asked, parent = (
            request.body,
            re.fullmatch(r"tags.mlflow.parentRunId = '(.+)'", request.body["filter"]),
        )
        if parent is None or asked["experiment_ids"] != [EXPERIMENT]:
            raise Refused(400, "UserError", f"the fake knows no such search: {asked}")
        jobs = [job for job in self.jobs.trials_of(parent[1]) if job.metrics]
        start = int(asked.get("page_token", 0))
        runs = [
            {
                "info": {"run_id": job.name},
                "data": {"metrics": [{"key": k, "value": v} for k, v in job.metrics.items()]},
            }
            for job in jobs[start : start + 1]
        ]
        return answer(
            {"runs": runs} | ({"next_page_token": str(start + 1)} if start + 1 < len(jobs) else {})
        )

    def _mlflow_run(self, request: Request) -> Reply:
        """A run with the newest value of each metric."""
        job = self.jobs.known(request.query["run_id"])
        metrics = [_logged(name, rows[-1]) for name, rows in job.logged.items()]
        return answer({"run": {"info": {"run_id": job.name}, "data": {"metrics": metrics}}})

    def _values(self, request: Request) -> Reply:
        """The values of a metric, three on a page."""
        job = self.jobs.known(request.query["run_id"])
        name = request.query["metric_key"]
        start = int(request.query.get("page_token", 0))
        rows = [_logged(name, row) for row in job.logged[name][start : start + 3]]
        has_more = start + 3 < len(job.logged[name])
        return answer({"metrics": rows} | ({"next_page_token": str(start + 3)} if has_more else {}))

    def _resolve(self, request: Request) -> Reply:
        """The address of each output whose asset id is given."""
        values = {}
        for asset in request.body["values"]:
            name, output = asset.split("/")[-3], asset.split("/")[-1]
            uri = _output_uri(self.jobs.known(name), output)
            values[asset] = {
                "uri": uri,
                "type": "UriFolder",
                "entityMetadata": None,
                "legacyId": None,
                "error": None,
            }
        return answer({"values": values})

    def _described(self, job: Job) -> Json:
        described = job.describe()["properties"]
        outputs = {
            output: {
                "assetId": f"azureml://locations/eastus/data/{job.name}/outputs/{output}",
                "type": self.output_types.get(body["jobOutputType"], body["jobOutputType"]),
            }
            for output, body in (job.properties.get("outputs") or {}).items()
        }
        run = {
            "runId": job.name, "rootRunId": job.name, "experimentName": described["experimentName"],
            "displayName": described["displayName"], "status": job.status, "tags": job.tags,
            "properties": described["properties"], "hidden": job.hidden, "createdUtc": stamp(job.created),
            "startTimeUtc": stamp(job.started), "endTimeUtc": stamp(job.ended), "error": _error(job), "outputs": outputs,
            "runType": "azureml.scriptrun", "dataContainerId": f"dcid.{job.name}",
        }  # fmt: skip
        return {key: value for key, value in run.items() if value is not None}


def _output_uri(job: Job, output: str) -> str:
    """Where the files of an output are: in the job's own place, unless the job names another."""
    given = (job.properties.get("outputs") or {}).get(output) or {}
    if given.get("uri"):
        return str(given["uri"])
    scope = job.workspace.replace("/providers/Microsoft.MachineLearningServices", "")
    return f"azureml:/{scope}/datastores/workspaceblobstore/paths/azureml/{job.name}/{output}/"


def _error(job: Job) -> Json | None:
    if job.error is None:
        return None
    return {
        "error": {"details": [], **job.error},
        "correlation": {"operation": "0" * 32, "request": "0" * 16},
        "environment": "eastus", "location": "eastus", "time": stamp(job.ended), "componentName": "common_runtime",
    }  # fmt: skip


def _logged(name: str, row: tuple[int, int, float | str]) -> Json:
    """A value as MLflow has it: with its time in milliseconds and its step."""
    timestamp, step, value = row
    return {"key": name, "timestamp": timestamp, "step": step, "value": value}
