"""The addresses of the page, and what each answers or changes. The page approves nothing that costs
money: for that it shows the command."""

from __future__ import annotations

import asyncio
import json
import math
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from cloudtrain.api import costs, diff
from cloudtrain.errors import CloudtrainError, RunNotFound, UsageError
from cloudtrain.lifecycle.runs.compare import compare
from cloudtrain.lifecycle.runs.costs import grouping, is_free, sums
from cloudtrain.lifecycle.runs.find import run as find_run
from cloudtrain.lifecycle.runs.overview import move_in_queue, queue
from cloudtrain.lifecycle.runs.run import ChainedRun, Run
from cloudtrain.lifecycle.runs.sweep import sweep_of
from cloudtrain.page import details
from cloudtrain.page.feed import Feed
from cloudtrain.page.forms import Packed, document_data, json_text, pack, saved_page

_STATIC = Path(__file__).parent / "static"

_LARGEST_WINDOW = 2000
"""Lines of output in one answer."""

_OPEN_LOGS = 4
"""Logs that are kept between two looks. One of a million lines takes 40 MB at most."""

_MOST_COMPARED = 50
"""Runs in one comparison."""

_LARGEST_BODY = 100_000
"""Bytes of a request."""

_STATUS = ((RunNotFound, 404), (UsageError, 400), (CloudtrainError, 502))
"""The status of the answer to an error."""

_JSON = "application/json"

Endpoint = Callable[[Request], Awaitable[Response]]
Body = Mapping[str, Any]


def make_app() -> Starlette:
    """Return the application, without its guard."""
    feed = Feed()
    listing = details.Listing()
    open_log = lru_cache(maxsize=_OPEN_LOGS)(details.OpenLog)

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        first = asyncio.create_task(run_in_threadpool(_read_first, listing))
        yield
        await first
        feed.close()

    def runs(request: Request) -> Any:
        since = _number(request, "since")
        newest = _number(request, "newest")
        is_whole = since is None and newest is None
        return listing.packed() if is_whole else listing.runs(since, newest)

    async def events(_: Request) -> Response:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(feed.events(), media_type="text/event-stream", headers=headers)

    def shown(request: Request) -> Any:
        run = _run(request)
        return details.details(run, feed.status(run))

    def window(request: Request) -> Any:
        log = open_log(_run(request).name, _number(request, "rank"))
        count = max(0, min(_number(request, "count") or 0, _LARGEST_WINDOW))
        return log.window(_number(request, "first") or 0, count)

    def find(request: Request) -> Any:
        log = open_log(_run(request).name, _number(request, "rank"))
        first = max(0, _number(request, "first") or 0)
        return log.find(request.query_params.get("text"), first)

    def act(request: Request, body: Body) -> Any:
        run = _run(request)
        answer = ACTIONS[request.path_params["action"]](run, body)
        feed.ask_again(run.name)
        return answer

    answers: dict[str, Callable[[Request], Any]] = {
        "/runs": runs,
        "/live": lambda _: feed.live(),
        "/queue": _queue,
        "/costs": _costs,
        "/difference": _difference,
        "/compared": lambda request: details.compared(_runs_of(request)),
        "/runs/{name}": shown,
        "/runs/{name}/sent": lambda request: details.sent(_run(request)),
        "/runs/{name}/code": lambda request: details.code(_run(request)),
        "/runs/{name}/code/{path:path}": _code_file,
        "/runs/{name}/curves": _curves,
        "/runs/{name}/stacks": lambda request: details.stacks(_run(request)),
        "/runs/{name}/machines/curves": _machines,
        "/runs/{name}/log": window,
        "/runs/{name}/find": find,
        "/runs/{name}/files": lambda request: details.files(_run(request)),
    }
    routes: list[BaseRoute] = []
    for path, answer in answers.items():
        routes.append(Route(f"/api{path}", _json(answer)))
    routes += [
        Route("/", _index),
        Route("/api/events", events),
        Route("/api/saved", _saved),
        Route("/api/runs/{name}/saved", _saved),
        Route("/api/runs/{name}/file/{path:path}", _file),
        Route("/api/runs/{name}/{action}", _change(act), methods=["POST"]),
        Mount("/static", StaticFiles(directory=_STATIC)),
    ]
    return Starlette(routes=routes, lifespan=life, exception_handlers={CloudtrainError: _error})


