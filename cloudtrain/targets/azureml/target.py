"""The target Azure Machine Learning, as data. Its functions and parts are imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cloudtrain.targets.azureml.settings import AzureML, account_of
from cloudtrain.targets.contract import Target, TargetFacts

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob, ProcessingJob
    from cloudtrain.job.training import TrainingJob
    from cloudtrain.plans.plan import CompileContext, Plan
    from cloudtrain.rules.engine import Reading
    from cloudtrain.targets.azureml.service.service import AzureMLService
    from cloudtrain.targets.azureml.settings import AzureMLAccount
    from cloudtrain.targets.common.services import Pace

_HERE = "cloudtrain.targets.azureml"


class AzureMLTarget(Target):
    """The target Azure Machine Learning. A run is a command job with the run's name."""

    name = "azureml"
    title = "Azure ML"
    prefix = "AZ"
    settings = AzureML
    order = 20
    facts = TargetFacts(
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
        plan_formats=("az-cli", "python"),
        extras={
            "azureml": ("azure-identity", "azure-storage-blob"),
            "azureml-sdk": ("azure-ai-ml",),
        },
    )
    parts: ClassVar = {
        "rules": f"{_HERE}.rules.account {_HERE}.rules.request {_HERE}.rules.distribution "
        f"{_HERE}.rules.data {_HERE}.rules.container",
        "online": f"{_HERE}.service.online",
        "table": f"{_HERE}.catalogue:TABLE",
        "forms": f"{_HERE}.export:forms_of",
        "export": f"{_HERE}.export:AzureMLExports",
        "data": f"{_HERE}.compile.places:data_place",
        "path": f"{_HERE}.compile.places:refuse_blob_name",
        "contents": f"{_HERE}.compile.places:contents_before",
        "emulate": f"{_HERE}.emulate:compile_as_azureml",
        "sweep": f"{_HERE}.compile.sweep:compile_azureml_sweep",
        "tuner": f"{_HERE}.service.sweeps:AzureMLTuner",
        "adopt": f"{_HERE}.adopt.requests:AzureMLAdopter",
        "fetch": f"{_HERE}.service.sweeps:fetch_original",
        "examine": f"{_HERE}.settings:examine",
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
