"""The job as YAML for `az ml job create --file` and `azure.ai.ml.load_job`.

azure-ai-ml's own YAML output (1.35.2) is not used: it loses writable inputs, addresses outside datastores, string
values of inputs, lists of docker arguments, and environments. azure-ai-ml reads this module's YAML without a loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cloudtrain.render.escape import UNSEEN, shell_word, visible_yaml
from cloudtrain.targets.azureml.account_ref import AccountRef
from cloudtrain.targets.azureml.export.job import refuse

SCHEMA = "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json"

MODES = {"mltable": ("eval_mount", "eval_download")}
"""Maps each type of input to the only modes that the schema accepts for it."""

_EVERY_MODE = ("ro_mount", "download", "direct")


def yaml_job(job: Mapping[str, Any], place: AccountRef, *, remark: str = "") -> str:
    """Return `job`, the result of `job_of`, as YAML. Comments above it contain the command that sends it to the
    workspace `place`, and the `remark`.

    Raises:
        TargetError: the schema cannot express a mode of an input; the message names it.
    """
    wordless = [f"inputs.{name}.mode" for name, item in job.get("inputs", {}).items() if not _has_mode(item)]
    if wordless:
        raise refuse(wordless, "the YAML of Azure ML")
    document = {"$schema": SCHEMA, "type": "command", **{name: _convert(name, value) for name, value in job.items()}}
    return "".join(f"# {line}\n" for line in _head(place, remark)) + _dump(document)


def _head(place: AccountRef, remark: str) -> Iterator[str]:
    names = {"--subscription": place.subscription_id, "--resource-group": place.resource_group}
    options = names | {"--workspace-name": place.workspace}
    words = " ".join(f"{option} {shell_word(value)}" for option, value in options.items())
    yield f"az ml job create --file job.yml {words}"
    if remark:
        yield remark


def _has_mode(item: Any) -> bool:
    if not isinstance(item, dict) or "mode" not in item:
        return True
    return item["mode"] in (*_EVERY_MODE, *MODES.get(item["type"], ()))


def _convert(name: str, value: Any) -> Any:
    if name in ("code", "environment", "compute"):
        return _id(value)
    if name == "inputs":
        return {
            key: item | {"path": _id(item["path"])} if isinstance(item, dict) else item for key, item in value.items()
        }
    return value


def _id(written: str) -> str:
    """Return an id in the YAML's notation.

    In YAML, ids of Azure Resource Manager and labels begin with `azureml:`. Anything else stays unchanged: a URI, a
    short name that already has this prefix, or `serverless`.
    """
    plain = written.startswith("/subscriptions/") or (written.endswith("@latest") and ":" not in written)
    return f"azureml:{written}" if plain else written


def _dump(document: Mapping[str, Any]) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the base's
            return True

    Dumper.add_representer(str, _scalar)
    text: str = yaml.dump(document, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=float("inf"))
    return visible_yaml(text)


def _scalar(dumper: Any, text: str) -> Any:
    """Write a text so that it is read back unchanged.

    Newlines stay newlines. Other characters that YAML takes for line ends, and invisible characters, need double
    quotes, because only double quotes can escape them.
    """
    style = '"' if UNSEEN.search(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
