"""Who may ask the page. A browser sends requests for other pages too, so each request must show
that it comes from this page: by its Host, its Origin and a token that only this page has.

`docs/guides/page.md` lists what is refused. The order follows what others were attacked by: DNS
rebinding (a foreign name that leads to 127.0.0.1), requests from foreign pages, guessed tokens.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'"
)
"""What the page may load: only its own files, and no code in its markup."""

_HEADERS = [
    (b"content-security-policy", _CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
]

_READING = ("GET", "HEAD")
_JSON = "application/json"

_CODE_SECONDS = 60.0
"""How long a one-time code of a notebook serves."""


class Keys:
    """The token of this page, which a cookie holds, and the one-time codes that lead to it."""

    def __init__(self, port: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.token: str = secrets.token_urlsafe(24)
        self.cookie: str = f"cloudtrain_{port}"
        """Browsers send a cookie to every port of a host, so two pages need two names."""
        self._clock = clock
        self._codes: dict[str, float] = {}

    def make_code(self) -> str:
        """Return a code that opens the page once, within a minute."""
        code = secrets.token_urlsafe(24)
        self._codes[code] = self._clock() + _CODE_SECONDS
        return code

    def opens(self, text: str) -> bool:
        """Return whether a text in an address opens the page: the token, or an unused code."""
        if _equal(text, self.token):
            return True
        now = self._clock()
        for code, end in list(self._codes.items()):
            if now > end:
                del self._codes[code]
            elif _equal(text, code):
                del self._codes[code]
                return True
        return False

    def allows(self, headers: Mapping[str, str]) -> bool:
        """Return whether a request has the token, in its cookie or as a bearer token."""
        # other servers of this machine may have set cookies that the standard library gives up on
        cookies = cookie_parser(headers.get("cookie", ""))
        if _equal(cookies.get(self.cookie, ""), self.token):
            return True
        kind, _, token = headers.get("authorization", "").partition(" ")
        return kind == "Bearer" and _equal(token, self.token)


def _equal(text: str, secret: str) -> bool:
    """Compare in a time that tells nothing about the secret."""
    return hmac.compare_digest(text.encode("utf-8", "replace"), secret.encode())


class Guard:
    """An ASGI application that passes on only requests of this page.

    `hosts` are the names with port by which the page is reached, such as `127.0.0.1:8765`. With
    `is_readonly`, nothing can be changed.
    """

    def __init__(
        self, app: App, keys: Keys, hosts: Iterable[str], *, is_readonly: bool = False
    ) -> None:
        self._app = app
        self._keys = keys
        self._hosts = frozenset(hosts)
        self._is_readonly = is_readonly

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        headers = {key.decode("latin1"): value.decode("latin1") for key, value in scope["headers"]}
        answer = self._refusal(scope, headers) or self._entry(scope)
        if answer is None and not self._keys.allows(headers):
            answer = PlainTextResponse("open the address that `cloudtrain ui` printed", 401)
        await (answer or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> Response | None:
        """Return the answer to a request that does not come from this page; None for others."""
        method = scope["method"]
        if headers.get("host", "").lower() not in self._hosts:
            return PlainTextResponse("the page does not answer under this name", 421)
        # a link in a notebook or a mail is followed from another site: it may open the page
        is_opened = (
            method == "GET"
            and scope["path"] == "/"
            and headers.get("sec-fetch-mode", "navigate") == "navigate"
        )
        site = headers.get("sec-fetch-site", "same-origin")
        if site not in ("same-origin", "none") and not is_opened:
            return PlainTextResponse("this request comes from another site", 403)
        if method in _READING:
            return None
        if self._is_readonly:
            return PlainTextResponse("this page is for reading only", 403)
        origin = headers.get("origin", "").lower()
        if origin.removeprefix("http://") not in self._hosts or "://" not in origin:
            return PlainTextResponse("this request has no Origin of the page", 403)
        if headers.get("content-type", "").partition(";")[0].strip() != _JSON:
            return PlainTextResponse("send JSON", 415)
        return None

    def _entry(self, scope: Scope) -> Response | None:
        """Return the answer to a request with a token in its address: the same address without it,
        and a cookie. None for others."""
        query = parse_qs(scope["query_string"].decode("latin1"))
        texts = query.get("token", [])
        if scope["method"] != "GET" or not any(map(self._keys.opens, texts)):
            return None
        answer = RedirectResponse(scope["path"], 303)
        # Strict would lose the cookie when a link on another site was clicked
        answer.set_cookie(self._keys.cookie, self._keys.token, httponly=True, samesite="lax")
        return answer
