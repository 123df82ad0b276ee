"""Progress messages from inner functions. The command line listens and prints them; other callers do not see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_listener: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


def tell(text: str) -> None:
    """Send a progress message to the listener, if there is one."""
    listener = _listener.get()
    if listener is not None:
        listener(text)


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Pass the progress messages of the `with` block to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
