"""Every refusal of Azure that a user can meet becomes one of our errors, with something to type."""

from __future__ import annotations

from typing import Any

import azure.core.exceptions as core  # noqa: TID253
import azure.identity as identity  # noqa: TID253
import pytest
from azure.storage.blob import StorageErrorCode  # noqa: TID253

from cloudtrain.errors import CloudtrainError, TargetError, TargetUnreachable
from cloudtrain.targets.azureml.service.provider_errors import (
    CODES,
    EXCEPTIONS,
    STATUSES,
    NameTaken,
    RefusedCall,
    refusal_error,
    translate_error,
)  # fmt: skip
from cloudtrain.targets.azureml.settings import AzureMLAccount
from cloudtrain.targets.common.services import Denied, Expired, NotThere

CALL = RefusedCall("GET", "jobs/digits-1", AzureMLAccount("1234", "rg", "ws"))


def body(
    code: str, message: str = "Because it is so.\n  Really.", inner: str = ""
) -> dict[str, Any]:
    """An error as Azure ML writes it: the code that tells is the innermost of an entry of `additionalInfo`."""
    nested = {"code": "BadArgument", "innerError": {"code": inner, "innerError": None}}
    info = [{"type": "ComponentName", "info": {"value": "managementfrontend"}},
            {"type": "InnerError", "info": {"value": nested}}]  # fmt: skip
    return {"error": {"code": code, "message": message, "additionalInfo": info if inner else []}}


def is_for_a_user(error: CloudtrainError) -> None:
    """One line, without a final stop or a name that was not filled in."""
    assert "\n" not in error.message
    assert not error.message.endswith(".")
    assert "{" not in error.message + (error.hint or "")


@pytest.mark.parametrize("code", CODES)
def test_every_code(code: str) -> None:
    """Whatever the status; there is something to type, but for things that are just not there."""
    error = refusal_error(400, body(code), CALL)
    assert isinstance(error, TargetError)
    assert type(error).__name__ == CODES[code]["kind"]
    is_for_a_user(error)
    assert error.hint or isinstance(error, NotThere)


@pytest.mark.parametrize("status", [*STATUSES, 400, 410, 500, 502, 503, 504])
@pytest.mark.parametrize(
    "answer", [None, [], "no JSON", {}, {"error": None}, {"error": "text"}, {"Message": "No."}]
)
def test_answers_of_any_form(status: int, answer: Any) -> None:
    """The status says enough: proxies and front ends have forms of their own."""
    error = refusal_error(status, answer, CALL)
    is_for_a_user(error)
    assert isinstance(error, TargetUnreachable) == (status in (408, 429) or status >= 500)


WORKSPACE = "The Resource 'Microsoft.MachineLearningServices/workspaces/ws' under resource group 'rg' was not found."
ACTION = "does not have authorization to perform action 'Microsoft.MachineLearningServices/workspaces/jobs/write' over"


@pytest.mark.parametrize(
    ("status", "answer", "kind", "part", "hint"),
    [
        (400, body("UserError", "A job with this name already exists.", "JobPropertyImmutable"), NameTaken,
         "a job `digits-1` already", "another name"),
        (400, body("UserError", "A job with this name already exists. If you are"), NameTaken, "`digits-1`", "another"),
        (404, body("UserError", "Run digits-1 was not found", "NotFoundError"), NotThere, "`jobs/digits-1`", ""),
        (404, body("ResourceNotFound", WORKSPACE), NotThere, "workspace `ws`", "az ml workspace list"),
        (404, body("ResourceNotFound", "The Resource 'x' was not found."), NotThere, "`jobs/digits-1`", ""),
        (404, body("ResourceGroupNotFound"), NotThere, "resource group `rg`", "`resource_group` in [azureml]"),
        (404, body("SubscriptionNotFound"), TargetError, "subscription `1234`", "`subscription_id` in [azureml]"),
        (403, body("AuthorizationFailed", f"The client 'ada' {ACTION}"), Denied, "workspaces/jobs/write`",
         'az role assignment create --role "AzureML Data Scientist" --assignee YOU --scope /subscriptions/1234/'),
        (401, body("ExpiredAuthenticationToken"), Expired, "expired", "`az login`"),
        (401, body("InvalidAuthenticationToken"), Expired, "does not accept", "`az login`"),
        (401, body("InvalidAuthenticationTokenTenant"), TargetError, "another tenant", "az login --tenant"),
        (400, body("UserError", "Your quota of 0 cores is exceeded"), TargetError, "quota", "https://ml.azure.com/quota"),
        (409, body("UserError", "Requested cores exceed the quota", "ClusterCoreQuotaReached"), TargetError, "quota", "usage"),
        (400, body("UserError", "The VM size Standard_X is invalid"), TargetError, "Standard_X",
         "cloudtrain instances --target azureml"),
        (400, body("UserError", "Compute gpu does not exist"), NotThere, "Compute gpu", "az ml compute list"),
        (400, body("UserError", "The display name is too long."), TargetError, "display name is too long", "check"),
        (429, body("TooManyRequests"), TargetUnreachable, "limits the rate", "again"),
        (409, body("Conflict", "Etag differs"), TargetError, "Etag differs", "again"),
        (418, body("IAmATeapot", "Short and stout"), TargetError, "(IAmATeapot): Short and stout", ""),
        (418, body("{code}", "{said}"), TargetError, "(code): {said}", ""),
    ],
)  # fmt: skip
def test_what_is_said(status: int, answer: Any, kind: type, part: str, hint: str) -> None:
    """The words that matter, by code, inner code, words and status."""
    error = refusal_error(status, answer, CALL)
    assert type(error) is kind
    assert part in error.message
    assert hint in (error.hint or "")


