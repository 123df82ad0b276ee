"""A plan for Azure ML, which can be exported for Azure's own tools: as an object, YAML or code."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from cloudtrain.plans.document import visible
from cloudtrain.plans.plan import Plan

if TYPE_CHECKING:
    from cloudtrain.targets.azureml.settings import AccountRef


class AzureMLPlan(Plan):
    """A compiled job. `request` is the body of the PUT request that creates the job; every export is made from it.

    Azure's own tools can start the job only when `uploads` are in the workspace, such as the code and any environment
    made of an image. A `cloudtrain submit` of the same code uploads them.
    """

    @classmethod
    def of(cls, plan: Plan) -> AzureMLPlan:
        """Return a copy of the plan that can be converted to the formats of Azure's tools."""
        return cls(**{field.name: getattr(plan, field.name) for field in fields(Plan)})

    @property
    def outputs(self) -> dict[str, str]:
        """Map outputs to the addresses that the job will write to, without the keys (SAS) at their end."""
        from cloudtrain.targets.azureml.settings import AccountRef

        uris = places_of(self.request, self.run_name, AccountRef.parse(self.place).workspace_id)
        return {name: uri.partition("?")[0] for name, uri in uris.items()}

    def to_command(self) -> Any:
        """Return the job as a `command(...)` of azure-ai-ml. The SDK's client sends it as the body `request`:

            ml_client.jobs.create_or_update(plan.to_command())

        The client adds only its own properties about the git repository in the current folder.

        Raises:
            MissingExtra: the SDK is not installed.
            TargetError: the SDK cannot express a field of the request; the message names it.
        """
        from cloudtrain.targets.azureml.export import command_program, quiet
        from cloudtrain.targets.common.export import build

        program = command_program(self._job())
        with quiet():
            return build(program)[0]

    def to_python(self) -> str:
        """Return Python code that makes the `command(...)` and sends it with an `MLClient`. Needs no SDK.

        Raises:
            TargetError: the SDK cannot express a field of the request; the message names it.
        """
        from cloudtrain.targets.azureml.export import submit_program
        from cloudtrain.targets.common.export import python_code

        title = f"Job `{self.run_name}`, for the SDK of Azure ML: pip install azure-ai-ml azure-identity"
        if self.uploads:
            title += f"\n\n{self._needs}\n"
        return python_code(submit_program(self._job(), self._place), title=title)

    def to_yaml(self) -> str:
        """Return the job as YAML, from which `az ml job create --file` and `azure.ai.ml.load_job` make `request`.

        Raises:
            TargetError: the YAML cannot express a field of the request; the message names it.
        """
        from cloudtrain.targets.azureml.export import yaml_job

        return yaml_job(self._job(), self._place, remark=self._needs if self.uploads else "")

    def forms(self) -> dict[str, Callable[[], str]]:
        """Map the names of the export formats to functions that return the plan as a text in the format.

        `az-cli`: YAML for the az command line. `python`: code for azure-ai-ml.
        """
        return {"az-cli": self.to_yaml, "python": lambda: visible(self.to_python())}

    @property
    def _needs(self) -> str:
        things = " and ".join(f"the {upload.kind}" for upload in self.uploads)
        return f"Needs what `cloudtrain submit` uploads: {things}."

    @property
    def _place(self) -> AccountRef:
        from cloudtrain.targets.azureml.settings import AccountRef

        return AccountRef.parse(self.place)

    def _job(self) -> dict[str, Any]:
        from cloudtrain.targets.azureml.export import job_of

        return job_of(self.request, self.run_name)


# The addresses of a job's results: from the job's body, or the service's defaults.
#
# By default an output goes to `azureml/RUN/OUTPUT/` in the workspace's default datastore, which is
# `workspaceblobstore` if the workspace has not chosen another. Once the job has begun, the run history has the real
# address.

OWN = ("model", "checkpoint")
"""Outputs with their own top-level name among a run's results; the others are `outputs/NAME`."""

_SERVICES_OWN = "default"
_SHORT = re.compile(r"azureml://(?=datastores/)", re.IGNORECASE)


def places_of(body: Mapping[str, Any], run_name: str, workspace: str) -> dict[str, str]:
    """Map a job's results (`model`, `checkpoint`, `outputs/NAME`) to their addresses.

    A datastore's address includes the workspace, so it is also valid in other workspaces.

    Args:
        body: body of the PUT that creates the job, or of the answer that describes the job.
        workspace: the workspace's ARM id.
    """
    outputs = body["properties"].get("outputs") or {}
    named = {name: output for name, output in outputs.items() if name != _SERVICES_OWN and output}
    return {
        name if name in OWN else f"outputs/{name}": _long(output.get("uri") or default_place(run_name, name), workspace)
        for name, output in named.items()
    }


def default_place(run_name: str, output: str) -> str:
    """Return the default address of an output."""
    return f"azureml://datastores/workspaceblobstore/paths/azureml/{run_name}/{output}/"


def _long(uri: str, workspace: str) -> str:
    """Add the workspace's id to an address such as `azureml://datastores/...`."""
    scope = workspace.replace("/providers/Microsoft.MachineLearningServices", "").strip("/")
    return _SHORT.sub(lambda _: f"azureml://{scope}/", uri)
