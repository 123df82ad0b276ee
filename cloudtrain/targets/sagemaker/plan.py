"""A plan for SageMaker, which can also be had as an object or as code of the SageMaker Python SDK."""

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
    """The compiled job. `request` is the body of CreateTrainingJob; all else here is made from it.

    The bundle must be in its place before a job of the SDK can start: `plan.uploads` says where, and a `cloudtrain
    submit` of the same code has put it there.
    """

    @classmethod
    def of(cls, plan: Plan) -> SageMakerPlan:
        """A compiled plan that knows its place."""
        return cls(**{field.name: getattr(plan, field.name) for field in fields(Plan)})

    @property
    def outputs(self) -> dict[str, str]:
        """Where the service will put what the run writes; of a sweep its trials' names say, which the service gives."""
        if "HyperParameterTuningJobName" in self.request:
            return {}
        from cloudtrain.targets.sagemaker.jobs import kind_of
        from cloudtrain.targets.sagemaker.outputs import places_of

        return {name: str(uri) for name, uri in places_of(self.request, kind_of(self.request)).items()}

    @property
    def region(self) -> str:
        """The region that the request goes to."""
        return self.place.rpartition("@")[2]

    @property
    def profile(self) -> str | None:
        """The AWS profile of the target, or None for the credentials of the surroundings."""
        profile, at, _ = self.place.partition("@")
        return unquote(profile) if at else None

    def to_estimator(self, session: Any = None) -> Any:
        """The estimator of version 2 of the SDK whose `fit` sends exactly `request`.

            plan.to_estimator().fit(**plan.fit_arguments())

        A `sagemaker.Session` of one's own must be of this region, and its configuration must set no defaults for
        training jobs, because they would be added to the request. The session that is made here reads no
        configuration files, and sends the SDK's authors no notice of each call.

        Raises:
            MissingExtra: the SDK is not installed.
            TargetError: the SDK cannot express a field of the request; the message names it.
            UsageError: the plan is not one of a training job.
        """
        from cloudtrain.targets.common.export.calls import build

        return build(self._estimator(), session=session)[0]

    def fit_arguments(self) -> dict[str, Any]:
        """What the estimator's `fit` is called with: inputs, the job's name, and the experiment.

        Raises: as `to_estimator`.
        """
        from cloudtrain.targets.common.export.calls import build_arguments

        return build_arguments(self._estimator())

    def to_python(self, sdk: Literal[2, 3] = 2) -> str:
        """Code that makes the estimator, or the trainer of version 3, and starts the job. Needs no SDK here.

        Raises:
            TargetError: the SDK cannot express a field of the request; the message names it.
            UsageError: the plan is not one of a training job.
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
        """The `ModelTrainer` of version 3 of the SDK.

            plan.to_model_trainer().train(**plan.train_arguments())

        Torchrun, MPI and plain scripts are started by version 3's own drivers, from the same archive of the code; all
        else by the toolkit of the image. What is sent is `request` but for what version 3 lets nobody set, which
        `export.trainer.DIFFERENCES` and `WITH_DRIVERS` list: the job's name, the drivers' channels and their like.
        The drivers hand `True` to the script as `true`, and run an MPI job on the first of its instances alone.
        Making the trainer asks IAM about the role.

        Raises:
            MissingExtra: the SDK is not installed.
            TargetError: version 3 cannot express a field of the request, or cannot start the job; the message names it.
            UsageError: the plan is not one of a training job.
        """
        from cloudtrain.targets.common.export.calls import build

        return build(self._trainer(), session=session)[0]

    def train_arguments(self) -> dict[str, Any]:
        """What the trainer's `train` is called with: the inputs.

        Raises: as `to_model_trainer`.
        """
        from cloudtrain.targets.common.export.calls import build_arguments

        return build_arguments(self._trainer())

    def forms(self) -> dict[str, Callable[[], str]]:
        """`aws-cli`: for `--cli-input-json` of the AWS command line. `python`: code for version 2 of the SDK."""
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
            raise UsageError("only training jobs can be exported as an object of the SDK", hint=hint, code="CT904")
