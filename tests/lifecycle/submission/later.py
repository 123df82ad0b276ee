"""The clock of a store, moved on."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from cloudtrain.system.files import STORE_FILE


def later(state_dir: Path | str, seconds: float) -> None:
    """All that the store knows of happened that much earlier."""
    database = Path(state_dir, STORE_FILE)
    if database.exists():
        with sqlite3.connect(database) as db:
            db.execute("UPDATE journal SET at = at - ?, uptime = uptime - ?", (seconds, seconds))
            db.execute("UPDATE runs SET created = created - ?", (seconds,))
        db.close()


def a_minute_later(state_dir: Path | str) -> None:
    """No request can be on its way any more."""
    later(state_dir, 60)
