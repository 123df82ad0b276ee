"""Only the page itself may ask: what a foreign page, a guessed name or an old link sends is refused."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra `ui` is not installed")

from cloudtrain.page.guard import Guard, Keys
from tests.page.asgi import HOST, Answer, ask

HOSTS = [HOST, "localhost:8765", "[::1]:8765"]
JSON = {"content_type": "application/json"}
OWN = {"origin": f"http://{HOST}", **JSON}


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys(clock: Clock) -> Keys:
    return Keys(8765, clock)


@pytest.fixture
def app(keys: Keys) -> Guard:
    return Guard(_inside, keys, HOSTS)


async def _inside(scope: Any, receive: Any, send: Any) -> None:
    """The guarded application, which answers everything."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"inside"})


def bearer(keys: Keys) -> str:
    return f"Bearer {keys.token}"


@pytest.mark.parametrize("host", HOSTS)
def test_a_request_with_the_token_is_answered(app: Guard, keys: Keys, host: str) -> None:
    """As the page itself sends them, by each of its names."""
    answer = ask(app, "/api/runs", host=host, authorization=bearer(keys))
    assert (answer.status, answer.body) == (200, b"inside")


@pytest.mark.parametrize(
    "host",
    [
        None, "", "evil.example", "evil.example:8765", "127.0.0.1", "127.0.0.1:80", "127.0.0.2:8765",
        "127.0.0.1:8765.evil.example", "localhost", "localhost:8765@evil.example", "[::1]",
        "127.0.0.1:87650", "0.0.0.0:8765", "127.0.0.1:8765 ",
    ],
)  # fmt: skip
def test_other_names_are_refused(app: Guard, keys: Keys, host: str | None) -> None:
    """A foreign name may lead to this machine (DNS rebinding). The token does not help."""
    assert ask(app, "/", host=host, authorization=bearer(keys)).status == 421


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "MADE-UP"]
)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (JSON, 403),
        ({"origin": "null", **JSON}, 403),
        ({"origin": "http://evil.example", **JSON}, 403),
        ({"origin": f"https://{HOST}", **JSON}, 403),
        ({"origin": HOST, **JSON}, 403),
        ({"origin": f"http://{HOST}.evil.example", **JSON}, 403),
        ({"origin": "http://127.0.0.1", **JSON}, 403),
        ({"origin": f"http://{HOST}"}, 415),
        ({"origin": f"http://{HOST}", "content_type": "text/plain"}, 415),
        ({"origin": f"http://{HOST}", "content_type": "application/x-www-form-urlencoded"}, 415),
        ({**OWN, "sec_fetch_site": "cross-site"}, 403),
        ({**OWN, "sec_fetch_site": "same-site"}, 403),
        (OWN, 200),
        ({**OWN, "sec_fetch_site": "same-origin"}, 200),
    ],
)
def test_changes_need_the_origin_of_the_page(
    app: Guard, keys: Keys, method: str, headers: dict[str, str], status: int
) -> None:
    """Every method but GET and HEAD, known or not."""
    answer = ask(app, "/api/runs/x/stop", method, authorization=bearer(keys), **headers)
    assert answer.status == status


def test_another_site_can_open_the_page_and_nothing_else(app: Guard, keys: Keys) -> None:
    """A link in a notebook or a mail is a navigation from another site."""
    came = {"sec_fetch_site": "cross-site", "authorization": bearer(keys)}
    assert ask(app, "/", sec_fetch_mode="navigate", **came).status == 200
    assert ask(app, "/", sec_fetch_mode="no-cors", **came).status == 403
    assert ask(app, "/api/runs", sec_fetch_mode="navigate", **came).status == 403
    assert ask(app, "/api/runs", sec_fetch_mode="cors", **came).status == 403


def cookie_of(answer: Answer) -> str:
    return answer.headers["set-cookie"].partition(";")[0]


def test_the_token_becomes_a_cookie_and_leaves_the_address(app: Guard, keys: Keys) -> None:
    """No script of the page can read the cookie, and no other page of this host has its name."""
    answer = ask(app, f"/?token={keys.token}")
    assert (answer.status, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert cookie.startswith("cloudtrain_8765=")
    assert {"httponly", "samesite=lax"} <= {part.strip() for part in cookie.split(";")}
    for other in ("other=1", "a[b]=1", 'x={"a": 1}', 'a="b', "", "x"):
        assert ask(app, "/api/runs", cookie=f"{other}; {cookie_of(answer)}").status == 200


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer ", "Bearer x", "Basic abc", "\xff\xfe"]
)
@pytest.mark.parametrize(
    "cookie", [None, "cloudtrain_8765=", "cloudtrain_8765=x", "cloudtrain_1=x", "="]
)
@pytest.mark.parametrize(
    "path", ["/", "/api/runs", "/static/main.js", "/?token=", "/?token=x", "/api/events"]
)
def test_without_the_token_there_is_nothing(
    app: Guard, authorization: str | None, cookie: str | None, path: str
) -> None:
    """Not even the page's own files."""
    answer = ask(app, path, authorization=authorization, cookie=cookie)
    assert (answer.status, b"inside" in answer.body) == (401, False)


def test_a_code_of_a_notebook_serves_once_and_a_minute(
    app: Guard, keys: Keys, clock: Clock
) -> None:
    """What stays in a saved notebook opens nothing."""
    code = keys.make_code()
    assert code != keys.token
    assert ask(app, f"/?token={code}").status == 303
    assert ask(app, f"/?token={code}").status == 401

    late = keys.make_code()
    clock.now += 61
    assert ask(app, f"/?token={late}").status == 401

    assert ask(app, "/api/runs", authorization=f"Bearer {keys.make_code()}").status == 401


def test_a_code_is_not_used_up_by_reading_ahead(app: Guard, keys: Keys) -> None:
    """Some programs ask for the head of a link before a person opens it."""
    code = keys.make_code()
    ask(app, f"/?token={code}", "HEAD")
    assert ask(app, f"/?token={code}").status == 303


HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {"host": "evil.example"}, 421),
        ("/", {"sec_fetch_site": "cross-site", "sec_fetch_mode": "cors"}, 403),
        ("/", {}, 401),
        ("/?token=TOKEN", {}, 303),
        ("/", {"authorization": "Bearer TOKEN"}, 200),
    ],
)
def test_every_answer_says_what_a_browser_may_do(
    app: Guard, keys: Keys, path: str, headers: dict[str, str], status: int
) -> None:
    """Also those that refuse."""
    given = {name: value.replace("TOKEN", keys.token) for name, value in headers.items()}
    answer = ask(app, path.replace("TOKEN", keys.token), **given)
    assert answer.status == status
    assert HEADERS.items() <= answer.headers.items()
    policy = dict(
        rule.strip().partition(" ")[::2]
        for rule in answer.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in answer.headers["content-security-policy"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_a_page_for_others_is_for_reading(keys: Keys, method: str) -> None:
    """Beyond loopback, nothing can be changed, whoever asks."""
    app = Guard(_inside, keys, ["server.example:8765"], is_readonly=True)
    host = {"host": "server.example:8765", "authorization": bearer(keys)}
    assert ask(app, "/api/runs", **host).status == 200
    origin = "http://server.example:8765"
    assert ask(app, "/api/runs/x/stop", method, origin=origin, **JSON, **host).status == 403
