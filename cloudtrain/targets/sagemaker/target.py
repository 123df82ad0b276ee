"""The target Amazon SageMaker. This module is pure; `service/` sends requests to AWS, and is imported on first use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cloudtrain.job.training import TrainingJob
from cloudtrain.targets.contract import Target
from cloudtrain.targets.sagemaker.settings import SageMaker

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob, ProcessingJob
    from cloudtrain.job.sweep import Sweep
    from cloudtrain.machines.table import InstanceTable
    from cloudtrain.plans.plan import CompileContext, Plan
    from cloudtrain.rules.engine import Reading
    from cloudtrain.targets.adoption import Adopter, Draft, Original, StaticCall
    from cloudtrain.targets.common.services import Pace
    from cloudtrain.targets.sagemaker.service.service import SageMakerService
    from cloudtrain.targets.sagemaker.service.tuning import SageMakerTuner
    from cloudtrain.targets.sagemaker.settings import SageMakerAccount


_RULES = "cloudtrain.targets.sagemaker.rules"


def _rules(*names: str) -> tuple[str, ...]:
    return tuple(f"{_RULES}.{name}" for name in names)


class SageMakerTarget(Target):
    """The target Amazon SageMaker. A run is a training job or processing job with the run's name."""

    name = "sagemaker"
    title = "SageMaker"
    order = 10
    settings_model = SageMaker
    rule_prefix = "SM"
    only_training_rule_modules = _rules("machines", "distribution", "script", "data")
    rule_modules = (*_rules("request"), *only_training_rule_modules)
    online_rule_modules = ("cloudtrain.targets.sagemaker.service.online",)
    extras: ClassVar = {"sagemaker": ("boto3",), "sagemaker-sdk": ("sagemaker",)}
    plan_formats = ("aws-cli", "python")
    locating_settings = ("region",)
    place_example = "s3://bucket/train"
    place_help = (
        "An `s3://` URI; for inputs also `fsx://FILE_SYSTEM_ID/PATH` or `efs://FILE_SYSTEM_ID/PATH`, or `./PATH` of "
        "this machine, which a submit uploads."
    )
    uploads_data = True
    place_prefixes = ("s3://",)
    place_aliases = ("s3", "s3_uri", "uri", "s3_data")
    overrides_help = "Merged last into the CreateTrainingJob or CreateProcessingJob request."
    secret_places: ClassVar = {"secretsmanager": "secretsmanager:NAME", "ssm": "ssm:NAME"}
    can_emulate = True
    has_tuner = True
    emulated_places = "s3://emulated"
    parts: ClassVar = {"export": "cloudtrain.targets.sagemaker.export.trainer:SageMakerExports"}

    def account(
        self, settings: SageMaker, *, environ: Mapping[str, str], state_dir: Path, cwd: Path
    ) -> SageMakerAccount:
        """Return the account settings that can be read on this machine, and the user's catalogue corrections."""
        from cloudtrain.machines.overlay import user_overlay
        from cloudtrain.targets.sagemaker.settings import account_of

        return account_of(settings, environ)._replace(overlay=user_overlay(cwd) or None)

    def compile(self, job: AnyJob, settings: SageMaker, context: CompileContext) -> Plan:
        """Return the plan of a job on SageMaker, which can also be exported to the SageMaker SDK."""
        if isinstance(job, TrainingJob):
            from cloudtrain.targets.sagemaker.compile.training import compile_sagemaker

            return compile_sagemaker(job, settings, context)
        from cloudtrain.targets.sagemaker.compile.processing import compile_processing

        return compile_processing(job, settings, context)

    def compile_sweep(self, sweep: Sweep, settings: SageMaker, context: CompileContext) -> Plan:
        """Return the plan of a sweep as a tuning job."""
        from cloudtrain.targets.sagemaker.compile.sweep import compile_tuning

        return compile_tuning(sweep, settings, context)

    def data_place(
        self, settings: SageMaker, account: SageMakerAccount, sha256: str, name: str, *, is_file: bool
    ) -> tuple[str, str]:
        """Return the S3 folder for data of this machine, and the address of the uploaded file or folder.

        The address of a folder is the S3 folder itself.
        """
        from cloudtrain.targets.sagemaker.compile.places import data_uri

        folder = data_uri(settings, account, sha256)
        return folder, f"{folder}/{name}" if is_file else folder

    def tuner(self, *, environ: Mapping[str, str], state_dir: Path, pace: Pace | None = None) -> SageMakerTuner:
        """Return the tuner, which creates tuning jobs through boto3."""
        from cloudtrain.targets.sagemaker.service.tuning import SageMakerTuner

        return SageMakerTuner(environ, pace)

    def service(self, *, environ: Mapping[str, str], state_dir: Path, pace: Pace | None = None) -> SageMakerService:
        """Return the object that submits and manages runs through boto3."""
        from cloudtrain.targets.sagemaker.service.service import SageMakerService

        return SageMakerService(environ, pace)

    @property
    def instance_table(self) -> InstanceTable:
        """Return the table of SageMaker's training instance types."""
        from cloudtrain.targets.sagemaker.catalogue.shapes import TABLE

        return TABLE

    def read(
        self, job: TrainingJob, settings: Any, account: Any, plan: Plan, processing: ProcessingJob | None = None
    ) -> Reading:
        """Return what a CreateTrainingJob or CreateProcessingJob request says."""
        from cloudtrain.targets.sagemaker.reading import SageMakerReading

        return SageMakerReading(self.name, job, account, plan, processing)

    def emulate(self, job: TrainingJob, settings: Any, context: CompileContext) -> Plan:
        """Return a local plan that runs the job as in SageMaker's containers: paths, files, variables and argv."""
        from cloudtrain.targets.sagemaker.emulate import compile_as_sagemaker

        return compile_as_sagemaker(job, settings, context)

    def fetch_original(self, place: str, name: str, settings: Any, environ: Mapping[str, str]) -> Original:
        """Return a training job of the account for `cloudtrain adopt`, read through boto3."""
        from cloudtrain.targets.sagemaker.service.clients import Clients
        from cloudtrain.targets.sagemaker.service.tuning import fetch_original
        from cloudtrain.targets.sagemaker.settings import AccountRef

        return fetch_original(Clients(AccountRef.parse(place), environ), name)

    def draft_of_calls(self, calls: Sequence[StaticCall]) -> tuple[Draft, dict[str, str]] | None:
        """Return a draft of the first job that a script creates, and the values that cannot be read from its text.

        `calls` are the script's calls. Returns None if none of them creates a job with the SDK or boto3.
        """
        from cloudtrain.targets.sagemaker.adopt.scripts import draft_of_calls

        return draft_of_calls(calls)

    def adopter(self) -> Adopter:
        """Return the adopter, which turns CreateTrainingJob requests into jobs."""
        from cloudtrain.targets.sagemaker.adopt.scripts import SageMakerAdopter

        return SageMakerAdopter()
