"""Translate Azure's errors to cloudtrain's errors.

The table `CODES` lists error codes; `EXCEPTIONS` lists errors of requests that got no answer.

An error of Azure ML has codes at several depths: a general one on top (`UserError`), and a specific one below it
(`JobPropertyImmutable`), in `innerError` or in an entry of `additionalInfo`. The deepest code that `CODES` contains
decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cloudtrain.errors import NameTaken, RunNotFound, SettingsError, TargetError, TargetUnreachable
from cloudtrain.targets.azureml.settings import workspace_id
from cloudtrain.targets.common.services import Denied, Expired, NotThere


class NoWorkspace(NotThere):
    """The workspace does not exist, and neither does anything in it."""


@dataclass(frozen=True)
class RefusedCall:
    """A refused request and its workspace. `method` is, for example, `PUT`; `about` is `jobs/cifar10-3f9a1c22-1`."""

    method: str
    about: str
    workspace: str = ""
    resource_group: str = ""
    subscription: str = ""
    login: str = "log in: `az login`"
    """How to get credentials that work."""

    @property
    def scope(self) -> str:
        """The workspace's id, which is the scope in a role assignment."""
        return workspace_id(self.subscription, self.resource_group, self.workspace)


Kind = type[TargetError] | type[SettingsError]


@dataclass(frozen=True)
class ErrorTemplate:
    """The error that replaces one of Azure's. `_make_error` fills in the fields of its texts, such as `{said}`."""

    kind: Kind
    message: str
    hint: str | None = None


_ROLE = 'ask for the role: `az role assignment create --role "AzureML Data Scientist" --assignee YOU --scope {scope}`'
_DENIED = ErrorTemplate(Denied, "the credentials may not do `{action}`: {said}", _ROLE)
_BLOB_DENIED = ErrorTemplate(
    Denied,
    "the credentials may not use the workspace's storage account: {said}",
    'ask for the role "Storage Blob Data Contributor" on that account, and for access through its firewall',
)
_EXPIRED = ErrorTemplate(Expired, "the Azure login has expired", "{login}")
_BAD_TOKEN = ErrorTemplate(
    Expired, "Azure does not accept the credentials: {said}", "{login}; `az account show` prints your current account"
)
_TENANT = ErrorTemplate(
    TargetError,
    "the credentials belong to another tenant than the subscription `{subscription}`: {said}",
    "`az login --tenant TENANT`; the subscription's page in the portal names its tenant",
)
_MORE_PROOF = ErrorTemplate(
    TargetError, "the organization requires another authentication step: {said}", "`az login --tenant TENANT` starts it"
)
_SECRET = ErrorTemplate(
    TargetError, "the service principal's secret or certificate is not accepted: {said}",
    "make a new one: `az ad app credential reset --id CLIENT_ID`, and set AZURE_CLIENT_SECRET",
)  # fmt: skip
_THROTTLED = ErrorTemplate(TargetUnreachable, "Azure limits the rate of `{action}`: {said}", "try again in a minute")
_BROKEN = ErrorTemplate(TargetUnreachable, "Azure could not answer `{action}`: {said}", "try again in a minute")
_NO_ANSWER = ErrorTemplate(
    TargetUnreachable, "Azure does not answer `{action}`: {said}", "check the network and the proxy"
)
_NOT_THERE = ErrorTemplate(NotThere, "there is no `{about}` in the workspace `{workspace}`")
_NO_SUBSCRIPTION = ErrorTemplate(
    TargetError,
    "there is no subscription `{subscription}` that these credentials can see",
    "`az account list` shows yours; set `subscription_id` in [azureml]",
)
_QUOTA = ErrorTemplate(
    TargetError,
    "the quota does not allow this job: {said}",
    "`az ml compute list-usage --location REGION` shows it; ask for more at https://ml.azure.com/quota",
)
_VM_SIZE = ErrorTemplate(
    TargetError, "there is no such instance type here: {said}", "`cloudtrain instances --target azureml` lists them"
)
_COMPUTE = ErrorTemplate(
    NotThere, "there is no such compute: {said}",
    "`az ml compute list --workspace-name {workspace} --resource-group {resource_group}` shows them; "
    "or leave `compute` out to run serverless",
)  # fmt: skip
_CONFLICT = ErrorTemplate(TargetError, "another process is changing `{about}`: {said}", "try again")
_TAKEN = ErrorTemplate(NameTaken, "the workspace has a job `{name}` already", "give the job another name")
_REFUSED = ErrorTemplate(TargetError, "Azure ML refuses the request: {said}", "`cloudtrain check` may find the cause")

