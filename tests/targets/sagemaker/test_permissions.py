"""The policy of the documentation allows what the service asks for, and nothing else."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cloudtrain.targets.sagemaker import target as sagemaker
from cloudtrain.targets.sagemaker.plan import KINDS
from cloudtrain.targets.sagemaker.service.tuning import TUNING

PAGE = (Path(__file__).parents[3] / "docs" / "targets" / "sagemaker-permissions.md").read_text(
    "utf-8"
)

PREFIX = {"service-quotas": "servicequotas"}
"""Name of a client to the name of its service in a policy, where they differ."""

S3 = {
    "HeadBucket": "s3:ListBucket",
    "ListObjectsV2": "s3:ListBucket",
    "HeadObject": "s3:GetObject",
    "GetObject": "s3:GetObject",
    "PutObject": "s3:PutObject",
    "DeleteObject": "s3:DeleteObject",
}
"""Operations of S3 are allowed under other names."""

FREE = {"sts:GetCallerIdentity"}
"""What everybody may ask."""

BESIDES = {
    "iam:PassRole": "a request names a role",
    "sagemaker:AddTags": "a request holds tags",
    "ssm:TerminateSession": "AWS's plug-in ends the session of a command",
    "s3:AbortMultipartUpload": "boto3's transfer gives up parts of an upload that fails",
}
"""What no call is named after, and why it is needed."""


def operations() -> Iterator[tuple[str, str]]:
    """Client and operation of every `clients.call`, `.pages` and `.attempt` in the service."""
    for file in (Path(sagemaker.__file__).parent / "service").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if (
                not isinstance(node, ast.Call)
                or not isinstance(node.func, ast.Attribute)
                or len(node.args) < 2
            ):
                continue
            service, operation = node.args[0], node.args[1]
            if node.func.attr not in ("call", "pages", "attempt") or not isinstance(
                service, ast.Constant
            ):
                continue
            yield from ((str(service.value), name) for name in _names(operation))


def _names(operation: ast.expr) -> list[str]:
    """The operation as it is written; `kind.create` and `TRAINING.list` stand for one of each kind of job."""
    if isinstance(operation, ast.Constant):
        return [str(operation.value)]
    assert isinstance(operation, ast.Attribute), ast.dump(operation)
    assert isinstance(operation.value, ast.Name), ast.dump(operation)
    if operation.value.id == "TUNING":
        return [getattr(TUNING, operation.attr)]
    kinds = [kind for kind in KINDS if operation.value.id in ("kind", kind.noun.upper())]
    if operation.attr in ("create", "describe"):
        kinds.append(TUNING)  # its service creates and describes as the one of jobs does
    return [getattr(kind, operation.attr) for kind in kinds]


def actions() -> set[str]:
    """The same as a policy writes it."""
    found = set()
    for service, operation in operations():
        name = "".join(word.capitalize() for word in operation.split("_"))
        found.add(S3[name] if service == "s3" else f"{PREFIX.get(service, service)}:{name}")
    return found


def policy() -> dict[str, Any]:
    """The policy of the page."""
    block = re.search(r"^```json\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert block is not None
    found: dict[str, Any] = json.loads(block[1])
    return found


def test_the_policy_is_what_the_backend_calls() -> None:
    """Every call of the service is allowed, and every action stands for a call or for what comes with one."""
    allowed: set[str] = set()
    for statement in policy()["Statement"]:
        action = statement["Action"]
        allowed |= set([action] if isinstance(action, str) else action)
    assert allowed == (actions() - FREE) | BESIDES.keys()
