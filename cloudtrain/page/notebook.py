"""The page from a notebook."""

from __future__ import annotations

import threading
from functools import cache
from html import escape
from typing import TYPE_CHECKING

from cloudtrain.system.plugins import require

if TYPE_CHECKING:
    from cloudtrain.page.server import Page

EXTRA = "ui"


class PageLink:
    """A page that is served while this process lives. A notebook shows a link that opens it once,
    within a minute; run the cell again for another one. No token stays in the notebook."""

    def __init__(self, page: Page) -> None:
        self.address: str = page.address
        self._page = page

    def __repr__(self) -> str:
        return f"<the page at {self.address}>"

    def _repr_html_(self) -> str:
        link = escape(f"{self._page.address}/?token={self._page.keys.make_code()}")
        return f'<a href="{link}" target="_blank" rel="noopener">all runs, on a page</a>'


def ui(port: int | None = None) -> PageLink:
    """Serve the page of all runs on this machine, and return its link. Needs the extra `ui`.

    Args:
        port: default: the first free one from 8765 on.

    Raises:
        MissingExtra: the extra is not installed.
        UsageError: the port is taken.
    """
    return PageLink(_page(port))


@cache
def _page(port: int | None) -> Page:
    for module in ("starlette", "uvicorn"):
        require(module, extra=EXTRA)
    from cloudtrain.page.server import make_page

    page = make_page(port)
    threading.Thread(target=page.serve, daemon=True, name="cloudtrain page").start()
    return page
