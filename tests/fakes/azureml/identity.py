"""Sign-in: a managed identity's endpoint (the App Service form, plain http), and what a token must be to be let in.

Tokens have the three parts of a JWT, with `aud`, `exp`, `oid` and `tid`; the signature is a word. azure-identity takes
IDENTITY_ENDPOINT and IDENTITY_HEADER from the environment, and asks
`GET ENDPOINT?api-version=2019-08-01&resource=AUDIENCE` with that header.
"""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.azureml.messages import Refused, Reply, Request, answer

TENANT = "11111111-1111-1111-1111-111111111111"
OBJECT = "22222222-2222-2222-2222-222222222222"
STORAGE, STUDIO = "https://storage.azure.com", "https://ml.azure.com"
"""Audiences: of the blob store, and of the token that a job acts with for its user."""
_SIGNATURE = "c2lnbmVkLWJ5LXRoZS1mYWtl"


@dataclass
class Identity:
    """The sign-in service. `asked` has the audience of every token that was given out, in order."""

    header: str = "the-secret-of-this-identity"
    lifetime: float = 3600
    """Seconds that a token lasts. azure-identity asks again for every request when it is less than 300."""
    refuses: bool = False
    """Whether it says that this identity does not exist."""
    asked: list[str] = field(default_factory=list)

    def handle(self, request: Request) -> Reply:
        """The answer of the identity's endpoint."""
        if request.headers.get("x-identity-header") != self.header:
            return answer({"statusCode": 401, "message": "wrong X-IDENTITY-HEADER"}, 401)
        resource = request.query.get("resource", "")
        if self.refuses or request.query.get("api-version") != "2019-08-01" or not resource:
            return answer(
                {"statusCode": 400, "message": "Unable to get a token for this managed identity"},
                400,
            )
        self.asked.append(resource)
        expires = int(time.time() + self.lifetime)
        token = {
            "access_token": make_token(resource, expires),
            "expires_on": str(expires),
            "resource": resource,
        }
        return answer(token | {"token_type": "Bearer", "client_id": OBJECT})


def make_token(audience: str, expires: float, **claims: Any) -> str:
    """A token for an audience until a time, in seconds since the epoch."""
    head = {"typ": "JWT", "alg": "RS256"}
    body = {
        "aud": audience,
        "exp": int(expires),
        "iat": int(time.time()),
        "tid": TENANT,
        "oid": OBJECT,
        "idtyp": "app",
    }
    return f"{_encoded(head)}.{_encoded(body | claims)}.{_SIGNATURE}"


def check_bearer(request: Request, audiences: tuple[str, ...]) -> None:
    """401 in ARM's words unless the request has a token for one of the audiences whose time is not over."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    challenge = f'Bearer authorization_uri="https://login.microsoftonline.com/{TENANT}"'
    if kind != "Bearer":
        message = "Authentication failed. The 'Authorization' header is missing."
        raise Refused(401, "AuthenticationFailed", message, headers={"WWW-Authenticate": challenge})
    invalid = {"WWW-Authenticate": f'{challenge}, error="invalid_token"'}
    try:
        claims = read_claims(token)
    except ValueError:
        raise Refused(
            401, "InvalidAuthenticationToken", "The access token is invalid.", headers=invalid
        ) from None
    if claims["exp"] <= time.time():
        message = "The access token expiry UTC time is earlier than current UTC time."
        raise Refused(401, "ExpiredAuthenticationToken", message, headers=invalid)
    if claims["aud"].rstrip("/") not in audiences:
        wanted = ", ".join(f"'{audience}'" for audience in audiences)
        message = f"The access token has been obtained for wrong audience or resource '{claims['aud']}'. Use {wanted}."
        raise Refused(401, "InvalidAuthenticationTokenAudience", message, headers=invalid)


def read_claims(token: str) -> dict[str, Any]:
    """What a token says. ValueError: it is none of ours."""
    _, body, signature = token.split(".")
    if signature != _SIGNATURE:
        raise ValueError("not one of ours")
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return claims


def _encoded(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
