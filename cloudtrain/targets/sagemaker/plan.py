"""The plan of a job on SageMaker, which can also be exported to the SageMaker Python SDK: as an object or as code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

from cloudtrain.core.plan import Plan
from cloudtrain.errors import UsageError
from cloudtrain.render.escape import visible, visible_json

if TYPE_CHECKING:
    from cloudtrain.targets.common.export.calls import Program


class SageMakerPlan(Plan):
    """The compiled job. `request` is the body of the API request, from which all SDK calls and formats are made.

    If you start the job with the SDK, the archive of the code must already be at the S3 address in `plan.uploads`.
    `cloudtrain submit --upload-only` uploads it.
    """

    @classmethod
    def of(cls, plan: Plan) -> SageMakerPlan:
        """Return a compiled plan as a `SageMakerPlan`. `plan.place` must be set."""
        return cls(**{field.name: getattr(plan, field.name) for field in fields(Plan)})

    @property
    def outputs(self) -> dict[str, str]:
        """Return the S3 locations of the run's results.

        Empty for a sweep: each trial has its own locations, and the service chooses their names.
        """
        if "HyperParameterTuningJobName" in self.request:
            return {}
        from cloudtrain.targets.sagemaker.jobs import kind_of
        from cloudtrain.targets.sagemaker.outputs import places_of

        return {name: str(uri) for name, uri in places_of(self.request, kind_of(self.request)).items()}

    @property
    def region(self) -> str:
        """Return the AWS region to which the request is sent."""
        return self.place.rpartition("@")[2]

    @property
    def profile(self) -> str | None:
        """Return the target's AWS profile; None if boto3 finds the credentials itself."""
        profile, at, _ = self.place.partition("@")
        return unquote(profile) if at else None

    def to_estimator(self, session: Any = None) -> Any:
        """Return the estimator of version 2 of the SDK whose `fit` sends exactly `request`.

            plan.to_estimator().fit(**plan.fit_arguments())

        If you pass a `sagemaker.Session`, it must use this plan's region. Its configuration must set no defaults for
        training jobs, because the SDK would add them to the request. By default, cloudtrain makes a session that reads
        no configuration files and sends no telemetry.

        Raises:
            MissingExtra: the SDK is not installed.
            TargetError: the SDK cannot express a field of the request; the message names it.
            UsageError: the plan is not for a training job.
        """
        from cloudtrain.targets.common.export.calls import build

        return build(self._estimator(), session=session)[0]

    def fit_arguments(self) -> dict[str, Any]:
        """Return the arguments for the estimator's `fit`: inputs, the job's name, and the experiment.

        Raises: the same errors as `to_estimator`.
        """
        from cloudtrain.targets.common.export.calls import build_arguments

        return build_arguments(self._estimator())

    def to_python(self, sdk: Literal[2, 3] = 2) -> str:
        """Return Python code that starts the job with version `sdk` of the SDK.

        The code makes an estimator for version 2, and a `ModelTrainer` for version 3. The SDK need not be installed.

        Raises:
            TargetError: the SDK cannot express a field of the request; the message names it.
            UsageError: the plan is not for a training job.
        """
        from cloudtrain.targets.common.export.python_code import python_code

        program, package = (self._estimator(), "sagemaker<3") if sdk == 2 else (self._trainer(), "sagemaker>=3")
        title = (
            f"Training job `{self.run_name}`, for version {sdk} of the SageMaker Python SDK: pip install '{package}'"
        )
        if self.uploads:
            title += "\n\nThe archive of the code must be in its place: `cloudtrain submit` puts it there.\n"
        return python_code(program, title=title)

    def to_model_trainer(self, session: Any = None) -> Any:
        """Return the `ModelTrainer` of version 3 of the SDK.

            plan.to_model_trainer().train(**plan.train_arguments())

        In version 3, the SDK's own drivers start torchrun, MPI and plain scripts. The image's toolkit starts all other
        jobs. The trainer sends `request`, except for the fields in `export.trainer.DIFFERENCES` and `WITH_DRIVERS`,
        which version 3 always changes, such as the job's name. The drivers pass `True` to the script as `true`, and
        run an MPI job only on the first instance. The SDK sends a request to IAM when the trainer is made.

        Raises:
            MissingExtra: the SDK is not installed.
            TargetError: version 3 cannot express a field of the request, or cannot start the job; the message names it.
            UsageError: the plan is not for a training job.
        """
        from cloudtrain.targets.common.export.calls import build

        return build(self._trainer(), session=session)[0]

    def train_arguments(self) -> dict[str, Any]:
        """Return the arguments for the trainer's `train`: the inputs.

        Raises: the same errors as `to_model_trainer`.
        """
        from cloudtrain.targets.common.export.calls import build_arguments

        return build_arguments(self._trainer())

    def forms(self) -> dict[str, Callable[[], str]]:
        """Return functions that write the plan in other formats, by format name.

        `aws-cli`: JSON for `--cli-input-json` of the AWS command line. `python` (only for training jobs): code for
        version 2 of the SDK.
        """
        forms: dict[str, Callable[[], str]] = {"aws-cli": self._aws_cli}
        return forms | ({"python": lambda: visible(self.to_python())} if self._trains else {})

    @property
    def _trains(self) -> bool:
        return "TrainingJobName" in self.request

    def _aws_cli(self) -> str:
        return visible_json(json.dumps(self.request, indent=2, ensure_ascii=False) + "\n")

    def _estimator(self) -> Program:
        from cloudtrain.targets.sagemaker.export.estimator import estimator_program

        self._must_train()
        return estimator_program(self.request, self.region, self.profile)

    def _trainer(self) -> Program:
        from cloudtrain.targets.sagemaker.export.trainer import trainer_program

        self._must_train()
        return trainer_program(self.request, self.region, self.profile)

    def _must_train(self) -> None:
        if not self._trains:
            hint = "print the request with `--format aws-cli`, or send `plan.request` with boto3"
            raise UsageError("only training jobs can be exported to the SageMaker SDK", hint=hint, code="CT904")
