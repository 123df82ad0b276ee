"""Turn a plan's request back into the formats of Azure's own tools.

Only `AzureMLExports.to_command` needs the SDK; everything else is pure. `tests/parity` runs the
real SDK and compares its requests.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cloudtrain.documents.document import load_table
from cloudtrain.errors import TargetError, quoted
from cloudtrain.plans.document import shell_word, visible, visible_yaml
from cloudtrain.plans.plan import Plan
from cloudtrain.targets.azureml.fields import (
    JsonMapping,
    JsonObject,
    tool_codec,
)
from cloudtrain.targets.azureml.service.clouds import BUILT_IN, kind_of
from cloudtrain.targets.azureml.settings import AzureMLAccount
from cloudtrain.targets.common.export import Call, Program, Ref, build, python_code
from cloudtrain.targets.common.fields import Inexpressible

_TABLES = load_table(__file__, "export.toml")


# The job with the fields that azure-ai-ml's YAML and Python objects share. If azure-ai-ml cannot
# send a body, cloudtrain names the fields that cause it.


def job_of(request: JsonMapping, run_name: str) -> JsonObject:
    """Return the job with the fields of `command(...)` and of the YAML schema, such as `compute`
    and `limits.timeout`.

    Raises:
        TargetError: azure-ai-ml cannot express a field, or would send another command.
    """
    try:
        fields = tool_codec().decode(request["properties"])
    except Inexpressible as error:
        raise _refusal(error.paths) from None

    changed = _changed_references(fields["command"], fields.get("inputs", {}))
    if changed:
        raise _refusal(changed)
    return {"name": run_name, **fields}


def _refusal(paths: Iterable[str], tool: str = "the SDK of Azure ML") -> TargetError:
    names = quoted(paths)
    hint = (
        "send the body itself: `cloudtrain submit`, or `az rest --method put` with the "
        "output of `--format request`"
    )
    return TargetError(f"{tool} cannot express {names}", hint=hint, code="CT904")


_OLD_REFERENCE = r"(?<!\{)\{(?:inputs|outputs|search_space)\.[^}]*\}(?!\})"
"""Matches texts that the tool rewrites into a reference before it sends a command."""

_REFERENCE = r"\$\{\{inputs\.([\w.-]+)\}\}"
"""Matches references that the tool looks up among the inputs, and refuses if they name none."""


def _changed_references(command: str, inputs: JsonMapping) -> list[str]:
    """Return the references that the tool does not send as they are: those in the old form, which
    it rewrites, and those that name no input, which it refuses."""
    references = re.findall(_OLD_REFERENCE, command)
    for name in re.findall(_REFERENCE, command):
        if name not in inputs:
            references.append(f"${{{{inputs.{name}}}}}")
    return [f"{reference} in command" for reference in dict.fromkeys(references)]


# The job as calls of azure-ai-ml: `command(...)`, and the client that sends it.

EXTRA = "azureml-sdk"

RESOURCES = ("instance_count", "instance_type", "locations", "docker_args", "shm_size")
"""Resources that are arguments of `command`."""


def _command(job: JsonMapping) -> Call:
    """Return the call `command(...)` for the fields of `job_of`."""
    arguments: JsonObject = {}
    for name, value in job.items():
        if name in ("limits", "queue_settings"):  # their fields are arguments themselves
            arguments |= value
        elif name == "resources":
            arguments |= _resources(value)
        elif name in ("distribution", "identity"):
            arguments[name] = _object(value)
        elif name in _ENTRIES:
            call = _ENTRIES[name]
            arguments[name] = {key: call(item) for key, item in value.items()}
        else:
            arguments[name] = value
    return Call("azure.ai.ml.command", arguments)


def _resources(resources: JsonObject) -> JsonObject:
    """Return the arguments of `command` for the resources: their fields, or one object if `command`
    lacks one of them."""
    if resources and resources.keys() <= set(RESOURCES):
        return resources
    return {"resources": Call("azure.ai.ml.entities.JobResourceConfiguration", dict(resources))}


def _input(item: Any) -> Any:
    return Call("azure.ai.ml.Input", dict(item)) if isinstance(item, dict) else item


def _output(item: JsonMapping) -> Call:
    return Call("azure.ai.ml.Output", dict(item))


def _object(value: JsonMapping) -> Call:
    """Return the call of the class that the field `type` means."""
    arguments = dict(value)
    kind = arguments.pop("type")
    return Call(_TABLES["classes"][kind], arguments)


_ENTRIES: Mapping[str, Callable[[Any], Any]] = {
    "services": _object,
    "inputs": _input,
    "outputs": _output,
}


def _credential(place: AzureMLAccount) -> Call:
    """Outside Azure's public cloud, the call of the credential names the login service of the
    cloud."""
    kind = kind_of(place.credential)
    arguments: JsonObject = {}
    cloud = BUILT_IN.get(place.cloud or "")
    if kind.takes_authority and cloud is not None and place.cloud != "AzureCloud":
        arguments["authority"] = cloud.login
    return Call(f"azure.identity.{kind.name}", arguments)


_REMARKS = "azure.ai.ml._utils._experimental"
"""The logger of azure-ai-ml (1.35.2) that calls half of its classes experimental, even on
import."""


# The job as YAML for `az ml job create --file` and `azure.ai.ml.load_job`.
#
# azure-ai-ml's own YAML output (1.35.2) is not used: it loses writable inputs, addresses outside
# datastores, string values of inputs, lists of docker arguments, and environments. azure-ai-ml
# reads this module's YAML without a loss.

SCHEMA = "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json"

MODES = {"mltable": ("eval_mount", "eval_download")}
"""Maps each type of input to the only modes that the schema accepts for it."""

_EVERY_MODE = ("ro_mount", "download", "direct")


def yaml_job(job: JsonMapping, place: AzureMLAccount, *, remark: str = "") -> str:
    """Return `job`, the result of `job_of`, as YAML, below the command that sends it to `place`,
    and the `remark`. The ids in `job` get the prefix that YAML needs."""
    document = {"$schema": SCHEMA, "type": "command", **job}
    for name in ("code", "environment", "compute"):
        if name in job:
            document[name] = _yaml_job_id(job[name])

    wrong: list[str] = []
    for name, item in job.get("inputs", {}).items():
        if isinstance(item, dict):
            own_modes = MODES.get(item["type"], ())
            if item.get("mode", "direct") not in (*_EVERY_MODE, *own_modes):
                wrong.append(f"inputs.{name}.mode")
            item["path"] = _yaml_job_id(item["path"])
    if wrong:
        raise _refusal(wrong, "the YAML of Azure ML")

    options = {
        "--subscription": place.subscription_id,
        "--resource-group": place.resource_group,
        "--workspace-name": place.workspace,
    }
    words = " ".join(f"{option} {shell_word(value)}" for option, value in options.items())
    head = f"# az ml job create --file job.yml {words}\n"
    if remark:
        head += f"# {remark}\n"
    return head + _dump(document)


def _yaml_job_id(reference: str) -> str:
    """In YAML, ids of Azure Resource Manager and labels begin with `azureml:`. Anything else stays
    unchanged: a URI, a short name that already has this prefix, or `serverless`."""
    is_label = reference.endswith("@latest") and ":" not in reference
    if reference.startswith("/subscriptions/") or is_label:
        return f"azureml:{reference}"
    return reference


def _dump(document: JsonMapping) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the base's
            return True

    Dumper.add_representer(str, _scalar)
    text: str = yaml.dump(
        document, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=float("inf")
    )
    return visible_yaml(text)


def _scalar(dumper: Any, text: str) -> Any:
    """Newlines stay newlines. Other characters that YAML takes for line ends, and invisible
    characters, need double quotes, because only double quotes can escape them."""
    style = None
    if visible_yaml(text) != text:
        style = '"'
    elif "\n" in text:
        style = "|"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


# The exports of a plan: the SDK's object, code and YAML.


def forms_of(plan: Plan) -> dict[str, Callable[[], str]]:
    """`az-cli`: YAML for the az command line. `python`: code for azure-ai-ml."""
    exports = AzureMLExports.of(plan)
    if exports is None:
        return {}
    return {"az-cli": exports.to_yaml, "python": lambda: visible(exports.to_python())}


@dataclass(frozen=True)
class AzureMLExports:
    """Exports a plan to Azure's own tools. Everything is made from `plan.request`, the body that
    creates the job. Azure's own tools can start the job only when `plan.uploads` are in the
    workspace, such as the code and any environment made of an image. A `cloudtrain submit` of the
    same code uploads them."""

    _plan: Plan

    @classmethod
    def of(cls, plan: Plan) -> AzureMLExports | None:
        """Return the exports of a plan; None if it is a sweep."""
        properties = plan.request.get("properties")
        if properties is None or "searchSpace" in properties:
            return None
        return cls(plan)

    def to_command(self) -> object:
        """Return the job as a `command(...)` of azure-ai-ml. The SDK's client sends it as the body
        `request`:

            ml_client.jobs.create_or_update(plan.to_command())

        The client adds only its own properties about the git repository in the current folder.

        Raises:
            MissingExtra: the SDK is not installed.
            TargetError: the SDK cannot express a field of the request; the message names it.
        """
        program = Program({"job": _command(self._job())}, "", {}, EXTRA)
        # Remarks about experimental classes are no concern of the user's.
        logger = logging.getLogger(_REMARKS)
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            return build(program)[0]
        finally:
            logger.setLevel(level)

    def to_python(self) -> str:
        """Return Python code that makes the `command(...)` and sends it with an `MLClient`. Needs
        no SDK.

        Raises:
            TargetError: the SDK cannot express a field of the request; the message names it.
        """
        title = (
            f"Job `{self._plan.run_name}`, for the SDK of Azure ML: pip install azure-ai-ml "
            "azure-identity"
        )
        if self._plan.uploads:
            title += f"\n\n{self._needs}\n"

        place = self._place
        arguments = {
            "credential": _credential(place),
            "subscription_id": place.subscription_id,
            "resource_group_name": place.resource_group,
            "workspace_name": place.workspace,
        }
        if place.cloud:
            arguments["cloud"] = place.cloud
        client = Call("azure.ai.ml.MLClient", arguments)
        variables = {"job": _command(self._job()), "ml_client": client}
        program = Program(variables, "jobs.create_or_update", {"job": Ref("job")}, EXTRA)
        return python_code(program, title=title)

    def to_yaml(self) -> str:
        """Return the job as YAML, from which `az ml job create --file` and `azure.ai.ml.load_job`
        make `request`.

        Raises:
            TargetError: the YAML cannot express a field of the request; the message names it.
        """
        remark = self._needs if self._plan.uploads else ""
        return yaml_job(self._job(), self._place, remark=remark)

    @property
    def _needs(self) -> str:
        """The sentence that names the uploads which the job needs."""
        things = " and ".join(f"the {upload.kind}" for upload in self._plan.uploads)
        return f"Needs what `cloudtrain submit` uploads: {things}."

    @property
    def _place(self) -> AzureMLAccount:
        return AzureMLAccount.parse(self._plan.place)

    def _job(self) -> JsonObject:
        return job_of(self._plan.request, self._plan.run_name)