def _read_first(listing: details.Listing) -> None:
    """Read the runs before a browser asks for them."""
    with suppress(CloudtrainError):  # the browser will be told
        listing.packed()


async def _index(_: Request) -> Response:
    return FileResponse(_STATIC / "index.html", headers={"cache-control": "no-cache"})


def _json(answer: Callable[[Request], Any]) -> Endpoint:
    """Return an endpoint that sends what `answer` returns, unless the browser has it already.
    `answer` runs in a thread."""

    def packed(request: Request) -> Packed:
        value = answer(request)
        return value if isinstance(value, Packed) else pack(value)

    async def endpoint(request: Request) -> Response:
        data, tag = await run_in_threadpool(packed, request)
        headers = {"etag": tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        headers["content-encoding"] = "gzip"
        return Response(data, media_type=_JSON, headers=headers)

    return endpoint


def _change(act: Callable[[Request, Body], Any]) -> Endpoint:
    """Return an endpoint that does something to a run. The guard has seen that the request comes
    from the page."""

    async def endpoint(request: Request) -> Response:
        if request.path_params["action"] not in ACTIONS:
            return _said({"error": {"message": "there is no such action"}}, 404)
        content = await request.body()
        try:
            body = json.loads(content or b"{}") if len(content) <= _LARGEST_BODY else None
            json.dumps(body, ensure_ascii=False).encode()  # half a character is no text
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return _said({"error": {"message": "the body is no JSON object"}}, 400)
        return _said(await run_in_threadpool(act, request, body))

    return endpoint


async def _error(_: Request, error: Exception) -> Response:
    """Return an error as the command line says it."""
    assert isinstance(error, CloudtrainError), "no other comes here"
    status = next(number for kind, number in _STATUS if isinstance(error, kind))
    said = {"message": error.message, "hint": error.hint, "code": error.code}
    return _said({"error": said}, status)


def _said(answer: Any, status: int = 200) -> Response:
    return Response(json_text(answer), status, media_type=_JSON)


def _run(request: Request) -> Run:
    return _named(request.path_params["name"])


def _named(name: str) -> Run:
    """Return the run of the store that an address names in full."""
    is_reference = "://" in name  # with which any run of an account can be looked at
    run = None if is_reference else find_run(name)
    if run is None or run.name != name:
        raise RunNotFound(f"there is no run `{name}`", hint="`cloudtrain ps` lists the runs")
    return run


def _runs_of(request: Request) -> list[Run]:
    """Return the runs that a query names."""
    return list(map(_named, request.query_params.getlist("run")[:_MOST_COMPARED]))


def _number(request: Request, name: str) -> int | None:
    """Return a whole number of the query; None if it is not given."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if re.fullmatch("-?[0-9]{1,15}", text) is None:
        raise UsageError(
            f"`{name}={text}` is not a whole number", hint=f"`{name}=10`", code="CT909"
        )
    return int(text)


def _queue(_: Request) -> Any:
    return [run.row() for run in queue()]


def _costs(request: Request) -> Any:
    by = request.query_params.get("by", "job")
    group_of = grouping(by)
    if group_of is None:
        hint = "`job`, `month`, `target` or `tag:KEY`"
        raise UsageError(f"`{by}` is not a valid group", hint=hint, code="CT909")
    groups = sums(costs(online=False), group_of)
    return [{**group._asdict(), "total": group.total} for group in groups]


def _difference(request: Request) -> Any:
    query = request.query_params
    before = _named(query.get("before", ""))
    after = _named(query.get("after", ""))
    return document_data(diff(before, after).document())


def _curves(request: Request) -> Any:
    query = request.query_params
    try:
        start = float(query.get("start", "-inf"))
        end = float(query.get("end", "inf"))
    except ValueError:
        start = end = math.nan
    if math.isnan(start) or math.isnan(end):
        raise UsageError("`start` and `end` are steps", hint="`start=0&end=100`", code="CT909")
    return details.curves(_run(request).metrics(), query.getlist("name"), start, end)


def _machines(request: Request) -> Any:
    return details.curves(_run(request).machines(), ())


def _code_file(request: Request) -> Any:
    return details.code_file(_run(request), request.path_params["path"])


async def _file(request: Request) -> Response:
    """Send a file of a run as a download. It is never shown as a page."""
    run = await run_in_threadpool(_run, request)
    shown = request.path_params["path"]
    path = await run_in_threadpool(details.file_of, run, shown)
    if path is None:
        raise RunNotFound(f"`{run.name}` has no file `{shown}`", hint="reload the page")
    return FileResponse(path, media_type="application/octet-stream", filename=path.name)


async def _saved(request: Request) -> Response:
    """Send a run or a comparison as one HTML file, which loads nothing."""

    def page() -> tuple[str, str]:
        if "name" in request.path_params:
            run = _run(request)
            return run.name, saved_page(run.name, run)
        runs = _runs_of(request)
        return f"{len(runs)}-runs", saved_page(f"{len(runs)} runs", compare(runs))

    name, text = await run_in_threadpool(page)
    headers = {"content-disposition": f'attachment; filename="{name}.html"'}
    return Response(text, media_type="text/html", headers=headers)


# What can be changed.

_MOST_TRIALS = 10_000


def _stop(run: Run, _: Body) -> dict[str, Any]:
    run.stop()
    return {"said": f"`{run.name}` was asked to stop"}


def _rerun(run: Run, _: Body) -> dict[str, Any]:
    if not is_free(run.target):
        return _typed("rerun", run.name)
    again = run.rerun()
    return {"said": f"`{again.name}` was submitted", "run": again.name}


def _continue(run: Run, body: Body) -> dict[str, Any]:
    """Continue a sweep, with `trials` more of them, or the wait for other runs."""
    trials = body.get("trials", 0)
    if type(trials) is not int or not 0 <= trials <= _MOST_TRIALS:
        raise _wrong(body)
    if not is_free(run.target):
        more = ("--trials", str(trials)) if trials else ()
        return _typed("continue", run.name, *more)
    if isinstance(run, ChainedRun):
        run.resume()
        return {"said": f"`{run.name}` waits again", "run": run.name}
    again = sweep_of(run).resume(trials)
    return {"said": f"`{again.name}` continues", "run": again.name}


def _typed(*words: str) -> dict[str, Any]:
    """Return a command for the person to type, because the run costs money."""
    return {"command": shlex.join(("cloudtrain", *words))}


def _annotate(run: Run, body: Body) -> dict[str, Any]:
    note = body.get("note")
    pinned = body.get("pinned")
    tags = body.get("tags") or {}
    if not isinstance(note, str | None) or not isinstance(pinned, bool | None):
        raise _wrong(body)
    if not isinstance(tags, dict) or not all(tags):
        raise _wrong(body)
    if not all(isinstance(tag, str | None) for tag in tags.values()):
        raise _wrong(body)
    run.annotate(note, tags=tags, pinned=pinned)
    return {"said": f"`{run.name}` was changed"}


def _move(run: Run, body: Body) -> dict[str, Any]:
    before = body.get("before")
    other = None if before is None else find_run(str(before))
    move_in_queue(run, before=other, last=body.get("last") is True)
    return {"said": f"`{run.name}` was moved"}


def _wrong(body: Body) -> UsageError:
    hint = "docs/guides/page.md describes what the page takes"
    return UsageError(f"the request is not understood: {dict(body)}", hint=hint, code="CT909")


ACTIONS: Mapping[str, Callable[[Run, Body], dict[str, Any]]] = {
    "stop": _stop,
    "rerun": _rerun,
    "continue": _continue,
    "annotate": _annotate,
    "move": _move,
}
"""What can be done to a run, by the last part of the address."""
