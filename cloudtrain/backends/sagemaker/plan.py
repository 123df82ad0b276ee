"""A plan for SageMaker, which can also be had as an object or as code of the SageMaker Python SDK."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from cloudtrain.plans import Plan


@dataclass(frozen=True)
class SageMakerPlan(Plan):
    """The compiled job. `request` is the body of CreateTrainingJob; all else here is made from it.

    The bundle must be in its place before a job of the SDK can start: `plan.uploads` says where, and a `cloudtrain
    submit` of the same code has put it there.
    """

    region: str = ""

    @classmethod
    def of(cls, plan: Plan, region: str) -> SageMakerPlan:
        """A compiled plan with the region that its request goes to."""
        return cls(**{field.name: getattr(plan, field.name) for field in fields(Plan)}, region=region)

    def to_estimator(self, session: Any = None) -> Any:
        """The estimator of version 2 of the SDK whose `fit` sends exactly `request`.

            plan.to_estimator().fit(**plan.fit_arguments())

        A `sagemaker.Session` of one's own must be of this region, and its configuration must set no defaults for
        training jobs, because they would be added to the request. The session that is made here reads no
        configuration files, and sends the SDK's authors no notice of each call.

        Raises:
            MissingExtra: the SDK is not installed.
            TargetError: the SDK cannot express a field of the request; the message names it.
        """
        from cloudtrain.backends.sagemaker.export.calls import build
        from cloudtrain.backends.sagemaker.export.estimator import estimator_program

        return build(estimator_program(self.request, self.region), session=session)[0]

    def fit_arguments(self) -> dict[str, Any]:
        """What the estimator's `fit` is called with: inputs, the job's name, and the experiment.

        Raises: as `to_estimator`.
        """
        from cloudtrain.backends.sagemaker.export.calls import build_arguments
        from cloudtrain.backends.sagemaker.export.estimator import estimator_program

        return build_arguments(estimator_program(self.request, self.region))

    def to_python(self) -> str:
        """Code that makes the estimator and starts the job. Needs no SDK here.

        Raises:
            TargetError: the SDK cannot express a field of the request; the message names it.
        """
        from cloudtrain.backends.sagemaker.export.estimator import estimator_program
        from cloudtrain.backends.sagemaker.export.python_code import python_code

        title = (
            f"Training job `{self.run_name}`, for version 2 of the SageMaker Python SDK (`pip install 'sagemaker<3'`)."
        )
        return python_code(estimator_program(self.request, self.region), title=title)

    def to_model_trainer(self, session: Any = None) -> Any:
        """The `ModelTrainer` of version 3 of the SDK, where its drivers can start the job: torchrun, MPI, one process.

            plan.to_model_trainer().train(**plan.train_arguments())

        It sends `request` but for what version 3 lets nobody set: `export.trainer.DIFFERENCES` lists it. It runs under
        another name, with version 3's drivers in place of the toolkit or our launcher, and uploads those drivers.
        `True` reaches the script as `true` there, and an MPI job on several instances uses the first one alone.

        Raises:
            MissingExtra: the SDK is not installed.
            TargetError: version 3 cannot express a field of the request, or cannot start the job; the message names it.
        """
        from cloudtrain.backends.sagemaker.export.calls import build
        from cloudtrain.backends.sagemaker.export.trainer import trainer_program

        return build(trainer_program(self.request, self.region), session=session)[0]

    def train_arguments(self) -> dict[str, Any]:
        """What the trainer's `train` is called with: the inputs.

        Raises: as `to_model_trainer`.
        """
        from cloudtrain.backends.sagemaker.export.calls import build_arguments
        from cloudtrain.backends.sagemaker.export.trainer import trainer_program

        return build_arguments(trainer_program(self.request, self.region))

    def forms(self) -> dict[str, Callable[[], str]]:
        """`aws-cli`: for `aws sagemaker create-training-job --cli-input-json`. `python`: code for the SDK."""
        import json

        def aws_cli() -> str:
            return json.dumps(self.request, indent=2, ensure_ascii=False) + "\n"

        return {"aws-cli": aws_cli, "python": self.to_python}
