"""Turn a CreateTrainingJob request into a `ModelTrainer` of version 3 of the SDK; and all exports
of a plan.

cloudtrain takes the first of two forms that can start the job:

1. With version 3's own drivers, which a channel brings. They start torchrun, MPI and plain scripts.
2. Without these drivers: the request's hyperparameters are unchanged, for the toolkit in the image.

The trainer sends the request with the changes in `DIFFERENCES`, and with drivers also those in
`WITH_DRIVERS`: version 3 (sagemaker-train 1.27.0) offers no way to avoid these changes.
"""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from cloudtrain.errors import CloudtrainError, UsageError
from cloudtrain.plans.plan import Plan
from cloudtrain.runtime.sagemaker_launcher import LAUNCH_KEY
from cloudtrain.targets.common.export import (
    Call,
    Fields,
    Program,
    Ref,
    build,
    build_arguments,
    python_code,
)
from cloudtrain.targets.sagemaker.aws_errors import FailedCall, errors_of_boto3, translate_error
from cloudtrain.targets.sagemaker.export.distributions import (
    SDK_TABLES,
    StartedScript,
    snake_case,
    start_of,
)
from cloudtrain.targets.sagemaker.export.estimator import (
    NO_CONFIGURATION,
    NO_WAIT,
    boto_session,
    estimator_program,
    refuse,
)
from cloudtrain.targets.sagemaker.fields import (
    ALGORITHM,
    CHANNELS,
    CHECKPOINT,
    ENCRYPTION,
    IMAGE,
    ISOLATION,
    LIMITS,
    MACHINES,
    METRICS,
    NAME,
    NETWORK,
    OUTPUT,
    PARAMETERS,
    PROFILER,
    ROLE,
    SPOT,
    TAGS,
    VARIABLES,
)
from cloudtrain.targets.sagemaker.plan import TRAINING, S3Uri, is_of_api
from cloudtrain.targets.sagemaker.reading import instances_in
from cloudtrain.targets.sagemaker.request import JsonObject, without_nulls
from cloudtrain.targets.sagemaker.settings import AwsPlace

SDK = "version 3 of the SageMaker SDK"
EXTRA = "sagemaker-sdk-3"

DIFFERENCES: dict[str, str] = SDK_TABLES["differences"]
"""Maps fields to the change that version 3 always makes."""

WITH_DRIVERS: dict[str, str] = SDK_TABLES["with_drivers"]
"""Maps fields to the change that version 3 always makes for its drivers."""

SMP_PARAMETERS = frozenset(SDK_TABLES["names"]["smp_parameters"].split())
"""The parameters that version 3's `SMP` accepts."""

_SHAPES = "sagemaker.core.shapes"
_CONFIGS = "sagemaker.core.training.configs"


def trainer_program(request: JsonObject, region: str, profile: str | None = None) -> Program:
    """Return the calls of version 3 that send `request` with the changes in `DIFFERENCES` and
    `WITH_DRIVERS`."""
    start = start_of(request, region)
    obstacles = _obstacles(start, request)
    if obstacles and "ContainerEntrypoint" in request[ALGORITHM]:
        raise refuse(SDK, obstacles)
    by_drivers = None if obstacles else start

    fields = Fields(request)
    fields.take_if(f"{PROFILER}.DisableProfiler", True)
    kept_whole = (PARAMETERS, CHANNELS)
    for path in (*DIFFERENCES, *(WITH_DRIVERS if by_drivers else kept_whole)):
        if path != PROFILER:
            fields.take(path)
    arguments: JsonObject = {"sagemaker_session": Ref("session")}
    arguments |= _arguments(fields, request[NAME][:48])
    if by_drivers:
        arguments |= _with_drivers(by_drivers)
    elif request.get(PARAMETERS):
        arguments["hyperparameters"] = dict(request[PARAMETERS])

    steps = _steps(fields)
    left = fields.remaining_paths()
    if left:
        raise refuse(SDK, left)

    session: JsonObject = {"boto_session": boto_session(region, profile)}
    if by_drivers:
        # the session uploads the drivers to the bucket of the code
        session["default_bucket"] = S3Uri.parse(by_drivers.archive).bucket
    session["sagemaker_config"] = NO_CONFIGURATION
    channels = by_drivers.channels if by_drivers else request.get(CHANNELS, [])
    return Program(
        {
            "session": Call("sagemaker.core.helper.session_helper.Session", session),
            "trainer": Call("sagemaker.train.model_trainer.ModelTrainer", arguments),
        },
        "train",
        {"input_data_config": [_shape(f"{_SHAPES}.Channel", channel) for channel in channels]},
        EXTRA,
        tuple(_notes(by_drivers, request)),
        tuple(steps),
        NO_WAIT,
    )