def caused(outer: type[Exception], *causes: Exception) -> Exception:
    """An error of azure-core around those of requests and urllib3."""
    inner: Any = None
    for cause in reversed(causes):
        cause.__cause__ = inner
        inner = cause
    error = outer("HTTPSConnectionPool(host='x', port=443): Max retries exceeded")
    error.inner_exception = inner  # type: ignore[attr-defined]
    return error


def chained(*names: str) -> Exception:
    """An error whose causes have these class names."""
    return caused(core.ServiceRequestError, *[type(name, (OSError,), {})(name) for name in names])


def login_failed(why: str) -> Exception:
    """What DefaultAzureCredential raises where a credential is there, and its server was not reached."""
    return core.ClientAuthenticationError(
        f"{CREDENTIAL}: HTTPSConnection(host='login', port=443): {why}"
    )


CREDENTIAL = "DefaultAzureCredential failed to retrieve a token.\nAttempted credentials:\n\tEnvironmentCredential: no"


@pytest.mark.parametrize(
    ("error", "kind", "hint"),
    [
        (identity.CredentialUnavailableError(CREDENTIAL), TargetError, "`az login`"),
        (core.ClientAuthenticationError(CREDENTIAL), TargetError, "`az login`"),
        (
            core.ClientAuthenticationError("AADSTS700082: The refresh token has expired"),
            Expired,
            "`az login`",
        ),
        (
            core.ClientAuthenticationError("AADSTS7000222: The client secret has expired"),
            TargetError,
            "credential reset",
        ),
        (core.ClientAuthenticationError("AADSTS90002: Tenant not found"), TargetError, "--tenant"),
        (core.ClientAuthenticationError("AADSTS50076: MFA"), TargetError, "--tenant"),
        (login_failed("Failed to resolve 'login'"), TargetUnreachable, "DNS"),
        (login_failed("Failed to establish a new connection"), TargetUnreachable, "network"),
        (login_failed("connection timed out"), TargetUnreachable, "network"),
        (login_failed("[SSL: CERTIFICATE_VERIFY_FAILED]"), TargetError, "REQUESTS_CA_BUNDLE"),
        (login_failed("('Unable to connect to proxy', 1)"), TargetUnreachable, "HTTPS_PROXY"),
        (core.ServiceRequestError("refused"), TargetUnreachable, "network"),
        (core.ServiceRequestTimeoutError("slow"), TargetUnreachable, "network"),
        (core.ServiceResponseError("closed"), TargetUnreachable, "network"),
        (core.ServiceResponseTimeoutError("slow"), TargetUnreachable, "network"),
        (core.IncompleteReadError("half"), TargetUnreachable, "again"),
        (core.DecodeError("<html>"), TargetUnreachable, "again"),
        (core.AzureError("who knows"), TargetError, ""),
        (FileNotFoundError(2, "No such file", "/nowhere/token"), TargetError, "`az login`"),
        (OSError("no CA bundle"), TargetError, "REQUESTS_CA_BUNDLE"),
        (chained("SSLError", "SSLCertVerificationError"), TargetError, "REQUESTS_CA_BUNDLE"),
        (chained("SSLError", "SSLEOFError"), TargetUnreachable, "network"),
        (chained("ProxyError"), TargetUnreachable, "HTTPS_PROXY"),
        (chained("ConnectionError", "NameResolutionError"), TargetUnreachable, "private endpoint"),
    ],
    ids=repr,
)
def test_what_never_reached_the_service(error: Exception, kind: type, hint: str) -> None:
    """No credentials, no network, no trust."""
    ours = translate_error(error, CALL)
    assert type(ours) is kind
    assert hint in (ours.hint or "")
    is_for_a_user(ours)


def test_every_exception_of_azure_core_has_a_row() -> None:
    """Those of later versions too, by what they derive from."""
    for found in vars(core).values():
        if isinstance(found, type) and issubclass(found, core.AzureError):
            assert {kind.__name__ for kind in found.__mro__} & set(EXCEPTIONS)


class StorageError(core.HttpResponseError):
    """As azure-storage-blob raises it: the code in a field, as a text or as a member of its enum where that has it; ids
    and time in further lines.
    """

    def __init__(self, status: int, code: str | StorageErrorCode) -> None:
        super().__init__(
            f"This request may not do this.\nRequestId:1\nTime:2\nErrorCode:{getattr(code, 'value', code)}"
        )
        self.status_code, self.error_code = status, code


@pytest.mark.parametrize(
    ("status", "code", "kind", "part"),
    [
        (403, "AuthorizationPermissionMismatch", Denied, "storage account"),
        (403, "AuthorizationFailure", Denied, "storage account"),
        (404, "BlobNotFound", NotThere, "storage"),
        (404, "ContainerNotFound", NotThere, "storage"),
        (403, "AuthenticationFailed", Expired, "does not accept"),
        (503, "ServerBusy", TargetUnreachable, "rate"),
        (412, "ConditionNotMet", TargetError, " (ConditionNotMet): "),
        (412, StorageErrorCode.CONDITION_NOT_MET, TargetError, " (ConditionNotMet): "),
        (404, StorageErrorCode.BLOB_NOT_FOUND, NotThere, "storage"),
    ],
)
def test_storage(status: int, code: str | StorageErrorCode, kind: type, part: str) -> None:
    """Its codes are known too, and its ids are left out."""
    error = translate_error(StorageError(status, code), CALL)
    assert type(error) is kind
    assert part in error.message
    assert "RequestId" not in error.message
