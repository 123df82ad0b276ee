"""The Azure Machine Learning target. This module is pure; `service/` sends requests to Azure, and is imported when
first used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cloudtrain.targets.azureml.settings import AzureML
from cloudtrain.targets.contract import Target

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob, ProcessingJob
    from cloudtrain.job.sweep import Sweep
    from cloudtrain.job.training import TrainingJob
    from cloudtrain.machines.table import InstanceTable
    from cloudtrain.plans.plan import CompileContext, Plan
    from cloudtrain.rules.engine import Reading
    from cloudtrain.targets.adoption import Adopter, Draft, Original, StaticCall
    from cloudtrain.targets.azureml.service.service import AzureMLService
    from cloudtrain.targets.azureml.service.sweeps import AzureMLTuner
    from cloudtrain.targets.azureml.settings import AzureMLAccount
    from cloudtrain.targets.common.services import Pace


_RULES = "cloudtrain.targets.azureml.rules"


class AzureMLTarget(Target):
    """The Azure Machine Learning target. A run is a command job with the run's name."""

    name = "azureml"
    title = "Azure ML"
    order = 20
    settings_model = AzureML
    rule_prefix = "AZ"
    rule_modules = tuple(f"{_RULES}.{name}" for name in ("account", "request", "distribution", "data", "container"))
    online_rule_modules = ("cloudtrain.targets.azureml.service.online",)
    extras: ClassVar = {"azureml": ("azure-identity", "azure-storage-blob"), "azureml-sdk": ("azure-ai-ml",)}
    plan_formats = ("az-cli", "python")
    locating_settings = ("subscription_id", "resource_group", "workspace")
    place_example = "azureml:cifar:1"
    place_help = (
        "`azureml:name:version`, an `azureml://` datastore path, an `https://` blob address, or for inputs `./PATH` of "
        "this machine, which a submit uploads."
    )
    uploads_data = True
    place_prefixes = ("azureml:", "https://")
    place_aliases = ("azure", "path")
    environment_help = "A registered Azure ML environment: `azureml:name:version` or an `azureml://registries/...` id."
    overrides_help = "Merged last into the Azure ML job body."
    secret_places: ClassVar = {"keyvault": "keyvault:VAULT/NAME"}
    keeps_literals = True
    can_emulate = True
    has_tuner = True
    emulated_places = "azureml://datastores/emulated/paths"
    parts: ClassVar = {"export": "cloudtrain.targets.azureml.export:AzureMLExports"}

    def account(self, settings: AzureML, *, environ: Mapping[str, str], state_dir: Path, cwd: Path) -> AzureMLAccount:
        """Return the workspace settings found on this machine, with the user's corrections of the catalogue."""
        from cloudtrain.machines.overlay import user_overlay
        from cloudtrain.targets.azureml.settings import account_of

        return account_of(settings, environ, cwd)._replace(overlay=user_overlay(cwd, self.name) or None)

    def compile(self, job: AnyJob, settings: AzureML, context: CompileContext) -> Plan:
        """Return the plan of a job on Azure ML, which can also be exported for Azure's SDK and command line."""
        from cloudtrain.targets.azureml.compile.job import compile_azureml

        return compile_azureml(job, settings, context)

    def compile_sweep(self, sweep: Sweep, settings: AzureML, context: CompileContext) -> Plan:
        """Return the plan of a sweep as a sweep job."""
        from cloudtrain.targets.azureml.compile.sweep import compile_azureml_sweep

        return compile_azureml_sweep(sweep, settings, context)

    def data_place(
        self, settings: AzureML, account: AzureMLAccount, sha256: str, name: str, *, is_file: bool
    ) -> tuple[str, str]:
        """Return the address of the folder to upload local data to, and the address of the data in it.

        The folder is in the workspace's own datastore. The SDK would choose the same addresses.
        """
        from cloudtrain.targets.azureml.compile.places import data_place

        return data_place(sha256, name, is_file=is_file)

    def tuner(self, *, environ: Mapping[str, str], state_dir: Path, pace: Pace | None = None) -> AzureMLTuner:
        """Return Azure ML's own tuner, which creates sweep jobs over REST."""
        from cloudtrain.targets.azureml.service.sweeps import AzureMLTuner

        return AzureMLTuner(environ, pace)

    def service(self, *, environ: Mapping[str, str], state_dir: Path, pace: Pace | None = None) -> AzureMLService:
        """Return Azure ML's service, which uses REST."""
        from cloudtrain.targets.azureml.service.service import AzureMLService

        return AzureMLService(environ, pace)

    @property
    def instance_table(self) -> InstanceTable:
        """Return Azure's VM sizes."""
        from cloudtrain.targets.azureml.catalogue import TABLE

        return TABLE

    def read(
        self, job: TrainingJob, settings: Any, account: Any, plan: Plan, processing: ProcessingJob | None = None
    ) -> Reading:
        """Return what the body of a command job says."""
        from cloudtrain.targets.azureml.reading import AzureMLReading

        return AzureMLReading(self.name, job, account, plan, processing)

    def refuse_path(self, path: str) -> str | None:
        """Explain why a file cannot be part of a bundle; None if it can. Every file must have a valid blob name."""

        return refuse_blob_name(path)

    def emulate(self, job: TrainingJob, settings: Any, context: CompileContext) -> Plan:
        """Return the plan of a local run with the paths, variables and command lines of Azure ML's instances."""
        from cloudtrain.targets.azureml.emulate import compile_as_azureml

        return compile_as_azureml(job, settings, context)

    def draft_of_calls(self, calls: Sequence[StaticCall]) -> tuple[Draft, dict[str, str]] | None:
        """Draft a job from a script's calls of azure-ai-ml; return None if the calls define no job.

        The second part of the result maps each field whose value is not a constant in the script to its expression.
        """
        from cloudtrain.targets.azureml.adopt.static import draft_of_calls

        return draft_of_calls(calls)

    def adopter(self) -> Adopter:
        """Return the adopter, which reads bodies of command jobs."""
        from cloudtrain.targets.azureml.adopt.requests import AzureMLAdopter

        return AzureMLAdopter()

    def fetch_original(self, place: str, name: str, settings: AzureML, environ: Mapping[str, str]) -> Original:
        """Fetch a command job from a workspace over REST."""
        from cloudtrain.targets.azureml.service.client import Client
        from cloudtrain.targets.azureml.service.sweeps import fetch_original, workspace_of
        from cloudtrain.targets.azureml.settings import AccountRef, account_of

        account = account_of(settings, environ, Path.cwd())
        where = workspace_of(place, AccountRef.parse(account.place), account.missing)
        return fetch_original(Client(where, environ), name)

    def examine(self, settings: AzureML, account: Any) -> str:
        """Describe the configured workspace and the file that names it."""
        if account.missing:
            return "no workspace is configured"
        source = f", from {account.files[0]}" if account.files else ""
        return f"workspace {account.workspace}{source}"


# Check whether a bundle's files can be stored as blobs under the same names.

_LONGEST_BLOB, _LONGEST_PART = 1000, 254
"""Longest name of a blob, and of each part of it, in characters.

Azure allows 1,024, and our own folder needs some of them.
"""


def refuse_blob_name(path: str) -> str | None:
    """Explain why a file cannot be stored as a blob; None if it can. Blob names are text without control characters."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return "whose name is not UTF-8"
    if any(letter < " " or "\x7f" <= letter <= "\x9f" or letter in "\ufffe\uffff" for letter in path):
        return "whose name has a control character in it"
    if any(part.endswith(".") for part in path.split("/")):
        return "whose name ends with a dot"
    if len(path) > _LONGEST_BLOB or any(len(part) > _LONGEST_PART for part in path.split("/")):
        return "whose path is too long"
    return None
