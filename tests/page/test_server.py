"""How the page is served."""

from __future__ import annotations

import socket

import pytest

pytest.importorskip("starlette", reason="the extra `ui` is not installed")

from cloudtrain.page.server import make_page


def test_an_answer_does_not_wait_for_an_acknowledgement() -> None:
    """The connections have what their listener has. Without it, a body waits 40 ms after its headers."""
    page = make_page(0)
    with page.listener, socket.create_connection(page.listener.getsockname()):
        accepted, _ = page.listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
