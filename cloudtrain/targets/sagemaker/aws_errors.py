"""Translate AWS's errors into cloudtrain's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Literal, NamedTuple

from cloudtrain.documents.document import load_table
from cloudtrain.errors import NameTaken, SettingsError, TargetError, TargetUnreachable
from cloudtrain.system.plugins import require
from cloudtrain.targets.common.services import Denied, Expired, NotThere
from cloudtrain.targets.sagemaker.request import JsonObject


class FailedCall(NamedTuple):
    """A failed request, for messages: service, operation such as `CreateTrainingJob`, and name of
    the job or bucket."""

    service: str
    operation: str
    region: str | None = None
    profile: str | None = None
    about: str = ""


ErrorType = type[TargetError] | type[SettingsError]


class AwsErrorTemplate(NamedTuple):
    """cloudtrain's error for an AWS error. Its texts may contain names such as `{action}`, which
    are filled in."""

    kind: ErrorType
    message: str
    hint: str | None = None


_ERRORS: dict[str, ErrorType] = {
    kind.__name__: kind
    for kind in (
        Denied,
        Expired,
        NameTaken,
        NotThere,
        SettingsError,
        TargetError,
        TargetUnreachable,
    )
}


@cache
def error_templates(field: Literal["codes", "exceptions"]) -> Mapping[str, AwsErrorTemplate]:
    """Map AWS's error codes, or botocore's error classes, to cloudtrain's errors, from the table
    `errors.toml`."""
    templates: dict[str, AwsErrorTemplate] = {}
    for row in load_table(__file__, "service/errors.toml")["errors"]:
        kind = _ERRORS[row["kind"]]
        template = AwsErrorTemplate(kind, row["message"], row.get("hint"))
        templates |= dict.fromkeys(row.get(field, "").split(), template)
    return templates


_NOT_FOUND = re.compile(r"(requested resource not found|could not find)", re.IGNORECASE)
"""SageMaker's text for a job that does not exist, in a ValidationException."""


def translate_error(error: Exception, call: FailedCall) -> TargetError | SettingsError:
    """Return cloudtrain's error for an error of botocore."""
    template, message = _template_of(error)
    policy_name = call.service.replace("-", "")  # `servicequotas`, as IAM policies spell it
    login = "aws sso login"
    if call.profile:
        login += f" --profile {call.profile}"
    # such as `ml.p4d.24xlarge for training job usage`
    quota = re.search(r"service limit '([^']+)'", message)
    said = " ".join(message.split()).rstrip(".")
    values = {
        "said": said or "it gives no reason",
        "action": f"{policy_name}:{call.operation}",
        "about": call.about or call.operation,
        "region": call.region or "the default region",
        "profile": call.profile,
        "login": f"`{login}`",
        "quota": f"`{quota[1]}`" if quota else "it",
    }
    hint = template.hint.format(**values) if template.hint else None
    return template.kind(template.message.format(**values), hint=hint)


def _template_of(error: Exception) -> tuple[AwsErrorTemplate, str]:
    """Return cloudtrain's error for an error of botocore, and AWS's own message."""
    response: JsonObject | None = getattr(error, "response", None)
    if response is not None and "Error" in response:
        code = str(response["Error"].get("Code", ""))
        message = str(response["Error"].get("Message", ""))
        if code == "ValidationException" and _NOT_FOUND.search(message):
            code = "ResourceNotFound"
        known = error_templates("codes").get(code)
        return known or _unknown(code, response), message

    templates = error_templates("exceptions")
    for kind in type(error).__mro__:
        if kind.__name__ in templates:
            return templates[kind.__name__], str(error)
    raise AssertionError(f"{type(error).__name__} is not an error of botocore")


def _unknown(code: str, response: JsonObject) -> AwsErrorTemplate:
    """Return the error for a code that `errors.toml` lacks. For HTTP status 500 and above, it
    suggests a retry."""
    if response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500:
        return error_templates("codes")["InternalError"]
    safe_code = code.replace("{", "").replace("}", "")  # the message is a format
    return AwsErrorTemplate(TargetError, f"AWS refuses `{{action}}` ({safe_code}): {{said}}")


def errors_of_boto3() -> tuple[type[Exception], ...]:
    """Return the base classes of all exceptions that boto3 raises."""
    exceptions = require("botocore.exceptions", extra="sagemaker")
    parsers = require("botocore.parsers", extra="sagemaker")
    transfer = require("s3transfer.exceptions", extra="sagemaker")
    return (
        exceptions.BotoCoreError,
        exceptions.ClientError,
        parsers.ResponseParserError,
        transfer.RetriesExceededError,
    )