CODES: dict[str, ErrorTemplate] = {
    # the resource manager
    "SubscriptionNotFound": _NO_SUBSCRIPTION,
    "InvalidSubscriptionId": _NO_SUBSCRIPTION,
    "ResourceGroupNotFound": ErrorTemplate(
        NoWorkspace,
        "there is no resource group `{resource_group}` in the subscription `{subscription}`",
        "`az group list --query '[].name'` shows them; set `resource_group` in [azureml]",
    ),
    "WorkspaceNotFound": ErrorTemplate(
        NoWorkspace,
        "there is no workspace `{workspace}` in the resource group `{resource_group}`",
        "`az ml workspace list --resource-group {resource_group}` shows them; set `workspace` in [azureml]",
    ),
    "AuthorizationFailed": _DENIED,
    "LinkedAuthorizationFailed": _DENIED,
    "ReadOnlyDisabledSubscription": ErrorTemplate(
        Denied, "the subscription `{subscription}` is disabled: {said}", "`az account list` shows your others"
    ),
    "RequestDisallowedByPolicy": ErrorTemplate(
        Denied, "a policy of the organization forbids this: {said}", "ask the author of the policy"
    ),
    "MissingSubscriptionRegistration": ErrorTemplate(
        TargetError,
        "Azure ML is not registered in the subscription `{subscription}`",
        "`az provider register --namespace Microsoft.MachineLearningServices`",
    ),
    "ExpiredAuthenticationToken": _EXPIRED,
    "TokenExpired": _EXPIRED,
    "InvalidAuthenticationToken": _BAD_TOKEN,
    "AuthenticationFailed": _BAD_TOKEN,
    "InvalidAuthenticationTokenTenant": _TENANT,
    "InvalidAuthenticationTokenAudience": _BAD_TOKEN,
    "AuthenticationFailedMissingToken": _BAD_TOKEN,
    "TooManyRequests": _THROTTLED,
    "RequestThrottled": _THROTTLED,
    "SubscriptionRequestsThrottled": _THROTTLED,
    "ThrottledRequest": _THROTTLED,
    "InternalServerError": _BROKEN,
    "ServiceUnavailable": _BROKEN,
    "GatewayTimeout": _BROKEN,
    "ServerTimeout": _BROKEN,
    "Conflict": _CONFLICT,
    # Azure ML
    "JobPropertyImmutable": _TAKEN,
    "ServiceError": _BROKEN,
    "ServiceInvocationError": _BROKEN,
    "QuotaExceeded": _QUOTA,
    "InsufficientQuota": _QUOTA,
    "QuotaNotAvailable": _QUOTA,
    "ClusterCoreQuotaReached": _QUOTA,
    "InvalidVMSize": _VM_SIZE,
    "VmSizeNotSupported": _VM_SIZE,
    "InvalidVmSize": _VM_SIZE,
    "SkuNotAvailable": _VM_SIZE,
    "ComputeNotFound": _COMPUTE,
    "ComputeTargetNotFound": _COMPUTE,
    "UserError": _REFUSED,
    "ValidationError": _REFUSED,
    "BadArgument": _REFUSED,
    "InvalidRequestContent": _REFUSED,
    # storage
    "AuthorizationFailure": _BLOB_DENIED,
    "AuthorizationPermissionMismatch": _BLOB_DENIED,
    "InsufficientAccountPermissions": _BLOB_DENIED,
    "KeyBasedAuthenticationNotPermitted": _BLOB_DENIED,
    "PublicAccessNotPermitted": _BLOB_DENIED,
    "AccountIsDisabled": _BLOB_DENIED,
    "BlobNotFound": ErrorTemplate(NotThere, "there is no `{about}` in the workspace's storage"),
    "ContainerNotFound": ErrorTemplate(NotThere, "there is no `{about}` in the workspace's storage"),
    "ServerBusy": _THROTTLED,
    "OperationTimedOut": _BROKEN,
    "InternalError": _BROKEN,
}
"""Maps error codes to our errors: those of the resource manager, Azure ML and storage that a user can meet."""