def _notes(by_drivers: StartedScript | None, request: JsonObject) -> Iterator[str]:
    """Yield what the written code says about how version 3 starts the job."""
    if by_drivers is None:
        yield "The image's own toolkit starts the job: version 3 has no driver."
        return
    instances = instances_in(request[MACHINES]) or 1
    if by_drivers.launcher == "mpirun" and instances > 1:
        yield (
            "Version 3's MPI driver asks mpirun for the processes of one instance: the "
            "others stay idle."
        )


def _obstacles(start: StartedScript | None, request: JsonObject) -> list[str]:
    """Return the fields and features with which version 3's drivers cannot start the job; empty if
    they can start it.

    The drivers start torchrun, MPI and plain scripts, always on all instances. Their shell script
    does not escape hyperparameters, so values with `'` are listed too.
    """
    if start is None:
        return [PARAMETERS]
    obstacles = []
    if start.launcher not in ("torchrun", "mpirun", "single"):
        obstacles.append(f"{PARAMETERS}.{start.launcher}")
    groups = request[MACHINES].get("InstanceGroups", ())
    names = [group["InstanceGroupName"] for group in groups]
    if start.groups and set(start.groups) != set(names):
        obstacles.append("a distribution over some of the instance groups")
    if start.launcher == "torchrun":
        for name in sorted(start.model_parallel or ()):
            if name not in SMP_PARAMETERS:
                obstacles.append(f"mp_parameters.{name}")
    command = start.command
    if command is not None:
        is_one_line = " ".join(command.split()) == command
        if start.launcher != "single" or not is_one_line:
            obstacles.append(f"the command `{command}`")
    for name, text in start.hyperparameters.items():
        if "'" in text or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            obstacles.append(f"{PARAMETERS}.{name}")
    return obstacles


_PARTS = (LIMITS, OUTPUT, CHECKPOINT, f"{ALGORITHM}.TrainingImageConfig")
"""Fields of the request that are arguments of the trainer, each with the class of its name."""


def _arguments(fields: Fields, base_name: str) -> JsonObject:
    """Return the arguments of `ModelTrainer` that are the same with and without version 3's
    drivers."""
    compute = _shape(f"{_CONFIGS}.Compute", fields.take(MACHINES))
    if fields.take_if(SPOT, True):
        compute.arguments["enable_managed_spot_training"] = True
    network = _shape(f"{_CONFIGS}.Networking", fields.take(NETWORK, {}))
    for flag in (ISOLATION, ENCRYPTION):  # sent only if true
        if fields.take_if(flag, True):
            network.arguments[snake_case(flag)] = True
    tags = [_shape(f"{_SHAPES}.Tag", tag) for tag in fields.take(TAGS, [])]
    arguments: JsonObject = {
        "role": fields.take(ROLE),
        "base_job_name": base_name,
        "training_image": fields.take(IMAGE),
        "training_input_mode": fields.take(f"{ALGORITHM}.TrainingInputMode", "File"),
        "compute": compute,
        "networking": network if network.arguments else None,
        "environment": fields.take(VARIABLES),
        "tags": tags or None,
    }
    for path in _PARTS:
        name = path.rpartition(".")[2]
        value = fields.take(path)
        if value is not None:
            arguments[snake_case(name)] = _shape(f"{_SHAPES}.{name}", value)
    return without_nulls(arguments)


