"""The SageMaker part of `cloudtrain adopt`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path as File
from typing import Any

from cloudtrain.core.adoption import Comparable, Draft, Original
from cloudtrain.core.differences import Path, overrides_between
from cloudtrain.core.plan import Bundle, CompileContext, Plan
from cloudtrain.targets.sagemaker.account import account_of
from cloudtrain.targets.sagemaker.adopt.documents import originals_in
from cloudtrain.targets.sagemaker.adopt.jobs import drafts_of
from cloudtrain.targets.sagemaker.adopt.scripts import originals_of_script
from cloudtrain.targets.sagemaker.adopt.searches import OF_SEARCH, flat
from cloudtrain.targets.sagemaker.adopt.trainers import RENEWED_BY_START, START, WHY_STARTED, started_by_us, with_start
from cloudtrain.targets.sagemaker.compile.places import CHECKPOINT_DIR, CHECKPOINT_VARIABLE
from cloudtrain.targets.sagemaker.launch import keys
from cloudtrain.targets.sagemaker.settings import SageMaker
from cloudtrain.targets.sagemaker.tags import RUN_TAG

_CODE = "(the code's own place)"
_BUNDLE = Bundle("0" * 64, 0, 0)


class SageMakerAdopter:
    """Adopts CreateTrainingJob requests, and documents that contain such requests."""

    def originals(self, data: Any, folder: str | None) -> list[Original]:
        """Return the training jobs that a document from the folder `folder` contains."""
        return originals_in(data, folder)

    def drafts(self, original: Original) -> Iterator[Draft]:
        """Yield jobs that compile to the original's request, the most portable first."""
        return drafts_of(original)

    def context(self, original: Original, settings: SageMaker) -> CompileContext:
        """Return a context with the original's name and the account in `settings`.

        The AWS configuration of this machine is ignored.
        """
        account = account_of(settings, {"HOME": "/nonexistent"})
        return CompileContext(original.name, _BUNDLE, account._replace(overlay=None))

    def comparable(
        self, request: Mapping[str, Any], original: Original, context: CompileContext, plan: Plan | None
    ) -> Comparable:
        """Return the request in a form that can be compared with other requests.

        The form omits the run's tag and replaces the location of the code with a fixed text. If the drivers
        of SDK version 3 start the original, one description of the program replaces the fields that start the program.
        `plan` is None if `request` is the request of `original` itself.
        """
        found = json.loads(json.dumps(flat(request) if "TrainingJobDefinition" in request else request, default=str))
        if original.search is None:
            found = {name: value for name, value in found.items() if name not in OF_SEARCH}
        renewed = [("TrainingJobName", "every run gets a name of its own; the original's stands in for it here")]
        tags = [row for row in found.get("Tags", ()) if row.get("Key") != RUN_TAG]
        found.pop("Tags", None)
        found |= {"Tags": tags} if tags else {}
        if plan is not None:
            renewed.append((f"Tags.{RUN_TAG}", "the tag makes the run known to cloudtrain"))
        variables = found.get("Environment", {})
        place = found.get("CheckpointConfig", {}).get("LocalPath")
        if plan is not None and place and variables.get(CHECKPOINT_VARIABLE) == place:
            del variables[CHECKPOINT_VARIABLE]
            renewed.append((f"Environment.{CHECKPOINT_VARIABLE}", "the runtime reads the place of checkpoints there"))
        _drop_defaults(found)
        if original.start is not None:
            start = original.start if plan is None else started_by_us(request, context.account.region)
            found = with_start(found, start)
            renewed += [(name, WHY_STARTED) for name in RENEWED_BY_START]
        parameters = found.get("HyperParameters", {})
        if original.search is not None and parameters.pop(keys.JOB_NAME, None):
            renewed.append(("HyperParameters.sagemaker_job_name", "it is the name of the run"))
        where = str(parameters.get(keys.SUBMIT_DIRECTORY, "")).strip('"')
        if where.startswith("s3://"):
            parameters[keys.SUBMIT_DIRECTORY] = _CODE
            renewed.append((f"HyperParameters.{keys.SUBMIT_DIRECTORY}", _WHY_CODE))
        elif where:
            for channel in found.get("InputDataConfig", ()):
                source = channel.get("DataSource", {}).get("S3DataSource")
                if channel.get("ChannelName") == "code" and source is not None:
                    source["S3Uri"] = _CODE
                    renewed.append(("InputDataConfig.code", _WHY_CODE))
        for name in [name for name, value in found.items() if value in ({}, [], None)]:
            del found[name]  # the service treats an empty field as missing
        return Comparable(found, tuple(renewed))

    def overrides(self, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the overrides that turn `ours` into `theirs`, but none that would remove the run's tag or code."""
        found = overrides_between(ours, theirs)
        for name in ("Tags", *OF_SEARCH):
            found.pop(name, None)
        drivers = found.pop(START, None) or START in theirs
        if drivers or _CODE in json.dumps(found.get("InputDataConfig")):
            found.pop("InputDataConfig", None)
        parameters = found.get("HyperParameters")
        if parameters is not None and parameters.get(keys.SUBMIT_DIRECTORY) == _CODE:
            del parameters[keys.SUBMIT_DIRECTORY]
        return found

    def hook(self) -> str:
        """Return the Python code that answers botocore's calls while a script runs."""
        return File(__file__).with_name("hook.py").read_text(encoding="utf-8")

    def captured(self, record: Mapping[str, Any], uploads: Mapping[str, bytes]) -> tuple[list[Original], bytes | None]:
        """Return the training jobs that a script was about to create, and the archive of their code, if any.

        `record` is the captured API call, and `uploads` maps addresses to the files that the script uploaded.

        If the script asked AWS for its account number, the hook answered with a placeholder. The account number of the
        job's role replaces this placeholder.
        """
        return originals_of_script(record, uploads)

    def reason(self, path: Path) -> str:
        """Explain why no override can remove the difference in the request field `path`."""
        if "ParameterRanges" in path:
            return "a range of a sweep names its scale: `uniform` and `int` are linear, not `Auto`"
        return _REASONS.get(str(path[0]) if path else "", "a job cannot say this")


def _drop_defaults(request: dict[str, Any]) -> None:
    """Drop fields that only repeat a default.

    A channel's mode is redundant if it equals the mode of the whole job: version 3 of the SDK writes it, version 2 does
    not. The service's default checkpoint folder is redundant too (API reference, CheckpointConfig). One count for all
    preferred instance types is copied to each type, which means the same (ResourceConfig).
    """
    config = request.get("ResourceConfig", {})
    if config.get("InstancePreferences") and "InstanceCount" in config:
        count = config.pop("InstanceCount")
        config["InstancePreferences"] = [{"InstanceCount": count, **row} for row in config["InstancePreferences"]]
    if (checkpoint := request.get("CheckpointConfig", {})).get("LocalPath") == CHECKPOINT_DIR:
        del checkpoint["LocalPath"]
    mode = request.get("AlgorithmSpecification", {}).get("TrainingInputMode")
    for channel in request.get("InputDataConfig", ()):
        if channel.get("InputMode") == mode:
            del channel["InputMode"]


_WHY_CODE = "cloudtrain uploads the code under the hash of its content"

_REASONS = {
    OF_SEARCH[0]: "a sweep has no field for it",
    OF_SEARCH[1]: "`cloudtrain continue` extends a sweep without a warm start",
    "CheckpointConfig": "all trials would share the place, and resume from each other's checkpoints",
    START: "the job starts something else than version 3's drivers do",
    "Tags": "a job's tags have each key once, and an override of the list would lose the tag of the run",
    "InputDataConfig": "an override of the list would name the code's old place",
    "HyperParameters": "the hyperparameter starts the job in a way that a job cannot say",
}
