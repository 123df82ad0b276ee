"""Write docs/reference/settings.md, the reference of `cloudtrain.toml`, from the targets' models and their docstrings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cloudtrain.job.schema import _field_texts
from cloudtrain.targets.registry import all_targets

INTRODUCTION = """\
# cloudtrain.toml

Account settings are never part of a job. They are in `cloudtrain.toml`, beside the job or in a folder above it, and
in `cloudtrain.toml` of your configuration folder (`~/.config/cloudtrain`). Each target has a table:

```toml
# the target when none is named
target = "local"

[local]
grace_period = "1m"

[sagemaker]
region = "eu-west-1"
role = "arn:aws:iam::111122223333:role/SageMakerTraining"
max_cost = 50

# cloudtrain submit job.yaml --profile research
[profiles.research.sagemaker]
bucket = "research-training"
```

The command line wins over a profile, a profile over the project's file, and the project's file over yours. The lower
`max_cost` of the two files holds. A file counts only if nobody else can have written it ([whose settings
count](../start/concepts.md#whose-settings-count)). `cloudtrain doctor` lists the files that count, and a plan those that it
used. In Python, each table is a class with the same fields: `ct.SageMaker(region="eu-west-1")`.

A time is written as `90s`, `30m`, `2h` or `1d`, and a size as `64g`.
"""

MEANINGS = {
    "region": "The region; default: the AWS profile's, or `AWS_REGION`.",
    "subnets": "Ids of the VPC's subnets; needs `security_group_ids`.",
    "security_group_ids": "Ids of the security groups; needs `subnets`.",
    "volume_kms_key": "The key of the instances' disks.",
    "output_kms_key": "The key of the bundle and of the results.",
    "network_isolation": "Whether the containers have no network.",
    "encrypt_inter_container_traffic": "Whether the traffic between instances is encrypted.",
    "max_pending": "How long the job may wait for capacity.",
    "remote_debug": "Whether AWS Systems Manager may open a session in the containers.",
    "profiler": "Whether the profiler runs.",
    "profiler_rules": "Rules that watch the profiler's output.",
    "debugger": "Whether the debugger runs.",
    "debug_rules": "Rules that watch the debugger's output.",
    "mlflow_experiment": "The experiment on the MLflow server.",
    "mlflow_run": "The run's name on the MLflow server.",
    "resource_group": "The resource group of the workspace.",
    "workspace": "The name of the workspace.",
    "priority": "`low`, `medium` or `high`, for serverless jobs.",
    "managed_identity_client_id": 'The client id of the identity for `identity = "managed"`.',
    "max_instance_count": "The most instances that the service may use, with `locations`.",
    "qos": "The quality of service (`--qos`).",
    "reservation": "The reservation (`--reservation`).",
}
"""Of settings whose names say it in the source."""


def document() -> str:
    """Return the whole page."""
    return "\n".join([INTRODUCTION, *(line for target in all_targets() for line in _table(target))])


def _table(target: Any) -> Iterator[str]:
    texts = _field_texts(target.settings)
    yield f"## [{target.name}]\n\n| setting | values | default | meaning |\n|---|---|---|---|"
    schema = target.settings.model_json_schema()
    for name, field in schema["properties"].items():
        if name == "type":
            continue
        meaning = (texts.get(name) or MEANINGS[name]).replace("|", "\\|")
        yield f"| `{name}` | {_values(field)} | {_default(field)} | {meaning} |"
    yield ""


def _default(field: dict[str, Any]) -> str:
    value = field.get("default")
    return f"`{json.dumps(value)}`" if value not in (None, [], {}, ()) else ""


def _values(field: dict[str, Any]) -> str:
    """Say in a few words what a setting takes."""
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if options := field.get("anyOf") or field.get("oneOf"):
        words = [
            *dict.fromkeys(_values(option) for option in options if option.get("type") != "null")
        ]
        return "time or size" if words == ["whole number", "text"] else " or ".join(words)
    if field.get("type") == "array":
        return "list"
    kinds = {
        "string": "text",
        "integer": "whole number",
        "number": "number",
        "boolean": "`true`, `false`",
    }
    return kinds.get(str(field.get("type")), "table")


if __name__ == "__main__":
    print(document(), end="")