def _with_drivers(start: StartedScript) -> JsonObject:
    """Return the arguments of `ModelTrainer` for a job that version 3's drivers start."""
    code = {
        "source_dir": start.archive,
        "entry_script": start.entry_point,
        "command": start.command,
        "requirements": start.requirements,
    }
    arguments = {
        "source_code": Call(f"{_CONFIGS}.SourceCode", without_nulls(code)),
        "distributed": _distribution_call(start),
        "hyperparameters": start.hyperparameters or None,
    }
    return without_nulls(arguments)


def _distribution_call(start: StartedScript) -> Call | None:
    if start.launcher == "single":
        return None
    arguments: JsonObject = {}
    if start.processes is not None:
        arguments["process_count_per_node"] = start.processes
    if start.launcher == "mpirun":
        if start.mpi_options:
            arguments["mpi_additional_options"] = shlex.split(start.mpi_options)
        return Call("sagemaker.train.distributed.MPI", arguments)
    if start.model_parallel is not None:
        arguments["smp"] = Call("sagemaker.train.distributed.SMP", dict(start.model_parallel))
    return Call("sagemaker.train.distributed.Torchrun", arguments)


def _steps(fields: Fields) -> list[tuple[str, JsonObject]]:
    """Return the trainer's methods to call before `train`, for fields that are no arguments."""
    steps: list[tuple[str, JsonObject]] = []
    for name, argument in SDK_TABLES["steps"].items():
        value = fields.take(name)
        if value is not None:
            shape = _shape(f"{_SHAPES}.{name}", value)
            steps.append((f"with_{argument}", {argument: shape}))
    metrics = fields.take(METRICS)
    if metrics is not None:
        shapes = [_shape(f"{_SHAPES}.MetricDefinition", metric) for metric in metrics]
        steps.append(("with_metric_definitions", {"metric_definitions": shapes}))
    return steps


def _shape(name: str, value: JsonObject) -> Call:
    """Turn a part of the request into an object of version 3, which has the same field names in
    snake case."""
    arguments = {snake_case(key): _value(key, inner) for key, inner in value.items()}
    return Call(name, arguments)


def _value(key: str, value: Any) -> Any:
    """Return a field's value: an object of version 3, a list of them, or the value as it is."""
    nested = SDK_TABLES["nested"].get(key)
    if nested is None:
        return value
    name = f"{_SHAPES}.{nested}"
    if isinstance(value, list):
        return [_shape(name, item) for item in value]
    return _shape(name, value)


# The exports of a plan: objects and code of the SDK, and the format of the AWS command line.


