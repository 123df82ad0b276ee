"""Turn a plan's request back into the formats of Azure's own tools.

Only `AzureMLExports.to_command` needs the SDK; everything else is pure. `tests/parity` runs the
real SDK and compares its requests.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from cloudtrain.documents.document import load_toml
from cloudtrain.errors import TargetError
from cloudtrain.plans.document import shell_word, visible, visible_yaml
from cloudtrain.plans.plan import Plan
from cloudtrain.targets.azureml.compile.job import PRIORITIES, SERVICES
from cloudtrain.targets.azureml.parts import camel, duration_seconds, duration_text, parse_label
from cloudtrain.targets.azureml.service.clouds import BUILT_IN, kind_of
from cloudtrain.targets.azureml.settings import AzureMLAccount
from cloudtrain.targets.common.export import Call, Program, Ref, build, python_code

# Convert a body's values into another tool's terms. Values that the tool cannot express are always
# reported.

Convert = Callable[[Any], Any]
Table = Mapping[str, tuple[str, Convert]]
"""Maps fields of the body to the tool's name and a converter of the value. `""`: the tool writes
the field itself."""


class Wordless(Exception):
    """The tool cannot express some parts of a value. `paths` has their dotted paths; `""` is the
    value itself."""

    def __init__(self, *paths: str) -> None:
        super().__init__(*paths)
        self.paths = paths


def only(fits: Callable[[Any], bool], convert: Convert = lambda value: value) -> Convert:
    """Convert the values that fit, and refuse any other."""

    def checked(value: Any) -> Any:
        if not fits(value):
            raise Wordless("")
        return convert(value)

    return checked


text, count = only(lambda value: type(value) is str), only(lambda value: type(value) is int)
flag, mapping = only(lambda value: type(value) is bool), only(lambda value: type(value) is dict)
texts = only(lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value))


def part(
    table: Table, *, always: Collection[str] = (), others: Convert = only(lambda _: False)
) -> Convert:
    """Convert a mapping as `table` says, and fields outside it by `others`, which refuses them by
    default. A mapping without a field in `always`, which the tool would add, is refused too."""

    def convert(value: Any) -> dict[str, Any]:
        fields = mapping(value)
        result: dict[str, Any] = {}
        wordless = [f"{name} left out" for name in always if name not in fields]
        for name, inner in fields.items():
            word, how = table.get(name, (name, others))
            try:
                item = how(inner)
            except Wordless as error:
                wordless += [f"{name}.{path}" if path else name for path in error.paths]
            else:
                result |= {word: item} if word else {}
        if wordless:
            raise Wordless(*wordless)
        return result

    return convert


def each(how: Convert) -> Convert:
    """Convert every value of a mapping."""
    return part({}, others=how)


def kinds(field: str, converters: Mapping[str, Convert]) -> Convert:
    """The value of the field `field` selects one of `converters` for the rest of a mapping."""

    def convert(value: Any) -> Any:
        kind = mapping(value).get(field)
        if not isinstance(kind, str) or kind not in converters:
            raise Wordless(field)
        return converters[kind]({name: inner for name, inner in value.items() if name != field})

    return convert


def not_empty(how: Convert) -> Convert:
    """Refuse an empty mapping, because the tool would leave it out."""
    return only(lambda value: value != {}, how)


def one_of(table: Mapping[Any, str]) -> Convert:
    """Return a function that looks up the tool's name of a value in `table`. Other values are
    refused."""
    return only(
        lambda value: not isinstance(value, bool | dict | list) and value in table,
        table.__getitem__,
    )


def constant(expected_value: object) -> Convert:
    return only(lambda value: value == expected_value and type(value) is type(expected_value))


# Convert the body of a command job to the fields that azure-ai-ml's YAML and Python objects share.
#
# If azure-ai-ml cannot send a body, cloudtrain names the fields that cause it. All facts about
# azure-ai-ml are those of version 1.35.2.

ALWAYS = (
    "displayName", "experimentName", "command", "environmentId", "inputs", "outputs",
    "environmentVariables",
    "properties", "tags", "isArchived",
)  # fmt: skip
"""Fields that the tool requires, or always sends because it fills in missing ones."""

_WRITTEN_EMPTY = ("inputs", "outputs", "environment_variables", "properties", "tags")

_TABLES = load_toml(Path(__file__).with_name("export.toml").read_text("utf-8"))

INPUT_MODES: dict[str, str] = _TABLES["input_modes"]
_PRIORITY_NAMES = {number: name for name, number in PRIORITIES.items()}

SERVICE_SETTINGS = {
    "ssh": ("sshPublicKeys", "ssh_public_keys"),
    "tensor_board": ("logDir", "log_dir"),
}
"""Maps each type of service to the only property for which the tool has a separate name."""

_DATA = ("uri_file", "uri_folder", "mltable", "mlflow_model", "custom_model", "triton_model")


def job_of(request: Mapping[str, Any], run_name: str) -> dict[str, Any]:
    """Return the job with the fields of `command(...)` and of the YAML schema, such as `compute`
    and `limits.timeout`. Inputs that are plain values become strings. Empty mappings that
    azure-ai-ml adds itself are left out."""
    try:
        fields = _JOB(request["properties"])
        _check_command(fields["command"], fields["inputs"])
    except Wordless as error:
        raise _refusal(error.paths) from None
    return {"name": run_name} | {
        name: value for name, value in fields.items() if value != {} or name not in _WRITTEN_EMPTY
    }


def _refusal(paths: Iterable[str], tool: str = "the SDK of Azure ML") -> TargetError:
    names = ", ".join(f"`{path}`" for path in paths)
    hint = (
        "send the body itself: `cloudtrain submit`, or `az rest --method put` with the "
        "output of `--format request`"
    )
    return TargetError(f"{tool} cannot express {names}", hint=hint, code="CT904")


def write_label(value: Any) -> str:
    """Shorten an id with the label `latest` to `mine@latest`; return any other id or address
    unchanged."""
    label = parse_label(text(value))
    return f"{label.name}@latest" if label else str(value)


_id = only(
    lambda value: text(value).startswith(("/subscriptions/", "azureml://", "azureml:AzureML-")),
    write_label,
)
"""azure-ai-ml sends complete ids and short names of curated environments unchanged, and resolves
the label for an asset's newest version as `cloudtrain submit` does. For other texts, it would look
something up or upload something before it sends the job."""

# `local` would start the job on the user's own machine
_compute = only(lambda value: text(value) not in ("", "local"))


def _seconds(value: Any) -> int:
    """azure-ai-ml would write some durations in another way."""
    seconds = duration_seconds(text(value))
    if not seconds or duration_text(seconds) != value:
        raise Wordless("")
    return seconds


def _resources(value: Any) -> dict[str, Any]:
    resources: dict[str, Any] = _RESOURCES(value)
    lost = [name for name in ("locations", "maxInstanceCount") if name in value]
    if "dockerArgsList" in value and lost:
        raise Wordless(*(f"{name} beside dockerArgsList" for name in lost))
    names = [
        name
        for name in value["properties"]
        if _TABLES["renamed_resources"].get(name.lower(), name) != name
    ]
    if names:
        raise Wordless(*(f"properties.{name}" for name in names))
    if not resources["properties"]:
        del resources["properties"]
    return resources


def _in_snake_case(how: Convert, *names: str) -> dict[str, tuple[str, Convert]]:
    """Return the rows of fields whose name the tool writes in snake case."""
    return {camel(name): (name, how) for name in names}


_RESOURCES = part(
    {
        **_in_snake_case(count, "instance_count", "max_instance_count"),
        **_in_snake_case(text, "instance_type", "shm_size", "docker_args"),
        "locations": ("locations", texts),
        "dockerArgsList": ("docker_args", texts),
        "properties": ("properties", mapping),
    },
    always=("properties",),
)


def _add_type(kind: str, convert: Convert) -> Convert:
    return lambda value: {"type": kind, **convert(value)}


_PROCESSES = part(_in_snake_case(count, "process_count_per_instance"))
_SERVERS = part(
    _in_snake_case(count, "parameter_server_count", "worker_count"),
    always=("parameterServerCount",),
)
_RAY = part(
    {
        **_in_snake_case(count, "port", "dashboard_port"),
        **_in_snake_case(
            text, "address", "head_node_additional_args", "worker_node_additional_args"
        ),
        "includeDashboard": ("include_dashboard", flag),
    }
)
_DISTRIBUTIONS = {
    "PyTorch": _add_type("pytorch", _PROCESSES),
    "Mpi": _add_type("mpi", _PROCESSES),
    "TensorFlow": _add_type("tensorflow", _SERVERS),
    "Ray": _add_type("ray", _RAY),
}

_IDENTITIES = {
    "Managed": _add_type("managed_identity", part(_in_snake_case(text, "client_id", "object_id"))),
    "UserIdentity": _add_type("user_identity", part({})),
    "AMLToken": _add_type("aml_token", part({})),
}

_INPUT = part(
    {"uri": ("path", write_label), "mode": ("mode", one_of(INPUT_MODES))}, always=("uri",)
)
_LITERAL = part({"value": ("value", text)}, always=("value",))
_INPUTS: dict[str, Convert] = {name: _add_type(name, _INPUT) for name in _DATA}
_INPUTS["literal"] = lambda value: _LITERAL(value)["value"]

_OUTPUT = part(
    {
        "uri": ("path", text),
        "mode": ("mode", one_of(_TABLES["output_modes"])),
        "assetName": ("name", text),
        "assetVersion": ("version", text),
    }
)
_OUTPUTS = {name: _add_type(name, _OUTPUT) for name in _DATA}


def _service(kind: str) -> Callable[[Any], dict[str, Any]]:
    def convert(value: Any) -> dict[str, Any]:
        service = {"type": kind, **_SERVICE(value)}
        setting, word = SERVICE_SETTINGS.get(kind, ("", ""))
        if list(service.get("properties", ())) == [setting] and service["properties"][setting]:
            service[word] = service.pop("properties")[setting]
        return service

    return convert


_NODES = kinds("nodesValueType", {"All": lambda value: part({})(value) or "all"})
_SERVICE = part(
    {"nodes": ("nodes", _NODES), "port": ("port", count), "properties": ("properties", each(text))}
)
_SERVICES = {word: _service(kind) for kind, word in SERVICES.items()}

_LIMITS = part(
    {"jobLimitsType": ("", constant("Command")), "timeout": ("timeout", _seconds)},
    always=("jobLimitsType", "timeout"),
)
_QUEUE = part(
    {
        "jobTier": ("job_tier", one_of(_TABLES["tiers"])),
        "priority": ("priority", one_of(_PRIORITY_NAMES)),
    }
)

_JOB = part(
    {
        "jobType": ("", constant("Command")),
        "isArchived": ("", constant(False)),
        **_in_snake_case(
            text, "display_name", "experiment_name", "description", "command", "parent_job_name"
        ),
        "codeId": ("code", _id),
        "environmentId": ("environment", _id),
        "environmentVariables": ("environment_variables", mapping),
        "inputs": ("inputs", each(kinds("jobInputType", _INPUTS))),
        "outputs": ("outputs", each(kinds("jobOutputType", _OUTPUTS))),
        "computeId": ("compute", _compute),
        "resources": ("resources", _resources),
        "distribution": ("distribution", kinds("distributionType", _DISTRIBUTIONS)),
        "limits": ("limits", _LIMITS),
        "queueSettings": ("queue_settings", not_empty(_QUEUE)),
        "identity": ("identity", kinds("identityType", _IDENTITIES)),
        "services": ("services", not_empty(each(kinds("jobServiceType", _SERVICES)))),
        **_in_snake_case(each(text), "tags", "properties"),
    },
    always=ALWAYS,
)

_OLD_REFERENCE = re.compile(r"(?<!\{)\{(?:inputs|outputs|search_space)\.[^}]*\}(?!\})")
"""Matches texts that the tool rewrites into a reference before it sends a command."""

_REFERENCE = re.compile(r"\$\{\{inputs\.([\w.-]+)\}\}")
"""Matches references that the tool looks up among the inputs, and refuses if they name none."""


def _check_command(command: str, inputs: Mapping[str, Any]) -> None:
    wordless = [match[0] for match in _OLD_REFERENCE.finditer(command)]
    wordless += [match[0] for match in _REFERENCE.finditer(command) if match[1] not in inputs]
    if wordless:
        raise Wordless(*(f"{words} in command" for words in dict.fromkeys(wordless)))


# The job as calls of azure-ai-ml: `command(...)`, and the client that sends it.

EXTRA = "azureml-sdk"
_SDK, _ENTITIES = "azure.ai.ml", "azure.ai.ml.entities"

RESOURCES = ("instance_count", "instance_type", "locations", "docker_args", "shm_size")
"""Resources that are arguments of `command`."""


def _command(job: Mapping[str, Any]) -> Call:
    arguments: dict[str, Any] = {}
    for name, value in job.items():
        if name in ("limits", "queue_settings") or (
            name == "resources" and value and set(value) <= set(RESOURCES)
        ):
            arguments |= value
        elif name == "resources":
            arguments[name] = Call(f"{_ENTITIES}.JobResourceConfiguration", dict(value))
        elif name in ("distribution", "identity"):
            arguments[name] = _object(value)
        elif name == "services":
            arguments[name] = {key: _object(item) for key, item in value.items()}
        elif name in ("inputs", "outputs"):
            kind = f"{_SDK}.{name.removesuffix('s').capitalize()}"
            arguments[name] = {
                k: Call(kind, dict(item)) if isinstance(item, dict) else item
                for k, item in value.items()
            }
        else:
            arguments[name] = value
    return Call(f"{_SDK}.command", arguments)


def _object(value: Mapping[str, Any]) -> Call:
    return Call(
        _TABLES["classes"][value["type"]],
        {name: inner for name, inner in value.items() if name != "type"},
    )


def _credential(place: AzureMLAccount) -> Call:
    """Outside Azure's public cloud, the call of the credential names the login service of the
    cloud."""
    kind = kind_of(place.credential)
    cloud = BUILT_IN.get(place.cloud or "AzureCloud")
    elsewhere = (
        kind.takes_authority and place.cloud and cloud is not None and place.cloud != "AzureCloud"
    )
    return Call(
        f"azure.identity.{kind.name}", {"authority": cloud.login} if elsewhere and cloud else {}
    )


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


def yaml_job(job: Mapping[str, Any], place: AzureMLAccount, *, remark: str = "") -> str:
    """Return `job`, the result of `job_of`, as YAML, below the command that sends it to `place`,
    and the `remark`."""
    inputs = {name: item for name, item in job.get("inputs", {}).items() if isinstance(item, dict)}
    wordless = [
        f"inputs.{name}.mode"
        for name, item in inputs.items()
        if item.get("mode", "direct") not in (*_EVERY_MODE, *MODES.get(item["type"], ()))
    ]
    if wordless:
        raise _refusal(wordless, "the YAML of Azure ML")
    document = {"$schema": SCHEMA, "type": "command", **job}
    document |= {
        name: _yaml_job_id(job[name]) for name in ("code", "environment", "compute") if name in job
    }
    if "inputs" in job:
        paths = {name: item | {"path": _yaml_job_id(item["path"])} for name, item in inputs.items()}
        document["inputs"] = job["inputs"] | paths
    names = {"--subscription": place.subscription_id, "--resource-group": place.resource_group}
    options = names | {"--workspace-name": place.workspace}
    words = " ".join(f"{option} {shell_word(value)}" for option, value in options.items())
    head = f"# az ml job create --file job.yml {words}\n" + (f"# {remark}\n" if remark else "")
    return head + _dump(document)


def _yaml_job_id(reference: str) -> str:
    """In YAML, ids of Azure Resource Manager and labels begin with `azureml:`. Anything else stays
    unchanged: a URI, a short name that already has this prefix, or `serverless`."""
    plain = reference.startswith("/subscriptions/") or (
        reference.endswith("@latest") and ":" not in reference
    )
    return f"azureml:{reference}" if plain else reference


def _dump(document: Mapping[str, Any]) -> str:
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
    style = '"' if visible_yaml(text) != text else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


# The exports of a plan: the SDK's object, code and YAML.


def forms_of(plan: Plan) -> dict[str, Callable[[], str]]:
    """`az-cli`: YAML for the az command line. `python`: code for azure-ai-ml."""
    exports = AzureMLExports.of(plan)
    return (
        {"az-cli": exports.to_yaml, "python": lambda: visible(exports.to_python())}
        if exports
        else {}
    )


class AzureMLExports:
    """Exports a plan to Azure's own tools. Everything is made from `plan.request`, the body that
    creates the job. Azure's own tools can start the job only when `plan.uploads` are in the
    workspace, such as the code and any environment made of an image. A `cloudtrain submit` of the
    same code uploads them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    @classmethod
    def of(cls, plan: Plan) -> AzureMLExports | None:
        """Return the exports of a plan; None if it is a sweep."""
        properties = plan.request.get("properties")
        return cls(plan) if properties is not None and "searchSpace" not in properties else None

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
        client = Call(
            f"{_SDK}.MLClient", arguments | ({"cloud": place.cloud} if place.cloud else {})
        )
        variables = {"job": _command(self._job()), "ml_client": client}
        return python_code(
            Program(variables, "jobs.create_or_update", {"job": Ref("job")}, EXTRA), title=title
        )

    def to_yaml(self) -> str:
        """Return the job as YAML, from which `az ml job create --file` and `azure.ai.ml.load_job`
        make `request`.

        Raises:
            TargetError: the YAML cannot express a field of the request; the message names it.
        """
        return yaml_job(self._job(), self._place, remark=self._needs if self._plan.uploads else "")

    @property
    def _needs(self) -> str:
        things = " and ".join(f"the {upload.kind}" for upload in self._plan.uploads)
        return f"Needs what `cloudtrain submit` uploads: {things}."

    @property
    def _place(self) -> AzureMLAccount:
        return AzureMLAccount.parse(self._plan.place)

    def _job(self) -> dict[str, Any]:
        return job_of(self._plan.request, self._plan.run_name)