STATUSES: dict[int, ErrorTemplate] = {
    401: _BAD_TOKEN,
    403: _DENIED,
    404: _NOT_THERE,
    408: _BROKEN,
    409: _CONFLICT,
    429: _THROTTLED,
}
"""Maps each HTTP status to our error, for codes that say less than the status."""

_SAID: tuple[tuple[re.Pattern[str], ErrorTemplate], ...] = (
    (re.compile(r"job with this name already exists", re.I), _TAKEN),
    (re.compile(r"resource 'Microsoft\.MachineLearningServices/workspaces/[^/']+' under resource group", re.I),
     CODES["WorkspaceNotFound"]),
    (re.compile(r"\bquota\b.*\b(exceed|insufficient|not enough|reached|limit)|"
                r"\b(exceed|insufficient|not enough)\w*\b.*\bquota\b", re.I), _QUOTA),
    (re.compile(r"\b(vm ?size|vm sku|instance ?type)\b.*\b(invalid|not supported|not available|not found|unknown)|"
                r"\b(invalid|unsupported|unknown) (vm ?size|vm sku|instance ?type)", re.I), _VM_SIZE),
    (re.compile(r"\bcompute\b[^.]*\b(not found|does ?n[o']t exist|could not be found)", re.I), _COMPUTE),
)  # fmt: skip
"""Errors that only their texts tell apart: Azure ML gives all of them the code `UserError`."""

_GENERAL = ("UserError", "ValidationError", "BadArgument", "Conflict")
"""Codes that say less than the texts do."""

_LOGINS: tuple[tuple[re.Pattern[str], ErrorTemplate], ...] = (
    (re.compile(r"AADSTS(700082|70043|50173|70008|700084|50132|50133)\b|refresh token has expired", re.I), _EXPIRED),
    (re.compile(r"AADSTS(50076|50079|53003|53000|50158|50074|65001)\b"), _MORE_PROOF),
    (re.compile(r"AADSTS(7000215|7000222|700027|700016)\b"), _SECRET),
    (re.compile(r"AADSTS(90002|50020|900023)\b"), _TENANT),
)
"""Errors of Entra ID by their numbers; an expired login is the most common."""

_NO_CREDENTIALS = ErrorTemplate(TargetError, "there are no Azure credentials that work: {said}", "{login}")

EXCEPTIONS: dict[str, ErrorTemplate] = {
    "SSLCertVerificationError": ErrorTemplate(
        TargetError,
        "the connection to Azure is not trusted: {said}",
        "set REQUESTS_CA_BUNDLE to a file with the proxy's certificate",
    ),
    "ProxyError": ErrorTemplate(
        TargetUnreachable, "the proxy does not answer: {said}", "check HTTPS_PROXY and NO_PROXY"
    ),
    "NameResolutionError": ErrorTemplate(
        TargetUnreachable,
        "the address of Azure cannot be found: {said}",
        "check the network and its DNS; a workspace behind a private endpoint answers only from its own network",
    ),
    "CredentialUnavailableError": _NO_CREDENTIALS,
    "ClientAuthenticationError": _NO_CREDENTIALS,
    "ServiceRequestError": _NO_ANSWER,
    "ServiceResponseError": _NO_ANSWER,
    "DecodeError": _BROKEN,
    "AzureError": ErrorTemplate(TargetError, "azure-core cannot do `{action}`: {said}"),
    "FileNotFoundError": ErrorTemplate(TargetError, "a file of the Azure credentials is not there: {said}", "{login}"),
    "OSError": ErrorTemplate(TargetError, "the connection to Azure cannot be made: {said}", "check REQUESTS_CA_BUNDLE"),
}
"""Maps the class of an error, or of its cause, to our error; the first match counts. Timeouts and broken connections
are `ServiceResponseError`, refused ones `ServiceRequestError`."""