@dataclass(frozen=True)
class SageMakerExports:
    """Exports a plan to the tools that AWS offers. Everything is made from `plan.request`.

    If you start the job with the SDK, the archive of the code must already be at the S3 address in
    `plan.uploads`. `cloudtrain submit --upload-only` uploads it.
    """

    _plan: Plan

    @classmethod
    def of(cls, plan: Plan) -> SageMakerExports | None:
        """Return the exports of a plan; None if its request is not one of SageMaker's API."""
        return cls(plan) if is_of_api(plan.request) else None

    def to_estimator(self, session: object = None) -> object:
        """Return the estimator of version 2 of the SDK whose `fit` sends exactly `request`.

            plan.to_estimator().fit(**plan.fit_arguments())

        It is the framework's estimator with a `distribution` where the image's toolkit starts the
        job. Where cloudtrain's own launcher does, for example because the toolkit's shell would
        break a list among the hyperparameters, it is the SDK's generic `Estimator` without a
        `distribution`. A Python warning then says so, with the reason, as it does for everything
        else that the SDK cannot say in its usual way.

        If you pass a `sagemaker.Session`, it must use this plan's region. Its configuration must
        set no defaults for training jobs, because the SDK would add them to the request. By
        default, cloudtrain makes a session that reads no configuration files and sends no
        telemetry.

        Raises:
            MissingExtra: the SDK is not installed.
            TargetError: the SDK cannot express a field of the request; the message names it. Or
                AWS does not answer the SDK.
            SettingsError: there is no such AWS profile.
            UsageError: the plan is not for a training job.
        """
        return self._built(self._estimator(), session)

    def fit_arguments(self) -> JsonObject:
        """Return the arguments for the estimator's `fit`: inputs, the job's name, and the
        experiment.

        Raises: the same errors as `to_estimator`.
        """
        return build_arguments(self._estimator())

    def to_python(self, sdk: Literal[2, 3] = 2) -> str:
        """Return Python code that starts the job with version `sdk` of the SDK.

        The code makes an estimator for version 2, and a `ModelTrainer` for version 3. The SDK need
        not be installed.

        Raises:
            TargetError: the SDK cannot express a field of the request; the message names it.
            UsageError: the plan is not for a training job.
        """
        program = self._estimator() if sdk == 2 else self._trainer()
        install = "pip install 'sagemaker<3'" if sdk == 2 else "pip install 'sagemaker>=3'"
        name = self._plan.run_name
        title = f"Training job `{name}`, for version {sdk} of the SageMaker Python SDK: {install}"
        if self._plan.uploads:
            title += (
                "\n\nThe archive of the code must be in its place: `cloudtrain submit` "
                "puts it there.\n"
            )
        return python_code(program, title=title)

    def to_model_trainer(self, session: object = None) -> object:
        """Return the `ModelTrainer` of version 3 of the SDK.

            plan.to_model_trainer().train(**plan.train_arguments())

        In version 3, the SDK's own drivers start torchrun, MPI and plain scripts. The image's
        toolkit starts all other jobs. The trainer sends `request`, except for the fields in
        `export.trainer.DIFFERENCES` and `WITH_DRIVERS`, which version 3 always changes, such as the
        job's name. The drivers pass `True` to the script as `true`, and run an MPI job only on the
        first instance. The SDK sends a request to IAM when the trainer is made.

        Raises:
            MissingExtra: the SDK is not installed.
            TargetError: version 3 cannot express a field of the request, or cannot start the job;
                the message names it. Or AWS does not answer the SDK, which asks IAM about the role.
            SettingsError: there is no such AWS profile.
            UsageError: the plan is not for a training job.
        """
        return self._built(self._trainer(), session)

    def train_arguments(self) -> JsonObject:
        """Return the arguments for the trainer's `train`: the inputs.

        Raises: the same errors as `to_model_trainer`.
        """
        return build_arguments(self._trainer())

    def _built(self, program: Program, session: object) -> object:
        """Return the object that a program makes. Warn the caller of the public method of what is
        unusual about it."""
        for note in program.notes:
            warnings.warn(note, stacklevel=4)
        try:
            return build(program, session=session)[0]
        except CloudtrainError:
            raise
        except errors_of_boto3() as error:
            place = AwsPlace.parse(self._plan.place)
            raise translate_error(
                error, FailedCall("iam", "SimulatePrincipalPolicy", place.region, place.profile)
            ) from error

    def _estimator(self) -> Program:
        request, region, profile = self._training_job()
        program = estimator_program(request, region, profile)
        if LAUNCH_KEY not in request.get(PARAMETERS, {}):
            return program
        reason = dict(self._plan.summary).get("launch", "cloudtrain's own launcher")
        note = (
            "The SDK's generic `Estimator` sends this job, without a `distribution`, because the "
            f'job starts through {reason}. With `launch = "toolkit"` under `[sagemaker]`, it would '
            "be the framework's class, if the image's toolkit can start the job."
        )
        return program._replace(notes=(*program.notes, note))

    def _trainer(self) -> Program:
        return trainer_program(*self._training_job())

    def _training_job(self) -> tuple[JsonObject, str, str | None]:
        """Return the request of a training job, the AWS region to which it is sent, and the
        target's AWS profile."""
        if TRAINING.name not in self._plan.request:
            raise UsageError(
                "only training jobs can be exported to the SageMaker SDK",
                hint="print the request with `--format aws-cli`, or send `plan.request` with boto3",
                code="CT904",
            )
        place = AwsPlace.parse(self._plan.place)
        return self._plan.request, place.region or "", place.profile
