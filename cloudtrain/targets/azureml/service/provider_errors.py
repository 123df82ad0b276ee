"""Translate Azure's errors to cloudtrain's errors by the table `errors.toml`.

An error of Azure ML has codes at several depths: a general one on top (`UserError`), and a specific
one below it (`JobPropertyImmutable`), in `innerError` or in an entry of `additionalInfo`. The
deepest code that `CODES` contains decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cloudtrain.documents.document import load_table
from cloudtrain.errors import NameTaken, TargetError, TargetUnreachable, shortened
from cloudtrain.rules.engine import mapping_at, rows_at, value_at
from cloudtrain.targets.azureml.settings import AzureMLAccount
from cloudtrain.targets.common.services import Denied, Expired, NotThere


class RefusedCall(NamedTuple):
    """A refused request and its workspace. `method` is, for example, `PUT`; `about` is
    `jobs/cifar10-3f9a1c22-1`."""

    method: str
    about: str
    place: AzureMLAccount
    login: str = "log in: `az login`"
    """How to get credentials that work."""


Row = dict[str, Any]

_KINDS: Mapping[str, type[TargetError]] = {
    kind.__name__: kind
    for kind in (Denied, Expired, NameTaken, NotThere, TargetError, TargetUnreachable)
}

_ROWS: dict[str, Row] = load_table(__file__, "../data/errors.toml")
"""The errors that replace Azure's. `_make_error` fills in the fields of their texts, such as
`{said}`."""


def _by(column: str) -> dict[Any, Row]:
    """Map each value in a column of the table to its row."""
    return {key: row for row in _ROWS.values() for key in row.get(column, ())}


CODES = _by("codes")
STATUSES = _by("statuses")
EXCEPTIONS = _by("exceptions")

_GENERAL = ("UserError", "ValidationError", "BadArgument", "Conflict")
"""Codes that say less than the texts do."""

_ACTION = r"perform(?:ing)? (?:the )?action '(?P<action>[^']+)'"


def translate_error(error: Exception, call: RefusedCall) -> TargetError:
    """Return cloudtrain's error for an exception of Azure's packages."""
    status = getattr(error, "status_code", None)
    text = str(getattr(error, "message", None) or error)
    if status is not None:
        code = getattr(error, "error_code", None) or ""  # storage's enum, if it knows the code
        # Storage adds lines with the request id and the time.
        line = text.strip().partition("\n")[0]
        body = {"code": str(getattr(code, "value", code)), "message": line}
        return refusal_error(int(status), body, call)

    row = _matching("login", text)
    if row is None:
        # the first row that names the class of the error, of a cause, or of a base of these
        names = {kind.__name__ for cause in _causes(error) for kind in type(cause).__mro__}
        row = next(row for name, row in EXCEPTIONS.items() if name in names)
    return _make_error(row, text, call)


def refusal_error(status: int, body: object, call: RefusedCall) -> TargetError:
    """Return cloudtrain's error for an answer with a `status` of 300 or more. `body` is its JSON
    data, or None."""
    error = error_fields(body)
    message = str(error.get("message") or error.get("Message") or "")
    # Of a body with a wrong field, only the details name the field (recorded March 2026).
    details = [text for text in detail_messages(error) if text not in message]
    message = " ".join([message, *details]).strip()
    row = _row_of(status, list(_codes(error)), message)
    if row is _ROWS["not_there"] and call.method == "PUT":
        # a PUT creates what its path names, so the body names something missing
        row = _ROWS["names_nothing"]
    return _make_error(row, message, call)


def _row_of(status: int, codes: list[str], message: str) -> Row:
    """Return the row of a specific code, or else of the message, the status or a general code."""
    known_codes = [code for code in codes if code in CODES]
    if known_codes and known_codes[-1] not in _GENERAL:
        return CODES[known_codes[-1]]

    row = _matching("text", message)
    if row is not None:
        return row
    if status in STATUSES:
        return STATUSES[status]
    if status >= 500:
        return _ROWS["broken"]
    if known_codes:
        return CODES[known_codes[-1]]
    code = f" ({codes[-1]})".translate(_NO_BRACES) if codes else ""
    return {"kind": "TargetError", "message": f"Azure refuses `{{action}}`{code}: {{said}}"}


def _matching(column: str, text: str) -> Row | None:
    """Return the first row whose pattern in a column the text contains."""
    for row in _ROWS.values():
        if column in row and re.search(row[column], text):
            return row
    return None


def error_fields(body: object) -> Mapping[str, Any]:
    """Return the `error` of an answer, or the answer itself: some services send the error without
    this field."""
    return mapping_at(body, "error") or mapping_at(body)


def detail_messages(error: Mapping[str, Any]) -> Iterator[str]:
    """Yield the messages in the `details` of an error, at every depth."""
    for detail in rows_at(error, "details"):
        if detail.get("message"):
            yield str(detail["message"])
        yield from detail_messages(detail)


def _codes(error: object) -> Iterator[str]:
    """Yield all codes of an error, the most general code first."""
    if not isinstance(error, Mapping):
        return
    if error.get("code"):
        yield str(error["code"])
    for detail in error.get("details") or ():
        yield from _codes(detail)
    for item in error.get("additionalInfo") or ():
        if value_at(item, "type") == "InnerError":
            yield from _codes(value_at(item, "info", "value"))
    for name in ("innerError", "innererror"):
        yield from _codes(error.get(name))


def _make_error(row: Row, message: str, call: RefusedCall) -> TargetError:
    """Fill in the texts of a row. `message` is Azure's."""
    action = re.search(_ACTION, message)
    said = shortened(" ".join(message.split()).rstrip("."), _LONGEST)
    values = {
        "said": said or "it gives no reason",
        "action": action["action"] if action else f"{call.method} {call.about}",
        "about": call.about,
        "name": call.about.rpartition("/")[2],
        "workspace": call.place.workspace,
        "resource_group": call.place.resource_group,
        "subscription": call.place.subscription_id,
        "scope": call.place.workspace_id,  # of a role assignment
        "login": call.login,
    }

    kind = _KINDS[row["kind"]]
    hint = row.get("hint", "").format(**values) or None
    return kind(row["message"].format(**values), hint=hint)


def _causes(error: BaseException) -> list[BaseException]:
    """Return an error and its causes, from the attributes `inner_exception`, `reason`, `__cause__`
    and `args`."""
    causes: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting:
        cause = waiting.pop()
        if isinstance(cause, BaseException) and cause not in causes:
            causes.append(cause)
            waiting.append(getattr(cause, "inner_exception", None))
            waiting.append(getattr(cause, "reason", None))
            waiting.append(cause.__cause__)
            waiting += cause.args[:1]
    return causes


_NO_BRACES = str.maketrans("", "", "{}")

_LONGEST = 600
"""Longest shown text: DefaultAzureCredential lists eight kinds of credentials that it has tried."""
