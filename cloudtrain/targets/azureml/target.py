"""The target Azure Machine Learning, as data. Its functions and parts are imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cloudtrain.targets.azureml.settings import ASKED, AzureML, account_of
from cloudtrain.targets.contract import Target, TargetFacts

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob, ProcessingJob
    from cloudtrain.job.training import TrainingJob
    from cloudtrain.plans.plan import CompileContext, Plan
    from cloudtrain.rules.engine import Reading
    from cloudtrain.targets.azureml.service.service import AzureMLService
    from cloudtrain.targets.azureml.settings import AzureMLAccount
    from cloudtrain.targets.common.services import Pace


class AzureMLTarget(Target):
    """The target Azure Machine Learning. A run is a command job with the run's name."""

    name = "azureml"
    title = "Azure ML"
    prefix = "AZ"
    settings = AzureML
    order = 20
    facts: ClassVar[TargetFacts] = TargetFacts(
        mlflow_plugin=("azureml", "azureml-mlflow"),
        place_example="azureml:cifar:1",
        place_help="`azureml:name:version`, an `azureml://` datastore path, an `https://` blob "
        "address, or for inputs "
        "`./PATH` of this machine, which a submit uploads.",
        place_prefixes=("azureml:", "https://"),
        place_aliases=("azure", "path"),
        emulated_places="azureml://datastores/emulated/paths",
        environment_help="A registered Azure ML environment: `azureml:name:version` or an "
        "`azureml://registries/...` "
        "id.",
        overrides_help="Merged last into the Azure ML job body.",
        secrets={"keyvault": "keyvault:VAULT/NAME"},
        keeps_literals=True,
        locating_settings=("subscription_id", "resource_group", "workspace"),
        saved_folders=("outputs", "logs"),
        asked=ASKED,
        plan_formats=("az-cli", "python"),
        extras={
            "azureml": ("azure-identity", "azure-storage-blob"),
            "azureml-sdk": ("azure-ai-ml",),
        },
    )
    parts: ClassVar[Mapping[str, str]] = {
        "rules": "cloudtrain.targets.azureml.rules.account "
        "cloudtrain.targets.azureml.rules.request "
        "cloudtrain.targets.azureml.rules.distribution "
        "cloudtrain.targets.azureml.rules.data "
        "cloudtrain.targets.azureml.rules.container",
        "online": "cloudtrain.targets.azureml.service.online",
        "capacity": "cloudtrain.targets.azureml.service.status:CAPACITY",
        "table": "cloudtrain.targets.azureml.catalogue:TABLE",
        "forms": "cloudtrain.targets.azureml.export:forms_of",
        "export": "cloudtrain.targets.azureml.export:AzureMLExports",
        "data": "cloudtrain.targets.azureml.compile.places:data_place",
        "path": "cloudtrain.targets.azureml.compile.places:refuse_blob_name",
        "contents": "cloudtrain.targets.azureml.compile.places:contents_before",
        "emulate": "cloudtrain.targets.azureml.emulate:compile_as_azureml",
        "sweep": "cloudtrain.targets.azureml.compile.sweep:compile_azureml_sweep",
        "tuner": "cloudtrain.targets.azureml.service.sweeps:AzureMLTuner",
        "adopt": "cloudtrain.targets.azureml.adopt.requests:AzureMLAdopter",
        "sent_files": "cloudtrain.targets.azureml.adopt.code_files:sent_files",
        "fetch": "cloudtrain.targets.azureml.service.sweeps:fetch_original",
        "examine": "cloudtrain.targets.azureml.settings:examine",
    }

    def account(
        self, settings: AzureML, *, environ: Mapping[str, str], state_dir: Path, cwd: Path
    ) -> AzureMLAccount:
        from cloudtrain.machines.overlay import user_overlay

        account = account_of(settings, environ, cwd)
        return account._replace(overlay=user_overlay(cwd, self.name) or None)

    def compile(self, job: AnyJob, settings: AzureML, context: CompileContext) -> Plan:
        from cloudtrain.targets.azureml.compile.job import compile_azureml

        return compile_azureml(job, settings, context)

    def service(
        self, *, environ: Mapping[str, str], state_dir: Path, pace: Pace | None = None
    ) -> AzureMLService:
        from cloudtrain.targets.azureml.service.service import AzureMLService

        return AzureMLService(environ, pace)

    def read(
        self,
        job: TrainingJob,
        settings: Any,
        account: Any,
        plan: Plan,
        processing: ProcessingJob | None = None,
    ) -> Reading:
        from cloudtrain.targets.azureml.reading import AzureMLReading

        return AzureMLReading(self.name, job, account, plan, processing)
