"""A plan for Azure ML, which can be exported for Azure's own tools: as an object, YAML or code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from cloudtrain.core.plan import Plan
from cloudtrain.render.escape import visible

if TYPE_CHECKING:
    from cloudtrain.targets.azureml.account_ref import AccountRef


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
        from cloudtrain.targets.azureml.account_ref import AccountRef
        from cloudtrain.targets.azureml.outputs import places_of

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
        from cloudtrain.targets.azureml.export.program import command_program
        from cloudtrain.targets.azureml.export.quiet import quiet
        from cloudtrain.targets.common.export.calls import build

        program = command_program(self._job())
        with quiet():
            return build(program)[0]

    def to_python(self) -> str:
        """Return Python code that makes the `command(...)` and sends it with an `MLClient`. Needs no SDK.

        Raises:
            TargetError: the SDK cannot express a field of the request; the message names it.
        """
        from cloudtrain.targets.azureml.export.program import submit_program
        from cloudtrain.targets.common.export.python_code import python_code

        title = f"Job `{self.run_name}`, for the SDK of Azure ML: pip install azure-ai-ml azure-identity"
        if self.uploads:
            title += f"\n\n{self._needs}\n"
        return python_code(submit_program(self._job(), self._place), title=title)

    def to_yaml(self) -> str:
        """Return the job as YAML, from which `az ml job create --file` and `azure.ai.ml.load_job` make `request`.

        Raises:
            TargetError: the YAML cannot express a field of the request; the message names it.
        """
        from cloudtrain.targets.azureml.export.yaml_job import yaml_job

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
        from cloudtrain.targets.azureml.account_ref import AccountRef

        return AccountRef.parse(self.place)

    def _job(self) -> dict[str, Any]:
        from cloudtrain.targets.azureml.export.job import job_of

        return job_of(self.request, self.run_name)
