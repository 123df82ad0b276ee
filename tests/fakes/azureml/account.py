"""A storage account: its address, its key, the signatures that it gives, and whom it lets in."""

from __future__ import annotations

import time
from typing import NamedTuple
from urllib.parse import quote

from tests.fakes.azureml import identity, sas
from tests.fakes.azureml.messages import Refused, Request

KEY = "bm9ib2R5LWhhcy10aGlzLWtleS1idXQtdGhlLWZha2U="
"""Of the account, in base64."""

_AUTHENTICATION_FAILED = (
    "Server failed to authenticate the request. Make sure the value of Authorization header is formed correctly "
    "including the signature."
)


class Place(NamedTuple):
    container: str
    blob: str


class Account:
    """Signatures, the key and tokens open it; nothing in it is public.

    Its address is `https://localhost:PORT/ACCOUNT.blob.SUFFIX`: clients put the account's name between `https://` and
    `.blob.`, so an account called `localhost:PORT/fakeacct` leads them here.
    """

    def __init__(self) -> None:
        self.account = "fakeacct"
        self.host = ""
        """`localhost:PORT`, once the server listens."""
        self.suffix = "core.windows.net"
        self.allows_shared_key = True

    @property
    def account_name(self) -> str:
        """What datastores call the account."""
        return f"{self.host}/{self.account}"

    @property
    def prefix(self) -> str:
        """The path of the account."""
        return f"/{self.account}.blob.{self.suffix}"

    @property
    def url(self) -> str:
        return f"https://{self.host}{self.prefix}"

    def sas_url(
        self, container: str, blob: str = "", *, permissions: str = "r", seconds: float = 3600
    ) -> str:
        """The address of a container or a blob that opens it for a while; no token is needed with it."""
        token = self.sas_token(container, blob, permissions=permissions, seconds=seconds)
        return f"{self.url}/{container}" + (f"/{quote(blob)}" if blob else "") + f"?{token}"

    def sas_token(
        self, container: str, blob: str = "", *, permissions: str = "rl", seconds: float = 3600
    ) -> str:
        expires = time.time() + seconds
        return sas.make_token(
            self.account, container, blob, KEY, permissions=permissions, expires=expires
        )

    def authorize(self, request: Request, place: Place, permissions: str) -> None:
        """Refuses who may not: one of the permissions is needed where a signature is shown."""
        kind = request.headers.get("authorization", "").partition(" ")[0]
        if "sig" in request.query:
            self._check_sas(request, place, permissions)
        elif kind == "SharedKey":
            self._check_shared_key(request)
        elif kind == "Bearer":
            _check_token(request)
        else:
            message = "Public access is not permitted on this storage account."
            raise Refused(409, "PublicAccessNotPermitted", message)

    def _check_sas(self, request: Request, place: Place, permissions: str) -> None:
        reason = sas.refusal(request.query, self._names, place.container, place.blob, KEY)
        if reason:
            raise Refused(403, "AuthenticationFailed", f"{_AUTHENTICATION_FAILED} {reason}")
        if not set(permissions) & set(request.query.get("sp", "")):
            message = (
                "This request is not authorized to perform this operation using this permission."
            )
            raise Refused(403, "AuthorizationPermissionMismatch", message)

    def _check_shared_key(self, request: Request) -> None:
        account = request.headers["authorization"].removeprefix("SharedKey ").rpartition(":")[0]
        if account not in self._names:
            raise Refused(403, "AuthenticationFailed", _AUTHENTICATION_FAILED)
        if not self.allows_shared_key:
            message = "Key based authentication is not permitted on this storage account."
            raise Refused(403, "KeyBasedAuthenticationNotPermitted", message)

    @property
    def _names(self) -> tuple[str, ...]:
        """All that clients take for the account's name: they cut it out of the address, each in its own way."""
        return self.account, self.account_name, self.prefix.lstrip("/")


def _check_token(request: Request) -> None:
    if "x-ms-version" not in request.headers:
        message = f"{_AUTHENTICATION_FAILED} Authentication scheme Bearer is not supported in this version."
        raise Refused(403, "AuthenticationFailed", message)
    try:
        identity.check_bearer(request, (identity.STORAGE,))
    except Refused as refusal:
        code = "InvalidAuthenticationInfo"
        raise Refused(401, code, refusal.message, headers=refusal.headers) from None
