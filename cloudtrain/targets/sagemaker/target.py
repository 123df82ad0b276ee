"""The target Amazon SageMaker, as data. Its functions and parts are imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cloudtrain.job.training import TrainingJob
from cloudtrain.targets.contract import Target, TargetFacts
from cloudtrain.targets.sagemaker.settings import ASKED, SageMaker, account_of

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob, ProcessingJob
    from cloudtrain.plans.plan import CompileContext, Plan
    from cloudtrain.rules.engine import Reading
    from cloudtrain.targets.common.services import Pace
    from cloudtrain.targets.sagemaker.service.service import SageMakerService
    from cloudtrain.targets.sagemaker.settings import SageMakerAccount

_HERE = "cloudtrain.targets.sagemaker"


class SageMakerTarget(Target):
    """The target Amazon SageMaker. A run is a training job or processing job with the run's
    name."""

    name = "sagemaker"
    title = "SageMaker"
    prefix = "SM"
    settings = SageMaker
    order = 10
    facts: ClassVar[TargetFacts] = TargetFacts(
        mlflow_plugin=("arn", "sagemaker-mlflow"),
        place_example="s3://bucket/train",
        place_help="An `s3://` URI; for inputs also `fsx://FILE_SYSTEM_ID/PATH` or "
        "`efs://FILE_SYSTEM_ID/PATH`, or "
        "`./PATH` of this machine, which a submit uploads.",
        place_prefixes=("s3://",),
        place_aliases=("s3", "s3_uri", "uri", "s3_data"),
        emulated_places="s3://emulated",
        overrides_help="Merged last into the CreateTrainingJob or CreateProcessingJob request.",
        secrets={"secretsmanager": "secretsmanager:NAME", "ssm": "ssm:NAME"},
        locating_settings=("region",),
        asked=ASKED,
        plan_formats=("aws-cli", "python"),
        extras={"sagemaker": ("boto3",), "sagemaker-sdk": ("sagemaker",)},
    )
    parts: ClassVar[Mapping[str, str]] = {
        "rules": f"{_HERE}.rules.request",
        "training_rules": " ".join(
            f"{_HERE}.rules.{name}" for name in ("machines", "distribution", "script", "data")
        ),
        "online": f"{_HERE}.service.online",
        "capacity": f"{_HERE}.service.service:CAPACITY",
        "table": f"{_HERE}.catalogue.shapes:TABLE",
        "forms": f"{_HERE}.plan:forms_of",
        "export": f"{_HERE}.export.exports:SageMakerExports",
        "data": f"{_HERE}.compile.places:data_place",
        "contents": f"{_HERE}.compile.machines:contents_before",
        "emulate": f"{_HERE}.emulate:compile_as_sagemaker",
        "sweep": f"{_HERE}.compile.sweep:compile_tuning",
        "tuner": f"{_HERE}.service.tuning:SageMakerTuner",
        "adopt": f"{_HERE}.adopt.scripts:SageMakerAdopter",
        "sent_files": f"{_HERE}.adopt.trainers:sent_files",
        "fetch": f"{_HERE}.service.tuning:fetch_original",
    }

    def account(
        self, settings: SageMaker, *, environ: Mapping[str, str], state_dir: Path, cwd: Path
    ) -> SageMakerAccount:
        from cloudtrain.machines.overlay import user_overlay

        return account_of(settings, environ)._replace(overlay=user_overlay(cwd) or None)

    def compile(self, job: AnyJob, settings: SageMaker, context: CompileContext) -> Plan:
        if isinstance(job, TrainingJob):
            from cloudtrain.targets.sagemaker.compile.training import compile_sagemaker

            return compile_sagemaker(job, settings, context)
        from cloudtrain.targets.sagemaker.compile.processing import compile_processing

        return compile_processing(job, settings, context)

    def service(
        self, *, environ: Mapping[str, str], state_dir: Path, pace: Pace | None = None
    ) -> SageMakerService:
        from cloudtrain.targets.sagemaker.service.service import SageMakerService

        return SageMakerService(environ, pace)

    def read(
        self,
        job: TrainingJob,
        settings: Any,
        account: Any,
        plan: Plan,
        processing: ProcessingJob | None = None,
    ) -> Reading:
        from cloudtrain.targets.sagemaker.reading import SageMakerReading

        return SageMakerReading(self.name, job, account, plan, processing)