_ACTION = re.compile(r"perform(?:ing)? (?:the )?action '(?P<action>[^']+)'")


def translate_error(error: Exception, call: RefusedCall) -> TargetError | SettingsError:
    status, text = getattr(error, "status_code", None), str(getattr(error, "message", None) or error)
    if status is not None:
        code = getattr(error, "error_code", None) or ""  # storage's enum, if it knows the code
        # Storage adds lines with the request id and the time.
        body = {"code": str(getattr(code, "value", code)), "message": text.strip().partition("\n")[0]}
        return refusal_error(int(status), body, call)
    logins = (template for pattern, template in _LOGINS if pattern.search(text))
    names = {kind.__name__ for cause in _causes(error) for kind in type(cause).__mro__}
    template = next(logins, None) or next((item for name, item in EXCEPTIONS.items() if name in names), None)
    assert template is not None, f"{type(error).__name__} is not an error of Azure's packages"
    return _make_error(template, text, call)


def refusal_error(status: int, body: object, call: RefusedCall) -> TargetError | SettingsError:
    """`body` is the answer's JSON data, or None."""
    error = error_fields(body)
    message = str(error.get("message") or error.get("Message") or "")
    return _make_error(_template_of(status, list(_codes(error)), message), message, call)


def not_found(name: str, workspace: str) -> RunNotFound:
    hint = "`cloudtrain ps --target azureml` lists the workspace's runs"
    return RunNotFound(f"the workspace `{workspace}` has no run `{name}`", hint=hint)


def _template_of(status: int, codes: list[str], message: str) -> ErrorTemplate:
    known = next((code for code in reversed(codes) if code in CODES), None)
    if known is not None and known not in _GENERAL:
        return CODES[known]
    for pattern, template in _SAID:
        if pattern.search(message):
            return template
    if status in STATUSES:
        return STATUSES[status]
    if status >= 500:
        return _BROKEN
    if known is not None:
        return CODES[known]
    code = f" ({codes[-1]})".translate(_NO_BRACES) if codes else ""
    return ErrorTemplate(TargetError, f"Azure refuses `{{action}}`{code}: {{said}}")


def error_fields(body: object) -> Mapping[str, Any]:
    """Return the `error` of an answer, or the answer itself: some services send the error without this field."""
    inner = body.get("error", body) if isinstance(body, Mapping) else {}
    return inner if isinstance(inner, Mapping) else {}


def _codes(error: object) -> Iterator[str]:
    """Yield all codes of an error, the most general code first."""
    if not isinstance(error, Mapping):
        return
    if error.get("code"):
        yield str(error["code"])
    for detail in error.get("details") or ():
        yield from _codes(detail)
    for item in error.get("additionalInfo") or ():
        if isinstance(item, Mapping) and item.get("type") == "InnerError":
            yield from _codes((item.get("info") or {}).get("value"))
    for name in ("innerError", "innererror"):
        yield from _codes(error.get(name))


def _make_error(template: ErrorTemplate, message: str, call: RefusedCall) -> TargetError | SettingsError:
    action, line = _ACTION.search(message), " ".join(message.split()).rstrip(".")
    values = {
        "said": (line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}...") or "it gives no reason",
        "action": action["action"] if action else f"{call.method} {call.about}",
        "about": call.about,
        "name": call.about.rpartition("/")[2],
        "workspace": call.workspace,
        "resource_group": call.resource_group,
        "subscription": call.subscription,
        "scope": call.scope,
        "login": call.login,
    }
    return template.kind(
        template.message.format(**values), hint=template.hint.format(**values) if template.hint else None
    )


def _causes(error: BaseException) -> list[BaseException]:
    """Return an error and its causes, from the attributes `inner_exception`, `reason`, `__cause__` and `args`."""
    seen: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting:
        found = waiting.pop()
        if isinstance(found, BaseException) and found not in seen:
            seen.append(found)
            waiting += [getattr(found, "inner_exception", None), getattr(found, "reason", None), found.__cause__]
            waiting += found.args[:1]
    return seen


_NO_BRACES = str.maketrans("", "", "{}")

_LONGEST = 600
"""Longest shown text: DefaultAzureCredential lists eight kinds of credentials that it has tried."""
